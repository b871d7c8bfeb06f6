"""At most so many at once: what `balanced`, `priority` and `oldest` share. They differ in their line.

`buffer` is 0 unless asked for. What a doer holds is leased: no idle worker elsewhere can take it, and
nothing that arrives in the store later, however urgent, can overtake it. Order therefore belongs to the
store, and a doer claims only what it can start. The price is a claim's round trip whenever a slot frees;
for handlers shorter than that, a buffer of about `max` keeps the slots busy.
"""

from __future__ import annotations

from asyncio import current_task
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol

from treadle.item import Ref

from .base import BaseDoer, Task, whole

Order = tuple[float, ...]


class Entry(NamedTuple):
    """A task that waits. Entries compare by `order`, which no two share."""

    order: Order
    task: Task
    lane: Ref


class Line(Protocol):
    """Who is next. Told of every start and end, so that it may count what runs."""

    def order(self, priority: int, queued_at: float) -> Order:
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

    def __init__(self, max: int, buffer: int, line: Line) -> None:
        super().__init__()
        self._max = whole(max, "max")
        self._capacity = self._max + whole(buffer, "buffer", least=0)
        self._line = line
        self._seq = count()

    def available(self) -> int:
        return max(0, self._capacity - len(self._running) - len(self._line))

    def submit(
        self, task: Task, *, lane: str = "", priority: int = 0, queued_at: float = 0.0, tenant: str = ""
    ) -> None:
        ref = (tenant, lane)
        if len(self._running) < self._max:
            self._start(task, ref)
        else:
            order = (*self._line.order(priority, queued_at), next(self._seq))
            self._line.push(Entry(order, task, ref))

    def cancel_pending(self) -> list[Task]:
        return [entry.task for entry in self._line.clear()]

    def _start(self, task: Task, lane: Ref) -> None:
        self._line.started(lane)
        self._running.add(self._spawn(self._run_in(lane, task)))

    async def _run_in(self, lane: Ref, task: Task) -> None:
        try:
            await task()
        except Exception as error:  # noqa: BLE001  reported, never lost
            self._report(error)
        finally:
            self._running.discard(current_task())
            self._line.ended(lane)
            self._fill()

    def _fill(self) -> None:
        while len(self._line) and len(self._running) < self._max:
            entry = self._line.pop()
            self._start(entry.task, entry.lane)
        if self.available():
            self._tell_free()

    def __repr__(self) -> str:
        return f"{type(self._line).__name__} of {self._max}, {len(self._running)} running"
