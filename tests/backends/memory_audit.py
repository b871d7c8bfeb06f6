"""The memory backend in tests: an audit of its tables, and the same backend without its shortcuts.

The audit recounts everything that is stored, and reports what does not agree.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from treadle.backends.memory import MemoryBackend
from treadle.backends.memory.dependencies import status_if_ended
from treadle.backends.memory.fairness import FairLevel, ReadyItems, ReadyLine
from treadle.backends.memory.moving import MarkedTables
from treadle.backends.memory.rows import MemoryGroup, MemoryWorker, Row
from treadle.backends.memory.settle import MemorySettleCall, settle_one
from treadle.backends.memory.steps import write_logs
from treadle.backends.memory.submit import submit_one
from treadle.backends.memory.tables import MemoryTables, RowsByTenant
from treadle.item import KILLING, Ref, Rejected, Settled, Settlement, Status, Submission, Submitted


class MemoryWithoutShortcuts(MemoryBackend):
    """Stores and settles plain items as all others."""

    async def submit(
        self, submissions: Sequence[Submission], *, tx: object = None
    ) -> Sequence[tuple[Submitted, ...] | Rejected]:
        if tx is not None:
            return await super().submit(submissions, tx=tx)
        self.store.claimed_keys.check_here(item.tenant for each in submissions for item in each.items)
        return [submit_one(self.store, submission, self.store.now()) for submission in submissions]

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        call = MemorySettleCall(self.store, self.store.now())
        write_logs(self.store, [one for one in settlements if one.log is not None])
        outcomes = [settle_one(call, settlement) for settlement in settlements]
        return Settled(tuple(outcomes), call.effects.result(), call.now)


def audit(backend: MemoryBackend) -> list[str]:
    """The inconsistencies of a backend. There are none, unless there is a bug. Reads all that is stored."""
    store = backend.store
    if isinstance(store, MarkedTables):
        return []  # they are out of sight
    rows = [row for row in store.log if not row.gone]
    checks: tuple[Callable[[MemoryTables, list[Row]], Iterable[str]], ...] = (
        _tables,
        _places,
        _containers,
        _dependencies,
        _groups,
        _workers,
        _keys,
        _families,
        _ends,
        _strict_lanes,
    )
    return [problem for check in checks for problem in check(store, rows)]


def _name(row: Row) -> str:
    return f"{row.kind.tenant}/{row.item.id} ({row.status})"


# ----------------------------------------------------------------------------------------------------- tables


def _tables(store: MemoryTables, rows: list[Row]) -> Iterator[str]:
    """Every row is found by its id, its kind and its number."""
    for row in rows:
        if store.find(*row.ref) is not row:
            yield f"{_name(row)} is not found by its id"
        if store.kinds.get((row.kind.tenant, row.kind.queue, row.kind.lane, row.kind.type)) is not row.kind:
            yield f"{_name(row)} has a kind that is not stored"
    named = sum(len(found) if isinstance(found, RowsByTenant) else 1 for found in store.items.values())
    if named != len(rows):
        yield f"{named} ids for {len(rows)} items"
    if sorted(row.number for row in rows) != [row.number for row in rows]:
        yield "the log is not in order"
    if store.gone != len(store.log) - len(rows):
        yield f"{store.gone} deleted rows in the log, counted {len(store.log) - len(rows)}"
    yield from _counts(store, rows)


def _counts(store: MemoryTables, rows: list[Row]) -> Iterator[str]:
    counted: dict[object, Counter[Status]] = defaultdict(Counter)
    for row in rows:
        counted[row.kind][row.status] += 1
    for kind in store.kinds.values():
        stored = {status: count for status, count in kind.counts.items() if count}
        if stored != counted[kind]:
            yield f"{kind.tenant}/{kind.queue}/{kind.lane}/{kind.type}: {stored}, counted {counted[kind]}"
        if kind not in store.types.get(kind.type, {}):
            yield f"type {kind.type} lacks one of its kinds"
    if sum(len(kinds) for kinds in store.types.values()) != len(store.kinds):
        yield "a type has a kind that is not stored"
    counted_lines = Counter((kind.queue, kind.tenant, kind.lane) for kind in store.kinds.values())
    if counted_lines != {place: line.kinds for place, line in store.lines.items()}:
        yield "the lines do not agree with the kinds"


# ----------------------------------------------------------------------------------------------------- places


def _places(store: MemoryTables, rows: list[Row]) -> Iterator[str]:
    """Every open row is in the one place where its status and verdict are looked at."""
    doomed = set(store.doomed)
    for row in rows:
        places = _places_of(store, row, doomed)
        if row.ended_at is None and len(places) != 1:
            yield f"{_name(row)}, verdict {row.verdict}, is in {places or 'no place'}"
        if row.ended_at is not None and places:
            yield f"{_name(row)} has ended and is in {places}"
    for row in doomed:
        if row.gone or row.verdict is None:
            yield f"{_name(row)} is among the doomed items without a verdict"
    if sum(row.verdict is not None and not row.token for row in rows) != len(doomed):
        yield "a doomed item is missing among the doomed items"


def _places_of(store: MemoryTables, row: Row, doomed: set[Row]) -> list[str]:
    container, kind = row.container, row.kind
    parked = store.parked.get(kind.type)
    aside = None if parked is None else parked.find(kind.queue, kind.tenant, kind.lane)
    queue = store.scheduled.queues.get(kind.queue)
    scheduled = None if queue is None else queue.tenants.get(kind.tenant)
    held = row.worker is not None and row.token in row.worker.held
    found = row.dependencies
    blocked = row.status == "blocked" and row.verdict is None and found is not None
    places = {
        "its line": row.status == "ready" and container is not None and container is kind.line,
        "the parked items": row.status == "ready" and container is not None and container is aside,
        "the scheduled items": row.status == "scheduled" and container is not None and container is scheduled,
        "the doomed items": row in doomed,
        "a worker's leases": held and (row.status == "running" or row.verdict is not None),
        "the blocked items": blocked and found is not None and found.met < found.need,
    }
    return [place for place, there in places.items() if there]


def _containers(store: MemoryTables, rows: list[Row]) -> Iterator[str]:
    """Every container holds the rows that refer to it, and as many as it says. Every line can be served."""
    inside: Counter[object] = Counter(row.container for row in rows if row.container is not None)
    lines = [*store.ready, *(line for parked in store.parked.values() for line in parked)]
    queues = store.scheduled.queues.values()
    scheduled = [tenant for queue in queues for tenant in queue.tenants.values()]
    for container in (*lines, *scheduled, store.retention.rows):
        held = list(container)
        if not len(held) == len(container) == inside.pop(container, 0):
            yield f"a container of size {len(container)} holds {len(held)} rows"
        if any(row.container is not container for row in held):
            yield "a container holds a row that refers to another one"
    for bundle in store.retention.bundles:
        if bundle.size != inside.pop(bundle, 0):
            yield f"a bundle of size {bundle.size} holds another number of rows"
    if inside:
        yield f"{inside.total()} rows are in containers that no table has"
    for items in (store.ready, *store.parked.values()):
        yield from _fairness(store, items)
    if any(parked.queues.empty for parked in store.parked.values()):
        yield "a type has no parked items, and is still among the parked types"


def _fairness(store: MemoryTables, items: ReadyItems) -> Iterator[str]:
    for line in items:
        if not len(line) or items.find(line.queue, line.tenant, line.lane) is not line:
            yield f"line {_line_name(line)} is served, and is empty or not found by its name"
        if not isinstance(items.queues.find(line.queue), FairLevel):
            yield f"line {_line_name(line)} has no queue"
    for queue, tenant in store.paused:
        if not tenant and queue in items.queues.nodes:
            yield f"queue {queue} is paused and is served"
        for name, level in items.queues.nodes.items():
            if tenant and queue in ("", name) and isinstance(level, FairLevel) and tenant in level.nodes:
                yield f"tenant {tenant} is paused in queue {name} and is served"


def _line_name(line: ReadyLine) -> str:
    return f"{line.queue}/{line.tenant}/{line.lane}"


# ----------------------------------------------------------------------------------------------- dependencies


def _dependencies(store: MemoryTables, rows: list[Row]) -> Iterator[str]:
    """Dependencies have counted what has ended. Rows that wait are registered with their prerequisites."""
    waiters: dict[Ref, set[Row]] = defaultdict(set)
    for row in rows:
        if row.dependencies is not None:
            for id in row.item.after:
                waiters[row.kind.tenant, id].add(row)
            yield from _dependencies_of(store, row)
    stored = {ref: set(found) for ref, found in store.waiters.items()}
    if stored != waiters:
        yield f"{len(stored)} items are waited for, counted {len(waiters)}"
    unmet = {row for row in rows if row.reason == "unsatisfiable" and row.item.after}
    if unmet != {row for found in store.unmet.values() for row in found}:
        yield "the items that died unsatisfiable do not agree with those that are waited for"
    if any(row.gone or row.ended_at is None for found in store.tolerant.values() for row in found):
        yield "an item that is open or removed tolerates deaths as an ended one"


def _dependencies_of(store: MemoryTables, row: Row) -> Iterator[str]:
    found = row.dependencies
    assert found is not None
    if row.ended_at is not None:
        yield f"{_name(row)} has ended and waits"
    named = Counter(row.item.after)
    if found.open != sum(found.pending.values()) or any(named[id] != n for id, n in found.pending.items()):
        yield f"{_name(row)}: {found.open} open, {found.pending} pending of {row.item.after}"
    for id in named:
        ended = status_if_ended(store, (row.kind.tenant, id))
        if ended is not None and id in found.pending:
            yield f"{_name(row)} waits for {id}, which has ended: {ended}"
    if not 0 <= found.met <= len(row.item.after) - found.open:
        yield f"{_name(row)}: {found.met} met and {found.open} open of {len(row.item.after)}"
    if row.status == "blocked" and row.verdict is None and found.state != "waiting":
        yield f"{_name(row)} should be {found.state}"


# ----------------------------------------------------------------------------------------------------- groups


def _groups(store: MemoryTables, rows: list[Row]) -> Iterator[str]:
    """Counters equal recounts. A group has ended if and only if none of its members is open."""
    members: dict[MemoryGroup, list[Row]] = defaultdict(list)
    for row in rows:
        if row.group is not None:
            members[row.group].append(row)
        elif row.contributed and row.status != "success":
            yield f"{_name(row)} contributed"
    registered = [group for groups in store.groups.values() for group in groups.values()]
    if not {group for group in registered if group.closer is None} <= members.keys():
        yield "there are groups without members"
    for group in {*members, *registered}:
        counted = members[group]
        yield from _nesting(group)
        yield from _group(group, counted)


def _nesting(group: MemoryGroup) -> Iterator[str]:
    """A nested group and its outer group refer to each other. The item that closes it is in the outer one."""
    name, closer = f"group {group.tenant}/{group.id}", group.closer
    if any(inner.outer is not group for inner in group.nested):
        yield f"{name} contains a group that is nested elsewhere"
    if closer is None:
        return
    if closer.gone or closer.group is not group.outer or group.outer is None:
        yield f"{name} is closed by {_name(closer)}"
    elif group not in group.outer.nested:
        yield f"{name} is missing in the group around it"


def _group(group: MemoryGroup, members: list[Row]) -> Iterator[str]:
    name = f"group {group.tenant}/{group.id}"
    open = sum(row.ended_at is None for row in members)
    if {*members} != group.members.keys():
        yield f"{name}: {len(group.members)} members, counted {len(members)}"
    if group.open != open or (group.ended_at is None) != (open > 0):
        yield f"{name}: {group.open} open, ended {group.ended_at}, counted {open}"
    if any(row.kind.tenant != group.tenant for row in members):
        yield f"{name} has members of other tenants"
    if {row for row in members if row.status == "cancelled"} != group.cancelled.keys():
        yield f"{name}: {len(group.cancelled)} cancelled"
    if group.cancellations < len(group.cancelled):
        yield f"{name}: {group.cancellations} cancellations, {len(group.cancelled)} cancelled"
    failed = {row for row in members if row.failed_group}
    if failed != group.deaths.keys() or group.failed < len(failed):
        yield f"{name}: {group.failed} failed, {len(group.deaths)} deaths, counted {len(failed)}"
    if any(row.failed_group and row.status != "dead" for row in members):
        yield f"{name}: a member that is not dead failed it"
    if group.contributed != (group.version > 0) or (group.final and not group.contributed):
        yield f"{name}: version {group.version}, contributed {group.contributed}, final {group.final}"
    if open and group.position is not None:
        yield f"{name} is open and will be pruned"


# ---------------------------------------------------------------------------------------------- workers, keys


def _workers(store: MemoryTables, rows: list[Row]) -> Iterator[str]:
    """Leases belong to workers that are stored, and permits add up."""
    held: dict[MemoryWorker, dict[int, str]] = defaultdict(dict)
    for row in rows:
        if (row.token != 0) != (row.worker is not None) or (row.status == "running") > (row.token != 0):
            yield f"{_name(row)}: token {row.token}, worker {row.worker}"
        if row.worker is not None:
            held[row.worker][row.token] = row.item.id
    permits: Counter[str] = Counter()
    for worker in store.workers.values():
        if {token: lease.id for token, lease in worker.held.items()} != held.pop(worker, {}):
            yield f"worker {worker.id} holds {len(worker.held)} leases"
        if worker.position is None or worker.position[0] > worker.until:
            yield f"the lease of worker {worker.id} would never lapse"
        permits.update(worker.permits)
    if held:
        yield f"{len(held)} workers hold leases and are not stored"
    if permits != store.limits.held:
        yield f"permits {store.limits.held}, counted {permits}"
    types = Counter(type for worker in store.workers.values() for type in worker.types or ())
    of_all = sum(worker.types is None for worker in store.workers.values())
    if types != store.workers_by_type or of_all != store.workers_of_all_types:
        yield f"workers by type {store.workers_by_type}, counted {types}"


def _keys(store: MemoryTables, rows: list[Row]) -> Iterator[str]:
    """The item that was stored last with a key holds it, for as long as the item exists."""
    last = {(row.kind.tenant, row.kind.type, row.item.key): row for row in rows if row.item.key is not None}
    for (tenant, type, key), row in store.keys.items():
        if (row.gone, row.kind.tenant, row.kind.type, row.item.key) != (False, tenant, type, key):
            yield f"key {key} of {tenant}/{type} is held by {_name(row)}"
        if last.get((tenant, type, key)) is not row:
            yield f"key {key} of {tenant}/{type} is held by {_name(row)}, which was not stored last with it"


def _families(store: MemoryTables, rows: list[Row]) -> Iterator[str]:
    """Parents and children refer to each other, and workflows to their items."""
    for row in rows:
        for child in row.children or ():
            if child.parent is not row or child.gone:
                yield f"{_name(child)} does not refer to its parent {_name(row)}"
        if row.parent is not None and row not in (row.parent.children or ()):
            yield f"{_name(row)} is not among the children of its parent"
    labelled: dict[Ref, set[Row]] = defaultdict(set)
    for row in rows:
        if row.item.workflow is not None:
            labelled[row.kind.tenant, row.item.workflow].add(row)
    if {ref: set(found) for ref, found in store.workflows.items()} != labelled:
        yield "the workflows do not agree with their items"


def _ends(store: MemoryTables, rows: list[Row]) -> Iterator[str]:
    """Every deadline is watched, and every row that may be pruned will be."""
    if {row for row in rows if row.status == "dead"} != store.dead.keys():
        yield f"{len(store.dead)} dead items in the table of dead items"
    if {row for row in rows if row.losses >= KILLING and row.ended_at is None} != store.killing.keys():
        yield f"{len(store.killing)} items in the table of those that end workers"
    for row in rows:
        if row.mark and row.status != "dead":
            yield f"{_name(row)} has a mark, and is not dead"
        ended = row.ended_at is not None
        if ended != (row.status in ("success", "dead", "cancelled")):
            yield f"{_name(row)}: ended at {row.ended_at}"
        watched = row.deadline_watch is not None and row.deadline_watch.position is not None
        wanted = row.deadline is not None and not ended and row.verdict is None and not row.overdue
        if watched != wanted:
            yield f"{_name(row)}: deadline {row.deadline}, watched: {watched}"
        group = row.group
        pruned = row.container is not None or row.prune_pending or (group and group.position is not None)
        over = ended if group is None else group.kept_since is not None
        if over and row.keep is not None and not pruned:
            yield f"{_name(row)} would never be pruned"
    if len(store.deadlines) != sum(row.deadline_watch is not None for row in rows):
        yield f"{len(store.deadlines)} deadlines are watched"


def _strict_lanes(store: MemoryTables, rows: list[Row]) -> Iterator[str]:
    """Every lane is held by an open row, and every holder that is ready is known to be."""
    lanes = store.strict_lanes
    held = {(type, *lane): row for type, holders in lanes.holders.items() for lane, row in holders.items()}
    if held != {row.held_lane: row for row in rows if row.held_lane is not None}:
        yield "the strict lanes do not agree with the rows"
    for row in held.values():
        if row.ended_at is not None or row.gone:
            yield f"{_name(row)} has ended and holds a lane"
        if row.status == "ready" and row.verdict is None and row not in lanes.ready:
            yield f"{_name(row)} holds its lane, is ready, and is not handed out"
