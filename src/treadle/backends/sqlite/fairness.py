"""Fairness: a claim serves queues in rotation, tenants within a queue, and lanes within a tenant.

    RoundRobin of queues --> RoundRobin of tenants --> RoundRobin of lanes --> LaneRows: by priority, then age

One item at a time. A round robin goes on behind the name that was served last, and finds the next name by one
step in the claim index. So the cost depends on how many items are handed out, not on how many wait.
Everything happens within one transaction: once a round robin has been all the way round, it knows all names.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

from treadle.item import AvoidedLane, Demand
from treadle.store.rules import PORTION
from treadle.store.rules.limits import SharedRooms
from treadle.store.rules.orders import is_paused

from .orders import paused
from .statements import NEXT, Row, Tx, array, statements

_SQL = statements("fairness")

K = TypeVar("K", bound=Hashable)

_MOST_ROWS = 1000
_FIRST_LANES = 16
_MOST_NAMES = 10_000
# As far as the place of a row: before all others.
_BEFORE_FIRST: Final[Row] = (0, -(2**62), 0)
# Once no more rows can be set aside: how many lanes are left before the claim gives up.
_MOST_BLOCKED_LANES = 100


class LastServed:
    """The names that were served last: where the next claim goes on."""

    __slots__ = ("lanes", "queue", "tenants")

    def __init__(self) -> None:
        self.queue: str | None = None
        self.tenants: dict[str, str] = {}
        self.lanes: dict[tuple[str, str], str] = {}


class ClaimFacts(NamedTuple):
    """What one statement tells a claim about the store before it begins."""

    worker: int | None
    """The number of the worker that claims. None: it is not alive."""
    lock_file: str | None
    """The lock file of the process that claimed for it last."""
    any_gone: int
    """Whether workers have lapsed, or were removed and still have items."""
    first_due: float | None
    first_deadline: float | None
    any_paused: int
    any_parked: int
    any_doomed: int
    first_line: str | None
    """The line of the first row in the claim index. None: no item is ready, except parked ones."""
    last_line: str | None
    last_token: int
    orders: int
    """The version of the orders."""


class PickedItems(NamedTuple):
    """The numbers of the items that a claim hands out, and what it found on its way to them."""

    nos: list[int]
    overdue: list[int]
    """Items whose deadline has passed."""
    exhausted: bool
    """As many items were set aside as one claim may. The next claim goes on."""
    line: tuple[str, str, str] | None = None
    """The queue, tenant and lane of all these items, if no other line was looked for."""
    rows: Sequence[Row] = ()
    """What was read of these items then."""


def pick_items(tx: Tx, demand: Demand, last: LastServed, facts: ClaimFacts) -> PickedItems:
    """Choose the items that a claim hands out. Park ready ones that its worker cannot run. Updates `last`."""
    strict = HeldLanes(tx, demand) if demand.strict and demand.limit else None
    room = ClaimRoom(demand, tx.now, strict)
    nos = [] if strict is None else room.admitted_holders(strict)
    line: tuple[str, str, str] | None = None
    rows: list[Row] = []
    if room.left > len(nos):
        pick = _FairPick(tx, demand, room, last, facts)
        line = pick.only_line if strict is None else None
        if line is None:
            nos += pick.serve(room.left - len(nos))
        else:
            rows = pick.serve_only_line(line, room.left)
            nos = [row[0] for row in rows]
    if room.parked:
        tx.run(_SQL["park"], array(room.parked))
    return PickedItems(nos, room.overdue, room.exhausted, line, rows)


RoundRobinMember: TypeAlias = "RoundRobin | LaneRows"
FindMember: TypeAlias = Callable[[str], tuple[str, RoundRobinMember] | None]
"""The member with the least name that is not less than this one."""


class RoundRobin:
    """Serves its members one after the other, beginning behind the one that was served last."""

    def __init__(self, last: str | None, find: FindMember) -> None:
        self.last = last
        self._find = find
        self._start = last
        self._from = "" if last is None else last + NEXT
        self._wrapped = last is None
        self._complete = False
        self._known: deque[tuple[str, RoundRobinMember]] = deque()

    def serve(self, count: int) -> list[int]:
        """The numbers of up to `count` items; fewer only if there are no more."""
        served: list[int] = []
        while len(served) < count:
            named = self._next()
            if named is None:
                break
            name, member = named
            is_only_one = self._complete and not self._known
            wanted = count - len(served) if is_only_one else 1
            found = member.serve(wanted)
            if found:
                served += found
                self.last = name
            if len(found) == wanted:
                self._known.append(named)
        return served

    def _next(self) -> tuple[str, RoundRobinMember] | None:
        if not self._complete:
            found = self._discover()
            if found is not None:
                return found
            self._complete = True
        return self._known.popleft() if self._known else None

    def _discover(self) -> tuple[str, RoundRobinMember] | None:
        found = self._find(self._from)
        if found is None and not self._wrapped:
            self._wrapped = True
            found = self._find("")
        if found is None or (self._wrapped and self._start is not None and found[0] > self._start):
            return None
        self._from = found[0] + NEXT
        return found


class ClaimIndex:
    """A part of the claim index: all rows that are ready, or those that are parked under one type.

    avoid: lanes of the type that the claim leaves out.
    with_items: read what leases need of the items too.
    """

    def __init__(
        self,
        tx: Tx,
        type: str | None = None,
        avoid: Collection[AvoidedLane] = (),
        *,
        with_items: bool = False,
    ) -> None:
        self._tx = tx
        self.type = type
        self._avoid = avoid
        self._next: dict[tuple[str, str], tuple[str, Row | None]] = {}
        """By queue and tenant: where the last search began, and what it found."""
        self._lanes: dict[tuple[str, str], _LaneNames] = {}
        """By queue and tenant: the lanes that were read last."""
        self._prefix = () if type is None else (type,)
        kind = "ready" if type is None else "parked"
        self._names = _SQL[f"{kind}_queue"], _SQL[f"{kind}_tenant"]
        self._lane = _SQL[f"{kind}_lane"]
        self._rows = _SQL["ready_items" if with_items else f"{kind}_rows"]

    def next_name(self, within: tuple[str, ...], begin: str) -> str | None:
        """The next queue; within a queue: its next tenant."""
        found: str | None = self._tx.value(self._names[len(within)], *self._prefix, *within, begin)
        return found

    def next_lane(self, queue: str, tenant: str, begin: str) -> Row | None:
        """The next lane, and its first row."""
        if not self._avoid:
            return self._tx.row(self._lane, *self._prefix, queue, tenant, begin)
        began, found = self._next.get((queue, tenant), (None, None))
        if began is None or began > begin or (found is not None and found[0] < begin):
            found = self._next_lane_to_serve(queue, tenant, begin)
            self._next[queue, tenant] = begin, found
        return found

    def _next_lane_to_serve(self, queue: str, tenant: str, begin: str) -> Row | None:
        if (tenant, None) in self._avoid:
            return None
        read = self._lanes.setdefault((queue, tenant), _LaneNames())
        while True:
            if not read.covers(begin):
                size = read.next_size()
                read.take(
                    begin, self._tx.rows(_SQL["parked_lanes"], *self._prefix, queue, tenant, begin, size)
                )
            for at in range(bisect_left(read.names, begin), len(read.names)):
                if (tenant, lane := read.names[at]) not in self._avoid:
                    return self._tx.row(self._lane, *self._prefix, queue, tenant, lane)
            if read.are_last:
                return None
            begin = read.names[-1] + NEXT

    def rows(self, lane: tuple[str, str, str], rank: int, seq: int, most: int) -> list[Row]:
        """The rows of a lane behind this place."""
        return self._tx.rows(self._rows, *self._prefix, *lane, rank, seq, most)


class _LaneNames:
    """Lanes in order, from `begin` on. Each read fetches more of them than the one before."""

    def __init__(self) -> None:
        self.begin: str | None = None
        self.names: list[str] = []
        self.are_last = False
        """There are no more behind them."""
        self._size = _FIRST_LANES // 2

    def covers(self, begin: str) -> bool:
        """Whether the next lane from here on has been read."""
        if self.begin is None or begin < self.begin:
            return False
        return self.are_last or begin <= self.names[-1]

    def next_size(self) -> int:
        self._size = min(2 * self._size, _MOST_ROWS)
        return self._size

    def take(self, begin: str, rows: list[Row]) -> None:
        """Keep what was read. A last row without a name: there are no more."""
        self.begin, self.are_last = begin, rows[-1][0] is None
        self.names = [lane for (lane,) in rows if lane is not None]


class LaneRows:
    """The rows of one lane from all parts of the index, in order, as far as there is room for them."""

    def __init__(
        self, lane: tuple[str, str, str], heads: Sequence[tuple[ClaimIndex, Row | None]], room: ClaimRoom
    ) -> None:
        self._room = room
        self._tenant, self._lane = lane[1:]
        self._streams = [_RowStream(part, lane, head) for part, head in heads]

    def serve(self, count: int) -> list[int]:
        return [row[0] for row in self.serve_rows(count)]

    def serve_rows(self, count: int) -> list[Row]:
        served: list[Row] = []
        while len(served) < count:
            rows = self._next(count - len(served))
            if not rows:
                break
            admitted = self._room.admitted(rows, self._tenant, self._lane)
            served += admitted
            if self._room.exhausted and len(admitted) < len(rows):
                self._room.blocked_lanes += 1
                break
        return served

    def _next(self, wanted: int) -> list[Row]:
        """The next rows of the lane, at most `wanted`. One at a time if a part of them is parked."""
        streams = self._streams = [
            stream
            for stream in self._streams
            if self._room.admits_in(stream.type, self._tenant, self._lane) and stream.fill(wanted)
        ]
        if len(streams) == 1 and streams[0].type is None:
            return streams[0].pop(wanted)
        return min(streams, key=lambda stream: stream.place).pop(1) if streams else []


class _RowStream:
    """The rows of a lane from one part of the index. Each read fetches more rows than the one before."""

    def __init__(self, part: ClaimIndex, lane: tuple[str, str, str], head: Row | None) -> None:
        """head: the first row, if it was read."""
        self._part = part
        self.type = part.type
        self._lane = lane
        self._rows = [_BEFORE_FIRST if head is None else head]
        self._begin = 1 if head is None else 0
        self._size = 1
        self._more = True

    @property
    def place(self) -> tuple[int, int]:
        row = self._rows[self._begin]
        return row[1], row[2]

    def fill(self, wanted: int) -> bool:
        """Read more rows if there are none left. False: the lane has no more."""
        if self._begin == len(self._rows) and self._more:
            last = self._rows[-1]
            self._size = min(max(wanted, 2 * self._size), _MOST_ROWS)
            found = self._part.rows(self._lane, last[1], last[2], self._size)
            self._more = len(found) == self._size
            if found:
                self._rows, self._begin = found, 0
        return self._begin < len(self._rows)

    def pop(self, most: int) -> list[Row]:
        found = self._rows[self._begin : self._begin + most]
        self._begin += len(found)
        return found


class _FairPick:
    """The round robins of one claim."""

    def __init__(self, tx: Tx, demand: Demand, room: ClaimRoom, last: LastServed, facts: ClaimFacts) -> None:
        self._tx = tx
        self._room = room
        self._last = last
        self._facts = facts
        self._paused = paused(tx) if facts.any_paused else set[tuple[str, str]]()
        self._parked = [
            ClaimIndex(tx, type, room.left_out.get(type, demand.avoid.get(type, ())))
            for type in (_parked_types(tx, demand, room) if facts.any_parked else ())
        ]
        self._parts = self._parked if facts.first_line is None else [ClaimIndex(tx), *self._parked]
        self._queues = None if demand.queues is None else sorted(set(demand.queues))
        self._tenants = None if demand.tenants is None else sorted(set(demand.tenants))
        self._of_tenants: list[tuple[str, RoundRobin]] = []
        self._of_lanes: list[tuple[tuple[str, str], RoundRobin]] = []

    @property
    def only_line(self) -> tuple[str, str, str] | None:
        """The only line that has items for this claim. None: there are several, or none."""
        facts = self._facts
        if facts.first_line is None or facts.first_line != facts.last_line or self._parked:
            return None
        queue, tenant, lane = facts.first_line.split(NEXT)
        wanted = (self._queues is None or queue in self._queues) and (
            self._tenants is None or tenant in self._tenants
        )
        if not wanted or self._leaves_out((queue, tenant)):
            return None
        return queue, tenant, lane

    def serve_only_line(self, line: tuple[str, str, str], count: int) -> list[Row]:
        """As `serve`, without a search for other lines: what was read of the items."""
        part = ClaimIndex(self._tx, with_items=True)
        rows = LaneRows(line, [(part, None)], self._room).serve_rows(count)
        if rows:
            queue, tenant, lane = line
            self._last.queue = queue
            _move_to_end(self._last.tenants, queue, tenant)
            _move_to_end(self._last.lanes, (queue, tenant), lane)
        return rows

    def serve(self, count: int) -> list[int]:
        """Up to `count` items, in fair order. Updates the names that were served last."""
        queues, last = RoundRobin(self._last.queue, self._find_queue), self._last
        served = queues.serve(count)
        last.queue = queues.last
        for queue, tenants in self._of_tenants:
            _move_to_end(last.tenants, queue, tenants.last)
        for key, lanes in self._of_lanes:
            _move_to_end(last.lanes, key, lanes.last)
        return served

    def _find_queue(self, begin: str) -> tuple[str, RoundRobinMember] | None:
        queue = self._find_name((), self._queues, begin)
        if queue is None:
            return None
        tenants = RoundRobin(self._last.tenants.get(queue), lambda begin: self._find_tenant(queue, begin))
        self._of_tenants.append((queue, tenants))
        return queue, tenants

    def _find_tenant(self, queue: str, begin: str) -> tuple[str, RoundRobinMember] | None:
        tenant = self._find_name((queue,), self._tenants, begin)
        if tenant is None:
            return None
        key = queue, tenant
        lanes = RoundRobin(self._last.lanes.get(key), lambda begin: self._find_lane(queue, tenant, begin))
        self._of_lanes.append((key, lanes))
        return tenant, lanes

    def _find_name(self, within: tuple[str, ...], wanted: Sequence[str] | None, begin: str) -> str | None:
        """The first queue from `begin` on, or the first tenant within a queue, that is wanted and not
        paused."""

        def next_name(begin: str) -> str | None:
            admits = self._room.admits
            return _least(part.next_name(within, begin) for part in self._parts if admits(part.type))

        while True:
            name = _first_wanted(wanted, begin, next_name)
            if name is None or not self._leaves_out((*within, name)):
                return name
            begin = name + NEXT

    def _leaves_out(self, names: tuple[str, ...]) -> bool:
        """Whether a queue, or a tenant of it, is paused."""
        parts = self._paused
        queue, *tenant = names
        return bool(parts) and (is_paused(parts, queue, *tenant) if tenant else (queue, "") in parts)

    def _find_lane(self, queue: str, tenant: str, begin: str) -> tuple[str, RoundRobinMember] | None:
        if self._room.blocked_lanes >= _MOST_BLOCKED_LANES:
            return None
        heads: list[tuple[ClaimIndex, Row]] = []
        for part in self._parts:
            head = part.next_lane(queue, tenant, begin) if self._room.admits(part.type) else None
            if head is not None:
                heads.append((part, head))
        lane = _least(head[0] for _, head in heads)
        if lane is None:
            return None
        firsts = [(part, head[1:]) for part, head in heads if head[0] == lane]
        return lane, LaneRows((queue, tenant, lane), firsts, self._room)


def _parked_types(tx: Tx, demand: Demand, room: ClaimRoom) -> list[str]:
    """The types of parked items that the claim may hand out."""
    if demand.types is None:
        return list(tx.names(_SQL["next_parked_type"]))
    wanted = [type for type in demand.types if room.admits(type)]
    return [type for (type,) in tx.rows(_SQL["parked_types"], array(wanted))]


def _first_wanted(
    wanted: Sequence[str] | None, begin: str, next_name: Callable[[str], str | None]
) -> str | None:
    """The first name from `begin` on that exists and is wanted (sorted; None: all names). Takes as many steps
    as the shorter of the two lists has names."""
    if wanted is None:
        return next_name(begin)
    while True:
        place = bisect_left(wanted, begin)
        if place == len(wanted):
            return None
        found = next_name(wanted[place])
        if found is None or found == wanted[place]:
            return found
        begin = found


def _least(names: Iterable[str | None]) -> str | None:
    return min((name for name in names if name is not None), default=None)


def _move_to_end(names: dict[K, str], key: K, last: str | None) -> None:
    """Store the last name. The dict stays bounded: the keys that were not served for longest are dropped."""
    if last is not None:
        names.pop(key, None)
        names[key] = last
        while len(names) > _MOST_NAMES:
            del names[next(iter(names))]


# -- how much a claim may still hand out ---------------------------------------------------------------


class ClaimRoom:
    """How many items of each type a claim may still hand out, and the rows that it sets aside."""

    def __init__(self, demand: Demand, now: float, strict: HeldLanes | None = None) -> None:
        self._now = now
        self.left_out = NONE_LEFT_OUT if strict is None else strict.left_out
        """By strict type: the lanes that are left out."""
        self._leaves_out_some = bool(demand.avoid or self.left_out)
        self._demand = demand
        self._types = None if demand.types is None else dict(demand.types)
        self._shared = SharedRooms(demand) if demand.shared else None
        self.left = demand.limit if self._types is None else min(demand.limit, sum(self._types.values()))
        self.parked: list[int] = []
        self.overdue: list[int] = []
        self.exhausted = False
        self.blocked_lanes = 0
        """Lanes that were left although items wait in them: no more rows in front can be set aside."""

    def admits(self, type: str | None) -> bool:
        """Whether there is room for a type. None: for rows that are not parked, which are of any type."""
        return type is None or self._types is None or self._types.get(type, 0) > 0

    def admits_in(self, type: str | None, tenant: str, lane: str) -> bool:
        """The same for items in this lane, which may be strict and held."""
        return self.admits(type) and (tenant, lane) not in self.left_out.get(type or "", ())

    def admitted_holders(self, strict: HeldLanes) -> list[int]:
        """The numbers of the items that hold their lanes, and are handed out again."""
        nos: list[int] = []
        for no, type, deadline in strict.ready_holders():
            if deadline is not None and deadline <= self._now:
                self.overdue.append(no)
            elif len(nos) < self.left and self._use_room(type):
                nos.append(no)
        return nos

    def admitted(self, rows: Sequence[Row], tenant: str, lane: str) -> list[Row]:
        """The rows that are handed out. The others are set aside."""
        return [row for row in rows if self._admit(row, tenant, lane)]

    def _admit(self, row: Row, tenant: str, lane: str) -> bool:
        no, _, _, type, deadline = row[:5]
        if deadline is not None and deadline <= self._now:
            self.overdue.append(no)
        elif self._leaves_out_some and self._leaves_out(type, tenant, lane):
            self.parked.append(no)
        elif self._use_room(type):
            if type in self.left_out:
                self.left_out[type].add((tenant, lane))
            return True
        else:
            self.parked.append(no)
        self.exhausted = len(self.parked) + len(self.overdue) >= PORTION
        return False

    def _leaves_out(self, type: str, tenant: str, lane: str) -> bool:
        return (tenant, lane) in self.left_out.get(type, ()) or self._demand.avoids(type, tenant, lane)

    def _use_room(self, type: str) -> bool:
        """Take room for an item of this type. False: there is none."""
        if self._types is None:
            return True
        if self._types.get(type, 0) <= 0:
            return False
        self._types[type] -= 1
        if self._shared is not None:
            self._shared.use(type, self._types)
        return True


# -- strict lanes --------------------------------------------------------------------------------------


NONE_LEFT_OUT: Final[Mapping[str, set[AvoidedLane]]] = {}


class HeldLanes:
    """The strict lanes of one claim. A lane is held as long as an open item with `holds_lane` is in it."""

    def __init__(self, tx: Tx, demand: Demand) -> None:
        self._tx = tx
        self._demand = demand
        self.left_out: Mapping[str, set[AvoidedLane]] = {
            type: set(demand.avoid.get(type, ())) for type in demand.strict
        }
        """By strict type: the lanes that are held or to be avoided. It grows as the claim goes on."""
        self._ready: list[Row] = []
        for row in tx.rows(_SQL["lane_holders"], array(demand.strict)):
            _, is_ready, _, tenant, lane, type, _ = row
            self.left_out[type].add((tenant, lane))
            if is_ready:
                self._ready.append(row)

    def ready_holders(self) -> Iterator[Row]:
        """Number, type and deadline of the holders that the claim may hand out if it has room for them."""
        if not self._ready:
            return
        demand = self._demand
        pauses = paused(self._tx)
        for no, _, queue, tenant, lane, type, deadline in self._ready:
            if (
                (demand.queues is None or queue in demand.queues)
                and (demand.tenants is None or tenant in demand.tenants)
                and not is_paused(pauses, queue, tenant)
                and not demand.avoids(type, tenant, lane)
            ):
                yield no, type, deadline
