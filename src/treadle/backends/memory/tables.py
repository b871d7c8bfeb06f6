"""MemoryTables: all tables of one backend, and the steps that keep them consistent.

Nothing here waits. A verb runs to its end before another starts, which makes every verb atomic. `audit`
checks what must always be true of the tables.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, islice
from math import inf
from typing import TypeAlias, TypeVar

from treadle.base.timing import Clock
from treadle.item import GROUP_MARK, AvoidedLane, Demand, Item, Order, Ref, Schedule
from treadle.records import AuditEntry, BacklogSample, ScheduleRun, Stat
from treadle.store.rules.orders import is_paused
from treadle.store.rules.records import STEPS
from treadle.store.rules.submission import KeyHolder, KeyRef

from .claimed_keys import ClaimedKeys
from .fairness import ParkedItems, ReadyItems, ReadyLine
from .limits import MemoryLimits
from .priority_queue import SLACK, PriorityQueue
from .retention import Retention
from .rows import DeadlineWatch, ItemKind, MemoryGroup, MemoryWorker, Row

K = TypeVar("K")
V = TypeVar("V")


class RowsByTenant(dict[str, Row]):
    """Rows of several tenants with the same id, in the order of their submission."""


class MemoryTables:
    def __init__(self, clock: Clock) -> None:
        self.now = clock.now

        self.items: dict[str, Row | RowsByTenant] = {}
        self.log: list[Row] = []
        """In the order of submission. Deleted rows stay until there are too many of them."""
        self.gone = 0
        """How many deleted rows the log has."""
        self.number = 0
        self.kinds: dict[tuple[str, str, str, str], ItemKind] = {}
        self.types: dict[str, dict[ItemKind, None]] = {}
        self.groups: dict[str, dict[str, MemoryGroup]] = {}
        """By id and tenant: the groups that have had more than one member."""
        self.keys: dict[KeyRef, Row] = {}
        self.workflows: dict[Ref, dict[Row, None]] = {}
        self.dead: dict[Row, None] = {}
        self.killing: dict[Row, None] = {}
        """The open rows that have lost `KILLING` workers in a row, or more."""

        self.place = 0
        """The last place that was given to a ready row."""
        self.services = count(1)
        self.orders: dict[str, Order] = {}
        self.orders_version = 0
        self.orders_end = inf
        """When the first of them ends by itself."""
        self.paused: set[tuple[str, str]] = set()
        """As `Order.paused_part`."""
        self.lines: dict[tuple[str, str, str], ReadyLine] = {}
        self.ready = ReadyItems(self.services, self.paused)
        self.parked: dict[str, ParkedItems] = {}
        self.scheduled = DueItems()
        self.doomed = DoomedItems()
        self.deadlines: PriorityQueue[DeadlineWatch] = PriorityQueue()
        self.strict_lanes = StrictLanes()
        self.waiters: dict[Ref, dict[Row, None]] = {}
        """The open rows that name an item in `after`. The item need not exist."""

        self.tolerant: dict[Ref, dict[Row, None]] = {}
        """The ended rows that name an item in `after` and tolerate its death."""
        self.unmet: dict[Ref, dict[Row, None]] = {}
        """The rows that died `unsatisfiable` and name an item, or a group, in `after`."""

        self.token = 0
        """The last one that was given."""
        self.random_bits = random.Random(1).getrandbits
        """For tokens. They are the same in each process, so that a simulation can be repeated."""
        self.workers: dict[str, MemoryWorker] = {}
        self.worker_ends: PriorityQueue[MemoryWorker] = PriorityQueue()
        """Workers by the end of their lease, or earlier."""
        self.watches = count(1)
        self.workers_by_type: Counter[str] = Counter()
        """How many live workers have a type. Those that have every type are counted apart."""
        self.workers_of_all_types = 0
        self.releases: dict[str, float] = {}
        """When the first worker of each began, the oldest first."""
        self.unknown_since: dict[str | None, float] = {}
        """When the last live worker that had a type (None: every type) was gone."""
        self.unknown_searches: dict[str, UnknownTypeSearch] = {}

        self.retention = Retention()
        self.claimed_keys = ClaimedKeys()
        self.limits = MemoryLimits()
        self.arriving: dict[str, list[bytes]] = {}
        """By tenant: what has come of it, and is not seen yet."""
        self.schedules: dict[str, Schedule] = {}
        self.removed_schedules: dict[str, float] = {}
        """When they were removed."""
        self.schedule_runs: dict[str, dict[float, ScheduleRun]] = {}
        """By schedule, and by when each run was due."""
        self.stats: dict[int, dict[float, dict[tuple[str, str], Stat]]] = {step: {} for step in STEPS}
        """By step, begin, and type and queue."""
        self.samples: dict[int, dict[tuple[float, str], BacklogSample]] = {step: {} for step in STEPS}
        """By step, and by begin and queue."""
        self.audits: list[AuditEntry] = []
        """In the order of their numbers."""
        self.audit_numbers = count(1)

    # -- finding -----------------------------------------------------------------------------------------

    def find(self, tenant: str | None, id: str) -> Row | None:
        """The row of this tenant. Without a tenant, the row that was submitted first."""
        row = self.items.get(id)
        if isinstance(row, Row):
            return row if tenant is None or tenant == row.kind.tenant else None
        if row is None:
            return None
        return next(iter(row.values())) if tenant is None else row.get(tenant)

    def exists(self, ref: Ref) -> bool:
        """Whether an item, or with `GROUP_MARK` a group, is stored."""
        tenant, name = ref
        if name.startswith(GROUP_MARK):
            return self.find_group(tenant, name[1:]) is not None
        return self.find(tenant, name) is not None

    def key_holder(self, key: KeyRef) -> KeyHolder | None:
        row = self.keys.get(key)
        if row is None:
            return None
        return KeyHolder(
            row.item.id, row.group_open, row.queued_at, row.unstarted, row.changed_by, row.group_id
        )

    def find_group(self, tenant: str | None, id: str) -> Row | MemoryGroup | None:
        """The group, or the row of a root that is alone."""
        for row in self._rows_of_id(tenant, id):
            if row.group_id == id:
                return row if row.group is None else row.group
        # The root may be gone before the rest of its group.
        groups = self.groups.get(id, {})
        return next(iter(groups.values()), None) if tenant is None else groups.get(tenant)

    def closed_group(self, row: Row) -> MemoryGroup | None:
        """The nested group that a row closes."""
        if not row.item.closes_group:
            return None
        group = self.groups.get(row.item.id, {}).get(row.kind.tenant)
        return group if group is not None and group.closer is row else None

    def _rows_of_id(self, tenant: str | None, id: str) -> Iterable[Row]:
        """All rows that an id can mean, in the order of their submission."""
        found = self.items.get(id)
        if tenant is None and isinstance(found, RowsByTenant):
            return found.values()
        row = self.find(tenant, id)
        return () if row is None else (row,)

    def rows(self, cursor: int | None, *, oldest_first: bool) -> Iterator[Row]:
        """All rows after the number `cursor`, in the order of submission or in reverse."""
        log = self.log
        if oldest_first:
            begin = 0 if cursor is None else bisect_left(log, cursor + 1, key=_number)
            indexes = range(begin, len(log))
        else:
            end = len(log) if cursor is None else bisect_left(log, cursor, key=_number)
            indexes = range(end - 1, -1, -1)
        return (log[index] for index in indexes if not log[index].gone)

    def is_known(self, type: str) -> bool:
        """Whether a live worker has this type."""
        return self.workers_of_all_types > 0 or type in self.workers_by_type

    # -- inserting and deleting --------------------------------------------------------------------------

    def kind(self, item: Item) -> ItemKind:
        key = (item.tenant, item.queue, item.lane, item.type)
        kind = self.kinds.get(key)
        return self._new_kind(key) if kind is None else kind

    def insert(self, row: Row) -> None:
        """Put a new row into the tables that every row is in."""
        item, kind = row.item, row.kind
        kind.counts[row.status] += 1
        self.log.append(row)
        same_id = self.items.setdefault(item.id, row)
        if same_id is not row:
            if isinstance(same_id, Row):
                same_id = self.items[item.id] = RowsByTenant({same_id.kind.tenant: same_id})
            same_id[kind.tenant] = row
        if item.key is not None:
            self.keys[kind.tenant, kind.type, item.key] = row
        if item.workflow is not None:
            self.workflows.setdefault((kind.tenant, item.workflow), {})[row] = None
        if item.parent is not None:
            self._add_to_parent(row, item.parent)

    def delete(self, row: Row) -> None:
        """Remove a row from all tables. It must have no lease, and be in no container."""
        item, kind = row.item, row.kind
        row.gone = True
        kind.counts[row.status] -= 1
        if not any(kind.counts.values()):
            self.drop_kind(kind)
        self._drop_from_log()
        self._drop_id(row)
        if item.key is not None and self.keys.get(key := (kind.tenant, kind.type, item.key)) is row:
            del self.keys[key]
        if item.workflow is not None:
            discard(self.workflows, (kind.tenant, item.workflow), row)
        self.dead.pop(row, None)
        self.killing.pop(row, None)
        self.strict_lanes.free(row)
        _leave_family(row)
        if row.group is not None:
            self._leave_group(row, row.group)
        closed = self.closed_group(row)
        if closed is not None:
            # The group stays as long as it has members.
            closed.closer = None
            if not closed.members:
                self._drop_group(closed)
        _cut(row)

    def cut_all(self) -> None:
        """Cut off all rows, so that they are freed. The store cannot be used any more."""
        for row in self.log:
            _cut(row)

    def _new_kind(self, key: tuple[str, str, str, str]) -> ItemKind:
        tenant, queue, lane, type = key
        line = self.lines.get((queue, tenant, lane))
        if line is None:
            line = self.lines[queue, tenant, lane] = ReadyLine(self.ready, queue, tenant, lane)
        line.kinds += 1
        kind = self.kinds[key] = ItemKind(tenant, queue, lane, type, line)
        self.types.setdefault(type, {})[kind] = None
        return kind

    def drop_kind(self, kind: ItemKind) -> None:
        """Forget a kind that no item has."""
        del self.kinds[kind.tenant, kind.queue, kind.lane, kind.type]
        discard(self.types, kind.type, kind)
        kind.line.kinds -= 1
        if not kind.line.kinds:
            del self.lines[kind.queue, kind.tenant, kind.lane]

    def _drop_id(self, row: Row) -> None:
        same_id = self.items[row.item.id]
        if isinstance(same_id, RowsByTenant):
            del same_id[row.kind.tenant]
        if not isinstance(same_id, RowsByTenant) or not same_id:
            del self.items[row.item.id]

    def _drop_from_log(self) -> None:
        self.gone += 1
        if self.gone * 2 > len(self.log) and (self.gone > SLACK or self.gone == len(self.log)):
            self.log = [row for row in self.log if not row.gone]
            self.gone = 0

    def _add_to_parent(self, row: Row, id: str) -> None:
        parent = self.find(row.kind.tenant, id)
        if parent is not None and parent is not row:
            row.parent = parent
            if parent.children is None:
                parent.children = {}
            parent.children[row] = None

    def _leave_group(self, row: Row, group: MemoryGroup) -> None:
        del group.members[row]
        group.deaths.pop(row, None)
        group.cancelled.pop(row, None)
        if not group.members:
            if group.position is not None:
                self.retention.groups.remove(group)
            if group.closer is None:
                self._drop_group(group)

    def _drop_group(self, group: MemoryGroup) -> None:
        if group.outer is not None:
            group.outer.nested.pop(group, None)
        # Once its root is gone, another item may have taken that id, and have children of its own.
        groups = self.groups.get(group.id, {})
        if groups.get(group.tenant) is group:
            del groups[group.tenant]
            if not groups:
                del self.groups[group.id]


def _number(row: Row) -> int:
    return row.number


def _leave_family(row: Row) -> None:
    if row.parent is not None and row.parent.children is not None:
        del row.parent.children[row]
    for child in row.children or ():
        child.parent = None


_NO_KIND = ItemKind("", "", "", "", ReadyLine(ReadyItems(count(1), set()), "", "", ""))


def _cut(row: Row) -> None:
    """Cut a row off from everything that refers back to it: see `Row`."""
    row.kind = _NO_KIND
    row.container = row.position = row.worker = row.dependencies = row.deadline_watch = None
    row.group = row.parent = row.children = None


def discard(table: dict[K, dict[V, None]], key: K, member: V) -> bool:
    """Remove a member from the set under this key, and the set if it is empty. True: the set was removed."""
    members = table.get(key)
    if members is None:
        return False
    members.pop(member, None)
    if members:
        return False
    del table[key]
    return True


# ------------------------------------------------------------------------------------------- scheduled items


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


# ---------------------------------------------------------------------------------------------- doomed items


# Ordered dicts, not dicts: taking from the front of a dict again and again gets slower and slower.
DoomedRows: TypeAlias = "OrderedDict[Row, None]"


class DoomedItems:
    """Rows that can only end, until a claim hands them out with their verdict: by type, queue and tenant, in
    the order in which they were doomed."""

    def __init__(self) -> None:
        self.types: dict[str, dict[str, dict[str, DoomedRows]]] = {}

    def __iter__(self) -> Iterator[Row]:
        return self._find(lambda _: True, None, None)

    def add(self, row: Row) -> None:
        kind = row.kind
        queues = self.types.setdefault(kind.type, {})
        tenants = queues.setdefault(kind.queue, {})
        tenants.setdefault(kind.tenant, OrderedDict())[row] = None

    def remove(self, row: Row) -> None:
        kind = row.kind
        queues = self.types[kind.type]
        tenants = queues[kind.queue]
        rows = tenants[kind.tenant]
        del rows[row]
        if not rows:
            del tenants[kind.tenant]
        if not tenants:
            del queues[kind.queue]
        if not queues:
            del self.types[kind.type]

    def take(
        self,
        wanted: Callable[[str], bool],
        queues: Sequence[str] | None,
        tenants: Sequence[str] | None,
        most: int,
    ) -> list[Row]:
        """Remove up to `most` rows of these queues and tenants whose type is wanted."""
        taken = list(islice(self._find(wanted, queues, tenants), most))
        for row in taken:
            self.remove(row)
        return taken

    def _find(
        self, wanted: Callable[[str], bool], queues: Sequence[str] | None, tenants: Sequence[str] | None
    ) -> Iterator[Row]:
        for type, by_queue in self.types.items():
            if wanted(type):
                for by_tenant in _chosen(by_queue, queues):
                    for rows in _chosen(by_tenant, tenants):
                        yield from rows


def _chosen(named: Mapping[str, V], names: Sequence[str] | None) -> Iterable[V]:
    if names is None:
        return named.values()
    return (named[name] for name in names if name in named)


class UnknownTypeSearch:
    """The ready rows that one scan found of a type that no live worker has, by the time they became ready.

    A row that became ready after the scan has waited for less time than has passed since the scan. So one
    scan per grace period misses none.
    """

    __slots__ = ("at", "found")

    def __init__(self, at: float, found: Iterable[Row]) -> None:
        self.at = at
        self.found = deque(sorted(((row.ready_at, row.number, row) for row in found), key=lambda it: it[:2]))

    def take_until(self, ready_at: float) -> Iterator[Row]:
        """The rows that became ready before this, and have been ready since."""
        while self.found and self.found[0][0] < ready_at:
            since, _, row = self.found.popleft()
            if row.status == "ready" and row.verdict is None and row.ready_at == since and not row.gone:
                yield row


# ---------------------------------------------------------------------------------------------- strict lanes


class StrictLanes:
    def __init__(self) -> None:
        self.holders: dict[str, dict[AvoidedLane, Row]] = {}
        """By type, then by tenant and lane: the open row that holds the lane."""
        self.ready: dict[Row, None] = {}
        """The holders that became ready again, in that order. Some may have been handed out since."""

    def of_types(self, types: Iterable[str]) -> dict[str, dict[AvoidedLane, Row]]:
        """The holders of these types. The answer changes with them."""
        return {type: self.holders.setdefault(type, {}) for type in types}

    def hold(self, row: Row) -> None:
        """The row was handed out: it holds its lane until it has ended."""
        kind = row.kind
        row.held_lane = kind.type, kind.tenant, kind.lane
        self.holders.setdefault(kind.type, {})[kind.tenant, kind.lane] = row
        self.ready.pop(row, None)

    def free(self, row: Row) -> None:
        """The row has ended, or is gone."""
        if row.held_lane is None:
            return
        type, tenant, lane = row.held_lane
        row.held_lane = None
        self.ready.pop(row, None)
        del self.holders[type][tenant, lane]

    def ready_for(self, demand: Demand, paused: set[tuple[str, str]]) -> Iterator[Row]:
        """The ready holders that a claim may hand out, if it has room for their types."""
        for row in [row for row in self.ready if row.kind.type in demand.strict]:
            kind = row.kind
            if row.status != "ready" or row.verdict is not None:
                del self.ready[row]
            elif (
                (demand.queues is None or kind.queue in demand.queues)
                and (demand.tenants is None or kind.tenant in demand.tenants)
                and not is_paused(paused, kind.queue, kind.tenant)
                and not demand.avoids(kind.type, kind.tenant, kind.lane)
            ):
                yield row
