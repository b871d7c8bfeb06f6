"""Walk: one claim's way through the turns, from line to line, one item at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from treadle.item import Demand

from .lines import Line, Lines, Node, Ring, Turns

QUEUE: Final = 0
TENANT: Final = 1
LANE: Final = 2


class Walk:
    """Whose turn it is, again and again, among the lines that a demand may be served from.

    Several `Lines` are walked as if they were one: a name has its turn in all of them at once.
    """

    def __init__(self, lines: Iterable[Lines], demand: Demand, turns: Turns) -> None:
        self._tops = [each.queues for each in lines]
        self._wanted = (demand.queues, demand.tenants, None)
        self._avoid = demand.avoid
        self._turns = turns
        self._views: dict[Ring, OrderedDict[str, Node]] = {}
        self._path: list[tuple[Sequence[Ring], str]] = []
        self._held: list[tuple[Ring, str]] = []

    def next(self) -> list[Line]:
        """The line whose turn it is, once in each of the `Lines` that have it. Empty: nobody's."""
        self._path.clear()
        return self._descend(self._tops, QUEUE)

    @property
    def alone(self) -> bool:
        """The line that was next is the only one: it may be served as often as one likes."""
        return len(self._tops) == 1 and all(
            len(self._view(rings[0], level)) == 1 for level, (rings, _) in enumerate(self._path)
        )

    def served(self) -> None:
        """One item was taken from the line that was next."""
        turn = self._turns.next()
        for rings, name in self._path:
            for ring in rings:
                ring.served(name, turn)
                view = self._views.get(ring)
                if view is not None and name in view:
                    view.move_to_end(name)

    def set_aside(self) -> None:
        """Nothing in the line that was next can be taken."""
        rings, name = self._path[-1]
        self._hold(rings, name)

    def leave_out(self, lines: Lines) -> None:
        self._tops = [top for top in self._tops if top is not lines.queues]

    def end(self) -> None:
        """Let everybody back in who was only passed over."""
        for ring, name in reversed(self._held):
            ring.let_go(name)

    def _descend(self, rings: Sequence[Ring], level: int) -> list[Line]:
        while True:
            name = self._first(rings, level)
            if name is None:
                return []
            nodes = [ring.turns[name] for ring in rings if name in ring.turns]
            self._path.append((rings, name))
            lines = [node for node in nodes if isinstance(node, Line)]
            if level < LANE:
                lines = self._descend([node for node in nodes if isinstance(node, Ring)], level + 1)
            elif self._avoid and (lines[0].tenant, name) in self._avoid:
                lines = []
            if lines:
                return lines
            self._path.pop()
            self._hold(rings, name)

    def _first(self, rings: Sequence[Ring], level: int) -> str | None:
        """The name whose turn comes first in any of the rings."""
        best: str | None = None
        least = 0
        for ring in rings:
            view = self._view(ring, level)
            name = next(iter(view), None)
            if name is not None and (best is None or view[name].turn < least):
                best, least = name, view[name].turn
        return best

    def _view(self, ring: Ring, level: int) -> OrderedDict[str, Node]:
        """The ring's turns, or as many of them as are wanted."""
        wanted = self._wanted[level]
        if wanted is None:
            return ring.turns
        view = self._views.get(ring)
        if view is None:
            view = self._views[ring] = _narrowed(ring, wanted)
        while view and (name := next(iter(view))) not in ring.turns:
            del view[name]
        return view

    def _hold(self, rings: Sequence[Ring], name: str) -> None:
        for ring in rings:
            if name in ring.turns:
                ring.hold(name)
                self._held.append((ring, name))


def _narrowed(ring: Ring, wanted: Sequence[str]) -> OrderedDict[str, Node]:
    turns = ring.turns
    if len(wanted) < len(turns):
        chosen = {name: turns[name] for name in wanted if name in turns}
    else:
        names = frozenset(wanted)
        chosen = {name: node for name, node in turns.items() if name in names}
    return OrderedDict(sorted(chosen.items(), key=lambda pair: pair[1].turn))
