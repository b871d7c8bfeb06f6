"""Turns: queues take turns, tenants within a queue, lanes within a tenant, one item at a time.

    Ring of queues --> Ring of tenants --> Ring of lanes --> Lane: rows by priority, then age

A ring goes on behind whoever was served last, and finds the next name by one step in the claim index. So the
cost is in what is handed out, not in what waits. Everything happens within one transaction: once a ring has
been all the way round, it knows who there is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from treadle.item import Demand

from .picking import Picking
from .statements import Statements
from .tx import Row, Tx

_SQL = Statements("claim")

K = TypeVar("K", bound=Hashable)

_MOST_ROWS = 1000
_MOST_CURSORS = 10_000


class Rotation:
    """Where the turns stand: the names that were served last."""

    __slots__ = ("lanes", "queue", "tenants")

    def __init__(self) -> None:
        self.queue: str | None = None
        self.tenants: dict[str, str] = {}
        self.lanes: dict[tuple[str, str], str] = {}

    def forget_some(self) -> None:
        """Bounded, however many tenants come and go: those not served for longest begin anew."""
        _trim(self.tenants)
        _trim(self.lanes)


class Child(Protocol):
    """Whoever takes turns."""

    def take(self, count: int) -> list[int]:
        """The numbers of up to `count` items; fewer only if there are no more."""
        ...


Find: TypeAlias = Callable[[str], tuple[str, Child] | None]
"""The child with the least name from this one on."""


def behind(name: str) -> str:
    """The least text that is greater: no name holds a NUL."""
    return name + "\0"


class Ring:
    """Children that take turns, beginning behind the one that was served last."""

    def __init__(self, last: str | None, find: Find) -> None:
        self.last = last
        self._find = find
        self._start = last
        self._from = "" if last is None else behind(last)
        self._wrapped = last is None
        self._complete = False
        self._known: deque[tuple[str, Child]] = deque()

    def take(self, count: int) -> list[int]:
        taken: list[int] = []
        while len(taken) < count:
            turn = self._next()
            if turn is None:
                break
            name, child = turn
            alone = self._complete and not self._known
            wanted = count - len(taken) if alone else 1
            found = child.take(wanted)
            if found:
                taken += found
                self.last = name
            if len(found) == wanted:
                self._known.append(turn)
        return taken

    def _next(self) -> tuple[str, Child] | None:
        if not self._complete:
            found = self._discover()
            if found is not None:
                return found
            self._complete = True
        return self._known.popleft() if self._known else None

    def _discover(self) -> tuple[str, Child] | None:
        found = self._find(self._from)
        if found is None and not self._wrapped:
            self._wrapped = True
            found = self._find("")
        if found is None or (self._wrapped and self._start is not None and found[0] > self._start):
            return None
        self._from = behind(found[0])
        return found


class Source:
    """A part of the claim index: all that is ready, or what is parked under one type."""

    def __init__(self, tx: Tx, type: str | None = None) -> None:
        self._tx = tx
        self.type = type
        self._kind = "ready" if type is None else "parked"
        self._prefix = () if type is None else (type,)

    def next_queue(self, begin: str) -> str | None:
        found: str | None = self._tx.value(_SQL[f"{self._kind}_queue"], *self._prefix, begin)
        return found

    def next_tenant(self, queue: str, begin: str) -> str | None:
        found: str | None = self._tx.value(_SQL[f"{self._kind}_tenant"], *self._prefix, queue, begin)
        return found

    def next_lane(self, queue: str, tenant: str, begin: str) -> Row | None:
        """The next lane, and its first row."""
        return self._tx.row(_SQL[f"{self._kind}_lane"], *self._prefix, queue, tenant, begin)

    def rows(self, line: tuple[str, str, str], rank: int, seq: int, most: int) -> list[Row]:
        """The rows of a line behind this place."""
        return self._tx.rows(_SQL[f"{self._kind}_rows"], *self._prefix, *line, rank, seq, most)


class Lane:
    """One line: its rows from all sources, in order, as far as they are admitted."""

    def __init__(self, line: tuple[str, str, str], heads: list[tuple[Source, Row]], picking: Picking) -> None:
        self._picking = picking
        self._streams = [_Stream(source, line, head) for source, head in heads]

    def take(self, count: int) -> list[int]:
        taken: list[int] = []
        while len(taken) < count:
            rows = self._next(count - len(taken))
            if not rows:
                break
            admitted = self._picking.admitted(rows)
            taken += admitted
            if self._picking.exhausted and len(admitted) < len(rows):
                # What stands in the way cannot be set aside in this claim.
                self._picking.give_up()
                break
        return taken

    def _next(self, wanted: int) -> list[Row]:
        """The first rows of the line: no more than `wanted`, nor of a parked type than there is room for."""
        admits = self._picking.admits
        streams = self._streams = [s for s in self._streams if admits(s.type) and s.fill(wanted)]
        if len(streams) == 1 and streams[0].type is None:
            return streams[0].pop(wanted)
        return min(streams, key=lambda stream: stream.place).pop(1) if streams else []


class _Stream:
    """The rows of a line from one source. Reads ahead more and more, the longer it is asked."""

    def __init__(self, source: Source, line: tuple[str, str, str], head: Row) -> None:
        self._source = source
        self.type = source.type
        self._line = line
        self._rows = [head]
        self._begin = 0
        self._size = 1
        self._more = True

    @property
    def place(self) -> tuple[int, int]:
        row = self._rows[self._begin]
        return row[1], row[2]

    def fill(self, wanted: int) -> bool:
        """Whether there is a row."""
        if self._begin == len(self._rows) and self._more:
            last = self._rows[-1]
            self._size = min(max(wanted, 2 * self._size), _MOST_ROWS)
            found = self._source.rows(self._line, last[1], last[2], self._size)
            self._more = len(found) == self._size
            if found:
                self._rows, self._begin = found, 0
        return self._begin < len(self._rows)

    def pop(self, most: int) -> list[Row]:
        found = self._rows[self._begin : self._begin + most]
        self._begin += len(found)
        return found


class Turns:
    """The rings of one claim over some sources."""

    def __init__(
        self, sources: Sequence[Source], demand: Demand, picking: Picking, rotation: Rotation
    ) -> None:
        self._every = sources
        self._demand = demand
        self._picking = picking
        self._rotation = rotation
        self._queues = None if demand.queues is None else sorted(set(demand.queues))
        self._tenants = None if demand.tenants is None else sorted(set(demand.tenants))
        self._rings: list[tuple[str, Ring]] = []
        self._lane_rings: list[tuple[str, str, Ring]] = []

    def take(self, count: int) -> list[int]:
        """Up to `count` items, in the order of the turns; the rotation moves on."""
        ring = Ring(self._rotation.queue, self._find_queue)
        taken = ring.take(count)
        self._rotation.queue = ring.last
        for queue, tenants in self._rings:
            _move(self._rotation.tenants, queue, tenants.last)
        for queue, tenant, lanes in self._lane_rings:
            _move(self._rotation.lanes, (queue, tenant), lanes.last)
        self._rotation.forget_some()
        return taken

    @property
    def _sources(self) -> Sequence[Source]:
        """Without those whose type has no more room."""
        return [source for source in self._every if self._picking.admits(source.type)]

    def _find_queue(self, begin: str) -> tuple[str, Child] | None:
        while True:
            queue = _first_wanted(self._queues, begin, self._next_queue)
            if queue is None:
                return None
            if not self._picking.is_paused(queue, ""):
                return queue, self._queue(queue)
            begin = behind(queue)

    def _next_queue(self, begin: str) -> str | None:
        return _least(source.next_queue(begin) for source in self._sources)

    def _queue(self, queue: str) -> Ring:
        ring = Ring(self._rotation.tenants.get(queue), lambda begin: self._find_tenant(queue, begin))
        self._rings.append((queue, ring))
        return ring

    def _find_tenant(self, queue: str, begin: str) -> tuple[str, Child] | None:
        def next_tenant(begin: str) -> str | None:
            return _least(source.next_tenant(queue, begin) for source in self._sources)

        while True:
            tenant = _first_wanted(self._tenants, begin, next_tenant)
            if tenant is None:
                return None
            if not self._picking.is_paused(queue, tenant):
                return tenant, self._tenant(queue, tenant)
            begin = behind(tenant)

    def _tenant(self, queue: str, tenant: str) -> Ring:
        last = self._rotation.lanes.get((queue, tenant))
        ring = Ring(last, lambda begin: self._find_lane(queue, tenant, begin))
        self._lane_rings.append((queue, tenant, ring))
        return ring

    def _find_lane(self, queue: str, tenant: str, begin: str) -> tuple[str, Child] | None:
        while not self._picking.over:
            found = [(source, source.next_lane(queue, tenant, begin)) for source in self._sources]
            lane = _least(head[0] for _, head in found if head is not None)
            if lane is None:
                return None
            if (tenant, lane) not in self._demand.avoid:
                heads = [(source, head[1:]) for source, head in found if head is not None and head[0] == lane]
                return lane, Lane((queue, tenant, lane), heads, self._picking)
            begin = behind(lane)
        return None


def _first_wanted(
    wanted: Sequence[str] | None, begin: str, following: Callable[[str], str | None]
) -> str | None:
    """The first name from `begin` on that is there, and wanted (in order; None: all are). Takes as many steps
    as the shorter of the two lists has names."""
    if wanted is None:
        return following(begin)
    while True:
        place = bisect_left(wanted, begin)
        if place == len(wanted):
            return None
        found = following(wanted[place])
        if found is None or found == wanted[place]:
            return found
        begin = found


def _least(names: Iterable[str | None]) -> str | None:
    return min((name for name in names if name is not None), default=None)


def _trim(cursors: dict[K, str]) -> None:
    while len(cursors) > _MOST_CURSORS:
        del cursors[next(iter(cursors))]


def _move(cursors: dict[K, str], key: K, last: str | None) -> None:
    if last is not None:
        # To the end: the first ones are those that were not served for longest.
        cursors.pop(key, None)
        cursors[key] = last
