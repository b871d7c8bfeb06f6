"""Due: the scheduled rows, by the time they are due, and when the next one of some queues and tenants is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from .pile import SLACK, Pile
from .rows import Row


class Waiting(Pile[Row]):
    """The scheduled rows of one queue and tenant."""

    __slots__ = ("home", "listed", "tenant")

    def __init__(self, home: Agenda, tenant: str) -> None:
        super().__init__()
        self.home = home
        self.tenant = tenant
        self.listed: float | None = None
        """The instant under which the agenda looks for it."""

    def emptied(self) -> None:
        self.home.drop(self)


class Agenda:
    """The scheduled rows of one queue: a pile per tenant, and a heap of the piles by their tops.

    An entry of the heap may be earlier than its pile's top: that one has left. It is corrected when it comes
    up.
    """

    __slots__ = ("_heap", "_home", "_ties", "queue", "tenants")

    def __init__(self, home: Due, queue: str) -> None:
        self._home = home
        self._heap: list[tuple[float, int, Waiting]] = []
        self._ties = 0
        self.queue = queue
        self.tenants: dict[str, Waiting] = {}

    def add(self, row: Row, tie: int) -> None:
        tenant = row.kind.tenant
        pile = self.tenants.get(tenant)
        if pile is None:
            pile = self.tenants[tenant] = Waiting(self, tenant)
        row.pile = pile
        pile.push(row.due_at, tie, row)
        if pile.listed is None or row.due_at < pile.listed:
            self._list(pile, row.due_at)

    def drop(self, pile: Waiting) -> None:
        pile.listed = None
        del self.tenants[pile.tenant]
        if not self.tenants:
            self._home.drop(self)

    def first(self) -> Waiting | None:
        """The pile with the row that is due next."""
        heap = self._heap
        while heap:
            at, _, pile = heap[0]
            if at != pile.listed:
                heappop(heap)
                continue
            top = pile.first()
            if top is not None and top[0] == at:
                return pile
            heappop(heap)
            pile.listed = None
            if top is not None:
                self._list(pile, top[0])
        return None

    def next_at(self, tenants: Sequence[str] | None) -> float | None:
        if tenants is None:
            first = self.first()
            return None if first is None else first.listed
        tops = [pile.first() for tenant in tenants if (pile := self.tenants.get(tenant)) is not None]
        return min((top[0] for top in tops if top is not None), default=None)

    def _list(self, pile: Waiting, at: float) -> None:
        pile.listed = at
        self._ties += 1
        heappush(self._heap, (at, self._ties, pile))
        if len(self._heap) > 2 * len(self.tenants) + SLACK:
            self._heap = [entry for entry in self._heap if entry[0] == entry[2].listed]
            heapify(self._heap)


class Due:
    """All scheduled rows."""

    __slots__ = ("_ties", "queues")

    def __init__(self) -> None:
        self.queues: dict[str, Agenda] = {}
        self._ties = 0

    def add(self, row: Row) -> None:
        """Rows due at the same instant come in the order they were added."""
        agenda = self.queues.get(row.kind.queue)
        if agenda is None:
            agenda = self.queues[row.kind.queue] = Agenda(self, row.kind.queue)
        self._ties += 1
        agenda.add(row, self._ties)

    def drop(self, agenda: Agenda) -> None:
        del self.queues[agenda.queue]

    def take(self, now: float, most: int) -> Iterator[Row]:
        """Take out what is due, each queue's in order: no more than so many."""
        for agenda in list(self.queues.values()):
            while most > 0 and (pile := agenda.first()) is not None:
                row = pile.pop_until(now)
                if row is None:
                    break
                most -= 1
                row.pile = None
                yield row

    def next_at(self, queues: Sequence[str] | None, tenants: Sequence[str] | None) -> float | None:
        """When the next row of these queues and tenants is due."""
        names = self.queues if queues is None else queues
        agendas = [agenda for name in names if (agenda := self.queues.get(name)) is not None]
        instants = [agenda.next_at(tenants) for agenda in agendas]
        return min((at for at in instants if at is not None), default=None)
