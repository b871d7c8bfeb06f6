"""At most so many at once: what `balanced`, `priority` and `oldest` share. They differ in their line.

What a doer holds in its line is leased: no idle worker elsewhere can take it, and nothing that arrives in
the store later, however urgent, can come between. Order therefore belongs to the store, and the line is
short: unless `buffer` says otherwise it holds what starts within the next `AHEAD` seconds, judging by how
long tasks have taken. For handlers that take a second that is nothing; for handlers of a millisecond it is
what keeps the slots busy while the next claim is on its way.
"""

from __future__ import annotations

from asyncio import current_task, get_running_loop
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol

from treadle.item import Ref

from .base import BaseDoer, Task, whole

Order = tuple[float, ...]

AHEAD = 0.05
MOST_AHEAD = 500
FORGET = 0.95
"""The longest of the last tasks counts, and so much less with every further one: where some take long, the
line is short."""


class Entry(NamedTuple):
    """A task that waits. Entries compare by `order`, which no two share."""

    order: Order
    task: Task
    lane: Ref


class Line(Protocol):
    """Who is next. Told of every start and end, so that it may count what runs."""

    def order(self, priority: int, queued_at: float, place: float | None) -> Order:
        """What sorts a task among others; of equals the first one handed over goes first."""
        ...

    def push(self, entry: Entry) -> None: ...

    def pop(self) -> Entry:
        """The next one. Only asked when there is one."""
        ...

    def started(self, lane: Ref) -> None: ...

    def ended(self, lane: Ref) -> None: ...

    def clear(self) -> list[Entry]:
        """Forget all that wait, and say which they were."""
        ...

    def __len__(self) -> int: ...


class SortedLine:
    """A line in which nothing but a task's own order counts."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[Entry] = []

    def push(self, entry: Entry) -> None:
        heappush(self._heap, entry)

    def pop(self) -> Entry:
        return heappop(self._heap)

    def started(self, lane: Ref) -> None:
        pass

    def ended(self, lane: Ref) -> None:
        pass

    def clear(self) -> list[Entry]:
        entries, self._heap = self._heap, []
        return entries

    def __len__(self) -> int:
        return len(self._heap)


class BoundedDoer(BaseDoer):
    """Runs at most `max`; holds at most `buffer` more, in a line. It never refuses a task."""

    def __init__(self, max: int, buffer: int | None, line: Line) -> None:
        super().__init__()
        self._max = whole(max, "max")
        self._fixed = buffer if buffer is None else whole(buffer, "buffer", least=0)
        self._line = line
        self._seq = count()
        self._longest: float | None = None
        """Seconds that a task takes; None before the first has ended."""

    def available(self) -> int:
        """None while more than half of the line is left: one claim for many tasks, not one for each."""
        running, waiting, buffer = len(self._running), len(self._line), self.buffer
        if running >= self._max and 2 * waiting > buffer:
            return 0
        return max(0, self._max + buffer - running - waiting)

    @property
    def buffer(self) -> int:
        """How many may wait in the line, now."""
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
            self._line.push(Entry(order, task, ref))

    def cancel_pending(self) -> list[Task]:
        return [entry.task for entry in self._line.clear()]

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
            self._longest = max(clock() - began, FORGET * (self._longest or 0.0))
            self._fill()

    def _fill(self) -> None:
        while len(self._line) and len(self._running) < self._max:
            entry = self._line.pop()
            self._start(entry.task, entry.lane)
        if self.available():
            self._tell_free()

    def __repr__(self) -> str:
        return f"{type(self._line).__name__} of {self._max}, {len(self._running)} running"
