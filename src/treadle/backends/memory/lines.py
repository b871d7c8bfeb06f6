"""Lines: who is ready, and whose turn it is.

    Lines --turns--> queue --turns--> tenant --turns--> lane: a Line --by priority, then place--> rows

There is one `Lines` for all that is ready, and one more for each type that something is parked under.
Whoever is served goes to the end of its turns, and whoever comes to wait anew starts there: so everybody who
waits is served once before anybody is served twice. The turns belong to the store, not to the one who asks,
which makes them fair across the fleet; a demand's `rotation` has nothing to add.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from .pile import Pile
from .rows import Row

Node: TypeAlias = "Ring | Line"


class Turns:
    """Numbers that only grow, for everybody who takes a turn."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        self.last += 1
        return self.last


class Line(Pile[Row]):
    """The rows of one queue, tenant and lane, by priority and then by place."""

    __slots__ = ("home", "kinds", "lane", "queue", "tenant", "turn")

    def __init__(self, home: Lines, queue: str, tenant: str, lane: str) -> None:
        super().__init__()
        self.home = home
        self.queue = queue
        self.tenant = tenant
        self.lane = lane
        self.turn = 0
        self.kinds = 0
        """How many kinds of item stand in this line when they are ready."""

    def join(self, row: Row) -> None:
        """Stand in line, at the row's place."""
        if not self.size:
            self.home.enter(self)
        row.pile = self
        self.push(-row.item.priority, row.place, row)

    def emptied(self) -> None:
        self.home.leave(self)


class Lineup:
    """The same line in several `Lines`."""

    __slots__ = ("_lines",)

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def pop(self) -> Row | None:
        """Take the row that comes before all others."""
        firsts = [(spot, line) for line in self._lines if (spot := line.first()) is not None]
        return min(firsts, key=lambda first: first[0][:2])[1].pop() if firsts else None


class Turning(ABC):
    """Somebody below whom others take turns, each with a name."""

    __slots__ = ()

    @property
    @abstractmethod
    def alone(self) -> bool:
        """There is only one of them."""

    @abstractmethod
    def first(self) -> str | None:
        """Whose turn it is."""

    @abstractmethod
    def below(self, name: str) -> Turning | Line | Lineup: ...

    @abstractmethod
    def turn_of(self, name: str) -> int | None:
        """None: it does not take turns here."""

    @abstractmethod
    def served(self, name: str, turn: int) -> None:
        """It had its turn. Nothing, if it is gone by now."""

    @abstractmethod
    def hold(self, name: str) -> None:
        """Leave it out until further notice."""

    @abstractmethod
    def let_go(self, name: str) -> None:
        """Let it back in, as the next one: nobody has waited longer."""


class Ring(Turning):
    """Who takes turns, by name, in the order of their turns; and who is held out of them."""

    __slots__ = ("held", "turn", "turns")

    def __init__(self) -> None:
        self.turns: OrderedDict[str, Node] = OrderedDict()
        self.held: dict[str, Node] = {}
        self.turn = 0

    @property
    def empty(self) -> bool:
        return not self.turns and not self.held

    @property
    def alone(self) -> bool:
        return len(self.turns) == 1

    def first(self) -> str | None:
        return next(iter(self.turns), None)

    def below(self, name: str) -> Node:
        return self.turns[name]

    def turn_of(self, name: str) -> int | None:
        node = self.turns.get(name)
        return None if node is None else node.turn

    def get(self, name: str) -> Node | None:
        return self.turns[name] if name in self.turns else self.held.get(name)

    def add(self, name: str, node: Node, turn: int, *, held: bool = False) -> None:
        node.turn = turn
        if held:
            self.held[name] = node
        else:
            self.turns[name] = node

    def drop(self, name: str) -> None:
        if self.turns.pop(name, None) is None:
            self.held.pop(name, None)

    def served(self, name: str, turn: int) -> None:
        node = self.turns.get(name)
        if node is not None:
            node.turn = turn
            self.turns.move_to_end(name)

    def hold(self, name: str) -> None:
        node = self.turns.pop(name, None)
        if node is not None:
            self.held[name] = node

    def let_go(self, name: str) -> None:
        node = self.held.pop(name, None)
        if node is not None:
            self.turns[name] = node
            self.turns.move_to_end(name, last=False)


class Lines:
    """All lines with somebody in them."""

    __slots__ = ("_paused", "_turns", "queues")

    def __init__(self, turns: Turns, paused: set[tuple[str, str | None]]) -> None:
        self._turns = turns
        self._paused = paused
        self.queues = Ring()

    @property
    def empty(self) -> bool:
        return self.queues.empty

    def find(self, queue: str, tenant: str, lane: str) -> Line | None:
        lanes = self._lanes(queue, tenant)
        line = lanes.get(lane) if lanes is not None else None
        return line if isinstance(line, Line) else None

    def enter(self, line: Line) -> None:
        """A line that was empty is about to have somebody."""
        tenants = self._below(self.queues, line.queue, held=(line.queue, None) in self._paused)
        lanes = self._below(tenants, line.tenant, held=(line.queue, line.tenant) in self._paused)
        lanes.add(line.lane, line, self._turns.next())

    def leave(self, line: Line) -> None:
        """A line has become empty."""
        tenants = self._ring(self.queues, line.queue)
        lanes = self._ring(tenants, line.tenant)
        lanes.drop(line.lane)
        if lanes.empty:
            tenants.drop(line.tenant)
        if tenants.empty:
            self.queues.drop(line.queue)

    def pause(self, queue: str, tenant: str | None, paused: bool) -> None:
        """Keep a queue, or one tenant's part of it, out of the turns, or let it back in."""
        ring = self.queues
        if tenant is not None:
            below = self.queues.get(queue)
            if not isinstance(below, Ring):
                return
            ring = below
        name = queue if tenant is None else tenant
        if paused:
            ring.hold(name)
        else:
            ring.let_go(name)

    def __iter__(self) -> Iterator[Line]:
        nodes: list[Node] = [self.queues]
        while nodes:
            node = nodes.pop()
            if isinstance(node, Line):
                yield node
            else:
                nodes += [*node.turns.values(), *node.held.values()]

    def _below(self, ring: Ring, name: str, *, held: bool) -> Ring:
        node = ring.get(name)
        if isinstance(node, Ring):
            return node
        node = Ring()
        ring.add(name, node, self._turns.next(), held=held)
        return node

    def _lanes(self, queue: str, tenant: str) -> Ring | None:
        tenants = self.queues.get(queue)
        lanes = tenants.get(tenant) if isinstance(tenants, Ring) else None
        return lanes if isinstance(lanes, Ring) else None

    @staticmethod
    def _ring(ring: Ring, name: str) -> Ring:
        node = ring.get(name)
        assert isinstance(node, Ring)
        return node


class Parked(Lines):
    """The lines of one type that stepped aside. Once they are empty, nothing is parked under it any more."""

    __slots__ = ("_home", "type")

    def __init__(
        self, turns: Turns, paused: set[tuple[str, str | None]], home: dict[str, Parked], type: str
    ) -> None:
        super().__init__(turns, paused)
        self._home = home
        self.type = type

    def park(self, row: Row) -> None:
        kind = row.kind
        line = self.find(kind.queue, kind.tenant, kind.lane)
        if line is None:
            line = Line(self, kind.queue, kind.tenant, kind.lane)
        line.join(row)

    def leave(self, line: Line) -> None:
        super().leave(line)
        if self.empty:
            del self._home[self.type]
