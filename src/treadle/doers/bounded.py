"""BoundedDoer: at most `max` tasks at once. `balanced`, `priority` and `oldest` differ only in their line.

A task that waits in a line is leased: no idle worker elsewhere can claim it, and no item that arrives in the
store later can overtake it. So the store decides the order, and the line is short. Unless `buffer` is given,
it holds what starts within the next `AHEAD` seconds, judging by how long tasks have taken. For handlers that
take a second that is nothing. For handlers of a millisecond it keeps the doer busy while the next claim is on
its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from msgspec import Struct

from treadle.item import Ref

from .base import WorkerDoers, check_whole
from .doer import Task
from .starting import StartingDoer

Order = tuple[float, ...]

AHEAD = 0.05
MOST_AHEAD = 500
DECAY = 0.95
"""A task is expected to take as long as the longest recent one. That estimate shrinks by this factor with
each task that ends."""


class WaitingTask(Struct, frozen=True, order=True, gc=False):
    """Waiting tasks compare by `order`, which no two share."""

    order: Order
    task: Task
    lane: Ref


class TaskLine(Protocol):
    """Decides which waiting task starts next. It may count what runs: it sees every start and end."""

    def order(self, priority: int, queued_at: float, place: float | None, number: int) -> Order:
        """The sort key of a task. Its last part is `number`, which no two tasks share: among equals the first
        one submitted starts first."""
        ...

    def push(self, waiting: WaitingTask) -> None: ...

    def pop(self) -> WaitingTask:
        """Remove the next one. The line must not be empty."""
        ...

    def started(self, lane: Ref) -> None: ...

    def ended(self, lane: Ref) -> None: ...

    def clear(self) -> list[WaitingTask]:
        """Remove and return all of them."""
        ...

    def __len__(self) -> int: ...


class SortedLine:
    """A line in which only a task's own order counts."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[WaitingTask] = []

    def push(self, waiting: WaitingTask) -> None:
        heappush(self._heap, waiting)

    def pop(self) -> WaitingTask:
        return heappop(self._heap)

    def started(self, lane: Ref) -> None:
        pass

    def ended(self, lane: Ref) -> None:
        pass

    def clear(self) -> list[WaitingTask]:
        cleared, self._heap = self._heap, []
        return cleared

    def __len__(self) -> int:
        return len(self._heap)


class BoundedDoer(StartingDoer):
    """Runs at most `max` tasks. At most `buffer` more wait in a line. It never refuses a task."""

    def __init__(self, max: int, buffer: int | None, line: TaskLine) -> None:
        super().__init__()
        self._max = self.limit = check_whole(max, "max")
        self._fixed = buffer if buffer is None else check_whole(buffer, "buffer", least=0)
        self.buffers = bool(buffer)
        self._line = line
        self._seq = count()
        self._ready: deque[tuple[Task, Ref]] = deque()
        """Tasks that have room and start when the loop goes on."""
        self._active = 0
        self._in_line = 0
        """How many tasks wait in the line."""
        self._full = False
        """Whether there may be no room: then the next end reports it."""
        self._longest: float | None = None
        """Seconds that a task takes; None before the first has ended."""

    def of_worker(self, doers: WorkerDoers) -> BoundedDoer:
        return BoundedDoer(self._max, self._fixed, type(self._line)())

    def available(self) -> int:
        """0 while more than half of the line is left: one claim for many tasks, not one for each.

        Unless `buffer` is given, at most half of what it takes, or `max`: then there is room for the next
        claim as soon as this one is answered, and the store works on it while the tasks run. (With one claim
        for all of it, the store waited for the no-ops of a drain: see benchmarks/README.md.)
        """
        active, waiting, buffer = self._active + len(self._ready), self._in_line, self.buffer
        busy = active >= self._max and 2 * waiting > buffer
        room = 0 if busy else max(0, self._max + buffer - active - waiting)
        if self._fixed is None:
            room = min(room, max(self._max, (self._max + buffer) // 2))
        self._full = not room
        return room

    @property
    def buffer(self) -> int:
        """How many tasks may wait in the line now."""
        if self._fixed is not None:
            return self._fixed
        if self._longest is None:
            return 0
        return int(min(MOST_AHEAD, self._max * AHEAD / max(self._longest, 1e-6)))

    def submit(
        self,
        task: Task,
        *,
        lane: str = "",
        priority: int = 0,
        queued_at: float = 0.0,
        tenant: str = "",
        place: float | None = None,
    ) -> None:
        taken = self._active + len(self._ready)
        if taken < self._max and not self._in_line:
            self._ready.append((task, (tenant, lane)))
        else:
            order = self._line.order(priority, queued_at, place, next(self._seq))
            self._line.push(WaitingTask(order, task, (tenant, lane)))
            self._in_line += 1
        if taken < self._max:
            self._start_soon()
        if taken + 1 >= self._max:
            self._full = True

    def cancel_pending(self) -> list[Task]:
        ready = [task for task, _ in self._ready]
        self._ready.clear()
        self._in_line = 0
        return ready + [waiting.task for waiting in self._line.clear()]

    def remove(self, is_over: Callable[[Task], bool]) -> None:
        self._ready = deque([ready for ready in self._ready if not is_over(ready[0])])
        for waiting in self._line.clear():
            if not is_over(waiting.task):
                self._line.push(waiting)
        self._in_line = len(self._line)

    def _next(self) -> tuple[Task, Ref] | None:
        if self._ready:
            found = self._ready.popleft()
        elif self._in_line and self._active < self._max:
            waiting = self._line.pop()
            self._in_line -= 1
            found = waiting.task, waiting.lane
        else:
            return None
        self._active += 1
        self._line.started(found[1])
        return found

    def _waiting_count(self) -> int:
        return len(self._ready) + self._in_line

    def _ended(self, lane: Ref, took: float) -> None:
        self._active -= 1
        self._line.ended(lane)
        longest = DECAY * (self._longest or 0.0)
        self._longest = took if took > longest else longest
        if self._starter is None and self._in_line:
            self._start_soon()
        if self._full and self.available():
            self._call_on_free()

    def __repr__(self) -> str:
        return f"{type(self._line).__name__} of {self._max}, {self._active} running"
