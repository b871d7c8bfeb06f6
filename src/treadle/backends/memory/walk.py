"""Walk: one claim's way through the turns, from line to line, one item at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from treadle.item import Demand

from .lines import Line, Lines, Lineup, Ring, Turning, Turns

TENANT: Final = 1
"""Where on the way from the queue to the line the tenants are."""


class Walk:
    """Whose turn it is, again and again, among the lines that a demand may be served from.

    Several `Lines` are walked as if they were one: a name has its turn in all of them at once.
    """

    __slots__ = ("_avoid", "_held", "_narrowed", "_path", "_tenants", "_top", "_turns")

    def __init__(self, lines: Sequence[Lines], demand: Demand, turns: Turns) -> None:
        self._turns = turns
        self._tenants = demand.tenants
        self._avoid = demand.avoid
        self._narrowed: dict[Turning, Turning] = {}
        self._top: Turning = lines[0].queues if len(lines) == 1 else Together([each.queues for each in lines])
        if demand.queues is not None:
            self._top = Narrowed(self._top, demand.queues)
        self._path: list[tuple[Turning, str]] = []
        self._held: list[tuple[Turning, str]] = []

    def next(self) -> Line | Lineup | None:
        """The line whose turn it is."""
        path, node = self._path, self._top
        path.clear()
        while True:
            name = node.first()
            if name is None:
                if not path:
                    return None
                node, name = path.pop()
                self._hold(node, name)
                continue
            path.append((node, name))
            below = node.below(name)
            if isinstance(below, Line) or isinstance(below, Lineup):  # noqa: SIM101  a third of the time
                if not self._avoid or (path[TENANT][1], name) not in self._avoid:
                    return below
                self._hold(*path.pop())
            elif self._tenants is not None and len(path) == TENANT:
                node = self._narrow(below)
            else:
                node = below

    @property
    def alone(self) -> bool:
        """The line whose turn it is is the only one: it may be served as often as one likes."""
        (queues, _), (tenants, _), (lanes, _) = self._path
        return lanes.alone and tenants.alone and queues.alone

    def served(self) -> None:
        """The line whose turn it is was served."""
        turn = self._turns.next()
        for node, name in self._path:
            node.served(name, turn)

    def end(self) -> None:
        """Let everybody back in who was only passed over."""
        for node, name in reversed(self._held):
            node.let_go(name)

    def _narrow(self, node: Turning) -> Turning:
        assert self._tenants is not None
        if node not in self._narrowed:
            self._narrowed[node] = Narrowed(node, self._tenants)
        return self._narrowed[node]

    def _hold(self, node: Turning, name: str) -> None:
        node.hold(name)
        self._held.append((node, name))


class Narrowed(Turning):
    """Those of a few names only."""

    __slots__ = ("_node", "_order")

    def __init__(self, node: Turning, wanted: Iterable[str]) -> None:
        turns = {name: turn for name in wanted if (turn := node.turn_of(name)) is not None}
        self._node = node
        self._order = OrderedDict.fromkeys(sorted(turns, key=turns.__getitem__))

    @property
    def alone(self) -> bool:
        return len(self._order) == 1

    def first(self) -> str | None:
        order = self._order
        while order:
            name = next(iter(order))
            if self._node.turn_of(name) is not None:
                return name
            del order[name]
        return None

    def below(self, name: str) -> Turning | Line | Lineup:
        return self._node.below(name)

    def turn_of(self, name: str) -> int | None:
        return self._node.turn_of(name) if name in self._order else None

    def served(self, name: str, turn: int) -> None:
        self._order.move_to_end(name)
        self._node.served(name, turn)

    def hold(self, name: str) -> None:
        del self._order[name]

    def let_go(self, name: str) -> None:
        """Not needed: what was narrowed is only seen by one walk."""


class Together(Turning):
    """Several that are walked as if they were one."""

    __slots__ = ("_below", "_rings")

    def __init__(self, rings: Sequence[Ring]) -> None:
        self._rings = rings
        self._below: dict[str, Turning | Line | Lineup] = {}

    @property
    def alone(self) -> bool:
        return False

    def first(self) -> str | None:
        turns = {
            name: turn
            for ring in self._rings
            if (name := ring.first()) is not None and (turn := self.turn_of(name)) is not None
        }
        return min(turns, key=turns.__getitem__, default=None)

    def below(self, name: str) -> Turning | Line | Lineup:
        found = self._below.get(name)
        if found is None:
            nodes = [ring.turns[name] for ring in self._rings if name in ring.turns]
            rings = [node for node in nodes if isinstance(node, Ring)]
            found = Together(rings) if rings else Lineup([node for node in nodes if isinstance(node, Line)])
            self._below[name] = found
        return found

    def turn_of(self, name: str) -> int | None:
        turns = [ring.turns[name].turn for ring in self._rings if name in ring.turns]
        return min(turns, default=None)

    def served(self, name: str, turn: int) -> None:
        for ring in self._rings:
            ring.served(name, turn)

    def hold(self, name: str) -> None:
        for ring in self._rings:
            ring.hold(name)

    def let_go(self, name: str) -> None:
        for ring in self._rings:
            ring.let_go(name)
