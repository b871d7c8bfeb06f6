"""BoundedDoer: at most `max` tasks at once. `balanced`, `priority` and `oldest` differ only in their line.

A task that waits in a line is leased: no idle worker elsewhere can claim it, and no item that arrives in the
store later can overtake it. So the store decides the order, and the line is short. Unless `buffer` is given,
it holds what starts within the next `AHEAD` seconds, judging by how long tasks have taken. For handlers that
take a second that is nothing. For handlers of a millisecond it keeps the doer busy while the next claim is on
its way.
"""

from __future__ import annotations

from asyncio import current_task, get_running_loop
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol

from treadle.item import Ref

from .base import BaseDoer, check_whole
from .doer import Task

Order = tuple[float, ...]

AHEAD = 0.05
MOST_AHEAD = 500
DECAY = 0.95
"""A task is expected to take as long as the longest recent one. That estimate shrinks by this factor with
each task that ends."""


class WaitingTask(NamedTuple):
    """Waiting tasks compare by `order`, which no two share."""

    order: Order
    task: Task
    lane: Ref


class TaskLine(Protocol):
    """Decides which waiting task starts next. It may count what runs: it sees every start and end."""

    def order(self, priority: int, queued_at: float, place: float | None) -> Order:
        """The sort key of a task. Among equal keys the first one submitted starts first."""
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


class BoundedDoer(BaseDoer):
    """Runs at most `max` tasks. At most `buffer` more wait in a line. It never refuses a task."""

    def __init__(self, max: int, buffer: int | None, line: TaskLine) -> None:
        super().__init__()
        self._max = check_whole(max, "max")
        self._fixed = buffer if buffer is None else check_whole(buffer, "buffer", least=0)
        self._line = line
        self._seq = count()
        self._longest: float | None = None
        """Seconds that a task takes; None before the first has ended."""

    def available(self) -> int:
        """0 while more than half of the line is left: one claim for many tasks, not one for each."""
        running, waiting, buffer = len(self._running), len(self._line), self.buffer
        if running >= self._max and 2 * waiting > buffer:
            return 0
        return max(0, self._max + buffer - running - waiting)

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
        ref = (tenant, lane)
        if len(self._running) < self._max:
            self._start(task, ref)
        else:
            order = (*self._line.order(priority, queued_at, place), next(self._seq))
            self._line.push(WaitingTask(order, task, ref))

    def cancel_pending(self) -> list[Task]:
        return [waiting.task for waiting in self._line.clear()]

    def forget_tasks(self) -> None:
        super().forget_tasks()
        self._line = type(self._line)()

    def _start(self, task: Task, lane: Ref) -> None:
        self._line.started(lane)
        self._running.add(self._spawn(self._run_in(lane, task)))

    async def _run_in(self, lane: Ref, task: Task) -> None:
        clock = get_running_loop().time
        began = clock()
        try:
            await task()
        except Exception as error:  # noqa: BLE001  reported, never lost
            self._report(error)
        finally:
            self._running.discard(current_task())
            self._line.ended(lane)
            self._longest = max(clock() - began, DECAY * (self._longest or 0.0))
            self._start_waiting()

    def _start_waiting(self) -> None:
        while len(self._line) and len(self._running) < self._max:
            waiting = self._line.pop()
            self._start(waiting.task, waiting.lane)
        if self.available():
            self._call_on_free()

    def __repr__(self) -> str:
        return f"{type(self._line).__name__} of {self._max}, {len(self._running)} running"
