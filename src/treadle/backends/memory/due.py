"""Due: scheduled items by due time, and when the next one of some queues and tenants is due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from .priority_queue import SLACK, PriorityQueue
from .rows import Row


class DueTenant(PriorityQueue[Row]):
    """The scheduled rows of one queue and tenant."""

    __slots__ = ("listed", "queue", "tenant")

    def __init__(self, queue: DueQueue, tenant: str) -> None:
        super().__init__()
        self.queue = queue
        self.tenant = tenant
        self.listed: float | None = None
        """The due time under which it stands in the heap of its queue."""

    def on_empty(self) -> None:
        self.queue.drop(self)


class DueQueue:
    """The scheduled rows of one queue: a priority queue per tenant, and a heap of these by their first row.

    A due time in the heap may be too early, after that row has left. It is corrected when it comes up.
    """

    __slots__ = ("_heap", "_owner", "_ties", "name", "tenants")

    def __init__(self, owner: DueItems, name: str) -> None:
        self._owner = owner
        self._heap: list[tuple[float, int, DueTenant]] = []
        self._ties = count(1)
        self.name = name
        self.tenants: dict[str, DueTenant] = {}

    def add(self, row: Row, tie: int) -> None:
        name = row.kind.tenant
        tenant = self.tenants.get(name)
        if tenant is None:
            tenant = self.tenants[name] = DueTenant(self, name)
        row.container = tenant
        tenant.push(row.due_at, tie, row)
        if tenant.listed is None or row.due_at < tenant.listed:
            self._list(tenant, row.due_at)

    def drop(self, tenant: DueTenant) -> None:
        tenant.listed = None
        del self.tenants[tenant.tenant]
        if not self.tenants:
            del self._owner.queues[self.name]

    def first(self) -> DueTenant | None:
        """The tenant with the row that is due next."""
        heap = self._heap
        while heap:
            at, _, tenant = heap[0]
            if at != tenant.listed:
                heappop(heap)
                continue
            first = tenant.first()
            if first is not None and first[0] == at:
                return tenant
            heappop(heap)
            tenant.listed = None
            if first is not None:
                self._list(tenant, first[0])
        return None

    def next_at(self, tenants: Sequence[str] | None) -> float | None:
        if tenants is None:
            first = self.first()
            return None if first is None else first.listed
        firsts = [found.first() for name in tenants if (found := self.tenants.get(name)) is not None]
        return min((first[0] for first in firsts if first is not None), default=None)

    def _list(self, tenant: DueTenant, at: float) -> None:
        tenant.listed = at
        heappush(self._heap, (at, next(self._ties), tenant))
        if len(self._heap) > 2 * len(self.tenants) + SLACK:
            self._heap = [listed for listed in self._heap if listed[0] == listed[2].listed]
            heapify(self._heap)


class DueItems:
    def __init__(self) -> None:
        self.queues: dict[str, DueQueue] = {}
        self._ties = count(1)

    def add(self, row: Row) -> None:
        """Rows that are due at the same time come in the order in which they were added."""
        name = row.kind.queue
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = DueQueue(self, name)
        queue.add(row, next(self._ties))

    def take_due(self, now: float, most: int) -> Iterator[Row]:
        """Remove up to `most` rows that are due, each queue's in order."""
        for queue in list(self.queues.values()):
            while most > 0 and (tenant := queue.first()) is not None:
                row = tenant.pop_until(now)
                if row is None:
                    break
                most -= 1
                row.container = None
                yield row

    def next_at(self, queues: Sequence[str] | None, tenants: Sequence[str] | None) -> float | None:
        """When the next row of these queues and tenants is due."""
        names = self.queues if queues is None else queues
        found = [queue for name in names if (queue := self.queues.get(name)) is not None]
        times = [queue.next_at(tenants) for queue in found]
        return min((at for at in times if at is not None), default=None)
