"""Fairness: the ready items, and which of them a claim serves next.

    ReadyItems -> queue -> tenant -> lane (each the least recently served): a ReadyLine of rows by priority

There is one `ReadyItems` for all ready items, and one more for each type that items are parked under.

A queue, tenant or lane that was served goes to the end of its level, and a new one starts there. So all that
wait are served once before one of them is served twice. The order belongs to the store, not to the claiming
worker, which makes it fair across the fleet. A demand's `fairness` adds nothing to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Final, TypeAlias

from treadle.item import AvoidedLane, Demand

from .priority_queue import PriorityQueue
from .rows import Row

Node: TypeAlias = "FairLevel | ReadyLine"
AnyLevel: TypeAlias = "FairLevel | NarrowedLevel | MergedLevel"
AnyLine: TypeAlias = "ReadyLine | MergedLine"
Services: TypeAlias = Iterator[int]
"""Numbers the services of a store. The smaller number was served longer ago."""

TENANT: Final = 1
"""The index of the tenant in a path from the queue to the line."""

# ------------------------------------------------------------------------------------------------------ lines


class ReadyLine(PriorityQueue[Row]):
    """The ready rows of one queue, tenant and lane, by priority and then by place."""

    __slots__ = ("kinds", "lane", "owner", "queue", "served", "tenant")

    def __init__(self, owner: ReadyItems, queue: str, tenant: str, lane: str) -> None:
        super().__init__()
        self.owner = owner
        self.queue = queue
        self.tenant = tenant
        self.lane = lane
        self.served = 0
        """The number of its last service."""
        self.kinds = 0
        """How many kinds of item use this line."""

    def add(self, row: Row) -> None:
        if not self.size:
            self.owner.add_line(self)
        row.container = self
        self.push(-row.item.priority, row.place, row)

    def on_empty(self) -> None:
        self.owner.drop_line(self)


class MergedLine:
    """The same line in several `ReadyItems`."""

    __slots__ = ("_cut", "_lines")

    def __init__(self, lines: Sequence[ReadyLine]) -> None:
        self._lines = lines
        self._cut = False

    def leave_out(self, type: str) -> None:
        """Leave out the rows that are parked under a type, for this claim."""
        self._cut = True
        self._lines = [
            line for line in self._lines if not isinstance(line.owner, ParkedItems) or line.owner.type != type
        ]

    @property
    def only_left_out(self) -> bool:
        """Whether all of its rows are left out."""
        return self._cut and not any(line.size for line in self._lines)

    def pop(self) -> Row | None:
        """Remove the row that comes before all others."""
        firsts = [(first, line) for line in self._lines if (first := line.first()) is not None]
        return min(firsts, key=lambda it: it[0][:2])[1].pop() if firsts else None


# ----------------------------------------------------------------------------------------------------- levels


class FairLevel:
    """Nodes by name, the least recently served first; and those that are left out, such as paused ones."""

    __slots__ = ("left_out", "nodes", "served")

    def __init__(self) -> None:
        self.nodes: OrderedDict[str, Node] = OrderedDict()
        self.left_out: dict[str, Node] = {}
        self.served = 0
        """The number of its last service."""

    @property
    def empty(self) -> bool:
        return not self.nodes and not self.left_out

    @property
    def single(self) -> bool:
        return len(self.nodes) == 1

    def first(self) -> str | None:
        """The name that is served next."""
        return next(iter(self.nodes), None)

    def below(self, name: str) -> Node:
        return self.nodes[name]

    def last_service(self, name: str) -> int | None:
        """The number of the last service of a name. None: it is not served here."""
        node = self.nodes.get(name)
        return None if node is None else node.served

    def find(self, name: str) -> Node | None:
        return self.nodes[name] if name in self.nodes else self.left_out.get(name)

    def add(self, name: str, node: Node, number: int, *, left_out: bool = False) -> None:
        node.served = number
        if left_out:
            self.left_out[name] = node
        else:
            self.nodes[name] = node

    def drop(self, name: str) -> None:
        if self.nodes.pop(name, None) is None:
            self.left_out.pop(name, None)

    def mark_served(self, name: str, number: int) -> None:
        """Move a name to the end. Nothing happens if it has been dropped by now."""
        node = self.nodes.get(name)
        if node is not None:
            node.served = number
            self.nodes.move_to_end(name)

    def leave(self, name: str, out: bool) -> None:
        """Leave a name out, or let it in."""
        if out:
            self.leave_out(name)
        else:
            self.let_in(name)

    def leave_out(self, name: str) -> None:
        node = self.nodes.pop(name, None)
        if node is not None:
            self.left_out[name] = node

    def let_in(self, name: str) -> None:
        """Serve a name again, as the next one: none has waited longer."""
        node = self.left_out.pop(name, None)
        if node is not None:
            self.nodes[name] = node
            self.nodes.move_to_end(name, last=False)


class NarrowedLevel:
    """Some names of a level, for one claim."""

    __slots__ = ("_level", "_order")

    def __init__(self, level: AnyLevel, wanted: Iterable[str]) -> None:
        services = {name: number for name in wanted if (number := level.last_service(name)) is not None}
        self._level = level
        self._order = OrderedDict.fromkeys(sorted(services, key=services.__getitem__))

    @property
    def single(self) -> bool:
        return len(self._order) == 1

    def first(self) -> str | None:
        order = self._order
        while order:
            name = next(iter(order))
            if self._level.last_service(name) is not None:
                return name
            del order[name]
        return None

    def below(self, name: str) -> AnyLevel | AnyLine:
        return self._level.below(name)

    def last_service(self, name: str) -> int | None:
        return self._level.last_service(name) if name in self._order else None

    def mark_served(self, name: str, number: int) -> None:
        self._order.move_to_end(name)
        self._level.mark_served(name, number)

    def leave_out(self, name: str) -> None:
        del self._order[name]

    def let_in(self, name: str) -> None:
        """Not needed: no other claim sees this level."""


class MergedLevel:
    """The same level in several `ReadyItems`: a name is served in all of them at once."""

    __slots__ = ("_below", "_levels")

    single = False

    def __init__(self, levels: Sequence[FairLevel]) -> None:
        self._levels = levels
        self._below: dict[str, AnyLevel | AnyLine] = {}

    def first(self) -> str | None:
        services = {
            name: number
            for level in self._levels
            if (name := level.first()) is not None and (number := self.last_service(name)) is not None
        }
        return min(services, key=services.__getitem__, default=None)

    def below(self, name: str) -> AnyLevel | AnyLine:
        found = self._below.get(name)
        if found is None:
            nodes = [level.nodes[name] for level in self._levels if name in level.nodes]
            levels = [node for node in nodes if isinstance(node, FairLevel)]
            lines = [node for node in nodes if isinstance(node, ReadyLine)]
            found = self._below[name] = MergedLevel(levels) if levels else MergedLine(lines)
        return found

    def last_service(self, name: str) -> int | None:
        numbers = [level.nodes[name].served for level in self._levels if name in level.nodes]
        return min(numbers, default=None)

    def mark_served(self, name: str, number: int) -> None:
        for level in self._levels:
            level.mark_served(name, number)

    def leave_out(self, name: str) -> None:
        for level in self._levels:
            level.leave_out(name)

    def let_in(self, name: str) -> None:
        for level in self._levels:
            level.let_in(name)


# -------------------------------------------------------------------------------------------------- all lines


class ReadyItems:
    """All lines that are not empty."""

    __slots__ = ("_paused", "_services", "queues")

    def __init__(self, services: Services, paused: set[tuple[str, str]]) -> None:
        self._services = services
        self._paused = paused
        self.queues = FairLevel()

    def __iter__(self) -> Iterator[ReadyLine]:
        nodes: list[Node] = [self.queues]
        while nodes:
            node = nodes.pop()
            if isinstance(node, ReadyLine):
                yield node
            else:
                nodes += [*node.nodes.values(), *node.left_out.values()]

    def find(self, queue: str, tenant: str, lane: str) -> ReadyLine | None:
        node: Node | None = self.queues
        for name in (queue, tenant, lane):
            node = node.find(name) if isinstance(node, FairLevel) else None
        return node if isinstance(node, ReadyLine) else None

    def add_line(self, line: ReadyLine) -> None:
        """Add a line that is about to get its first row."""
        queue, tenant = line.queue, line.tenant
        tenants = self._level_below(self.queues, queue, (queue, "") in self._paused)
        lanes = self._level_below(tenants, tenant, self._leaves_out(queue, tenant))
        lanes.add(line.lane, line, next(self._services))

    def drop_line(self, line: ReadyLine) -> None:
        """Drop a line that has become empty."""
        tenants = self.queues.find(line.queue)
        assert isinstance(tenants, FairLevel)
        lanes = tenants.find(line.tenant)
        assert isinstance(lanes, FairLevel)
        lanes.drop(line.lane)
        if lanes.empty:
            tenants.drop(line.tenant)
        if tenants.empty:
            self.queues.drop(line.queue)

    def pause(self, queue: str, tenant: str) -> None:
        """Leave out a queue, one tenant's part of it, or that of all queues; or let it in again."""
        if not tenant:
            self.queues.leave(queue, (queue, "") in self._paused)
            return
        for name in (queue,) if queue else (*self.queues.nodes, *self.queues.left_out):
            level = self.queues.find(name)
            if isinstance(level, FairLevel):
                level.leave(tenant, self._leaves_out(name, tenant))

    def _leaves_out(self, queue: str, tenant: str) -> bool:
        """Whether a tenant's part of a queue is paused, apart from the whole queue."""
        return bool(self._paused) and not self._paused.isdisjoint(((queue, tenant), ("", tenant)))

    def _level_below(self, level: FairLevel, name: str, left_out: bool) -> FairLevel:
        node = level.find(name)
        if not isinstance(node, FairLevel):
            node = FairLevel()
            level.add(name, node, next(self._services), left_out=left_out)
        return node


class ParkedItems(ReadyItems):
    """The parked rows of one type. Once they are empty, the type is dropped from `owner`."""

    __slots__ = ("_owner", "type")

    def __init__(
        self,
        services: Services,
        paused: set[tuple[str, str]],
        owner: dict[str, ParkedItems],
        type: str,
    ) -> None:
        super().__init__(services, paused)
        self._owner = owner
        self.type = type

    def park(self, row: Row) -> None:
        kind = row.kind
        line = self.find(kind.queue, kind.tenant, kind.lane)
        if line is None:
            line = ReadyLine(self, kind.queue, kind.tenant, kind.lane)
        line.add(row)

    def drop_line(self, line: ReadyLine) -> None:
        super().drop_line(line)
        if self.queues.empty:
            del self._owner[self.type]


# ------------------------------------------------------------------------------------ the order of one claim


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
