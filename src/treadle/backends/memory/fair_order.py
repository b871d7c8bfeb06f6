"""FairOrder: the lines that one claim serves, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Final

from treadle.item import AvoidedLane, Demand

from .fairness import (
    TENANT,
    AnyLevel,
    AnyLine,
    FairLevel,
    MergedLevel,
    MergedLine,
    NarrowedLevel,
    ParkedItems,
    ReadyItems,
    ReadyLine,
    Services,
)
from .rows import Row

NONE_HELD: Final[Mapping[str, Mapping[AvoidedLane, Row]]] = {}


class FairOrder:
    """The lines that one claim serves, in order. Several `ReadyItems` are served as if they were one."""

    __slots__ = ("_left_out", "_narrowed", "_path", "_services", "_tenants", "_top")

    def __init__(
        self,
        items: Sequence[ReadyItems],
        demand: Demand,
        services: Services,
        held: Mapping[str, Mapping[AvoidedLane, Row]] = NONE_HELD,
    ) -> None:
        """held: by type, the lanes that are left out besides those in `demand.avoid`."""
        self._services = services
        self._tenants = demand.tenants
        self._narrowed: dict[AnyLevel, NarrowedLevel] = {}
        top = items[0].queues if len(items) == 1 else MergedLevel([each.queues for each in items])
        self._top: AnyLevel = top if demand.queues is None else NarrowedLevel(top, demand.queues)
        self._path: list[tuple[AnyLevel, str]] = []
        """The levels and names that lead to the line that is served."""
        self._left_out: list[tuple[AnyLevel, str]] = []
        if demand.avoid or held:
            for each in items:
                if isinstance(each, ParkedItems):
                    self._avoid(each, chain(demand.avoid.get(each.type, ()), held.get(each.type, ())))

    def next_line(self) -> AnyLine | None:
        path, level = self._path, self._top
        path.clear()
        while True:
            name = level.first()
            if name is None:
                if not path:
                    return None
                level, name = path.pop()
                self._leave_out(level, name)
                continue
            path.append((level, name))
            below = level.below(name)
            if isinstance(below, ReadyLine) or isinstance(below, MergedLine):  # noqa: SIM101  a third of the time
                return below
            if self._tenants is not None and len(path) == TENANT:
                level = self._narrow(below, self._tenants)
            else:
                level = below

    def leave_out_line(self) -> None:
        """Leave out the line that was served last."""
        self._leave_out(*self._path[-1])

    def _avoid(self, parked: ParkedItems, avoided: Iterable[AvoidedLane]) -> None:
        """Leave out lanes of a type, the least recently served first, as `end` lets them in again. (Those
        of its items that are not parked yet are parked when met.)"""
        found: list[tuple[int, FairLevel, str]] = []
        for tenant, lane in avoided:
            for tenants in parked.queues.nodes.values():
                assert isinstance(tenants, FairLevel)
                lanes = tenants.nodes.get(tenant)
                if not isinstance(lanes, FairLevel):
                    continue
                if lane is None:
                    found.append((lanes.served, tenants, tenant))
                elif (line := lanes.nodes.get(lane)) is not None:
                    found.append((line.served, lanes, lane))
        for _, level, name in sorted(found, key=itemgetter(0)):
            self._leave_out(level, name)

    @property
    def single(self) -> bool:
        """Whether the line that is served is the only one. It may then be served several times in a row."""
        (queues, _), (tenants, _), (lanes, _) = self._path
        return lanes.single and tenants.single and queues.single

    def mark_served(self) -> None:
        number = next(self._services)
        for level, name in self._path:
            level.mark_served(name, number)

    def end(self) -> None:
        """Let in all that this claim left out."""
        for level, name in reversed(self._left_out):
            level.let_in(name)

    def _narrow(self, level: AnyLevel, tenants: Sequence[str]) -> NarrowedLevel:
        if level not in self._narrowed:
            self._narrowed[level] = NarrowedLevel(level, tenants)
        return self._narrowed[level]

    def _leave_out(self, level: AnyLevel, name: str) -> None:
        level.leave_out(name)
        self._left_out.append((level, name))
