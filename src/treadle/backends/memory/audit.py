"""Audit: recount everything. What must be true of the tables after every verb, and is not, in words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from treadle.item import Ref, Status

from .backend import MemoryBackend
from .lines import Line, Lines
from .rows import Group, Row, Worker
from .store import Namesakes, Store


def audit(backend: MemoryBackend) -> list[str]:
    """What is inconsistent in a backend: nothing, unless there is a bug. Looks at all that is stored."""
    store = backend.store
    rows = [row for row in store.log if not row.gone]
    checks: tuple[Callable[[Store, list[Row]], Iterable[str]], ...] = (
        _tables,
        _places,
        _piles,
        _gates,
        _groups,
        _workers,
        _keys,
        _families,
        _ends,
    )
    return [problem for check in checks for problem in check(store, rows)]


def _name(row: Row) -> str:
    return f"{row.kind.tenant}/{row.item.id} ({row.status})"


# ----------------------------------------------------------------------------------------------------- tables


def _tables(store: Store, rows: list[Row]) -> Iterator[str]:
    """Every row is found by its name, its kind and its number."""
    for row in rows:
        if store.find(*row.ref) is not row:
            yield f"{_name(row)} is not found by its id"
        if store.kinds.get((row.kind.tenant, row.kind.queue, row.kind.lane, row.kind.type)) is not row.kind:
            yield f"{_name(row)} is of a kind that is not known"
    named = sum(len(found) if isinstance(found, Namesakes) else 1 for found in store.items.values())
    if named != len(rows):
        yield f"{named} ids for {len(rows)} items"
    if sorted(row.number for row in rows) != [row.number for row in rows]:
        yield "the log is not in order"
    if store.gone != len(store.log) - len(rows):
        yield f"{store.gone} rows are said to be gone, {len(store.log) - len(rows)} are"
    yield from _counts(store, rows)


def _counts(store: Store, rows: list[Row]) -> Iterator[str]:
    counted: dict[object, Counter[Status]] = defaultdict(Counter)
    for row in rows:
        counted[row.kind][row.status] += 1
    for kind in store.kinds.values():
        said = {status: count for status, count in kind.counts.items() if count}
        if said != counted[kind]:
            yield f"{kind.tenant}/{kind.queue}/{kind.lane}/{kind.type}: {said}, counted {counted[kind]}"
        if kind not in store.types.get(kind.type, {}):
            yield f"{kind.type}: a kind is missing"
    if sum(len(kinds) for kinds in store.types.values()) != len(store.kinds):
        yield "there are types of kinds that are no more"
    standing = Counter((kind.queue, kind.tenant, kind.lane) for kind in store.kinds.values())
    if standing != {where: line.kinds for where, line in store.lines.items()}:
        yield "lines and kinds do not agree"


# ----------------------------------------------------------------------------------------------------- places


def _places(store: Store, rows: list[Row]) -> Iterator[str]:
    """Every open row is in the one place where its status, and its doom, will be noticed."""
    doomed = set(store.doomed)
    for row in rows:
        places = _found_in(store, row, doomed)
        if row.ended_at is None and len(places) != 1:
            yield f"{_name(row)}, doom {row.doom}, is in {places or 'no place'}"
        if row.ended_at is not None and places:
            yield f"{_name(row)} has ended and is in {places}"
    for row in doomed:
        if row.gone or row.doom is None:
            yield f"{_name(row)} is among the doomed, and is not"
    if sum(row.doom is not None and not row.token for row in rows) != len(doomed):
        yield "some of the doomed are not to be found"


def _found_in(store: Store, row: Row, doomed: set[Row]) -> list[str]:
    pile, kind = row.pile, row.kind
    parked = store.parked.get(kind.type)
    aside = None if parked is None else parked.find(kind.queue, kind.tenant, kind.lane)
    agenda = store.due.queues.get(kind.queue)
    scheduled = None if agenda is None else agenda.tenants.get(kind.tenant)
    held = row.worker is not None and row.token in row.worker.held
    waits = row.status == "blocked" and row.doom is None and row.gate is not None
    found = {
        "its line": row.status == "ready" and pile is not None and pile is kind.line,
        "what is parked": row.status == "ready" and pile is not None and pile is aside,
        "what is due later": row.status == "scheduled" and pile is not None and pile is scheduled,
        "what is doomed": row in doomed,
        "a worker's hands": held and (row.status == "running" or row.doom is not None),
        "a gate": waits and row.gate is not None and row.gate.met < row.gate.need,
    }
    return [place for place, there in found.items() if there]


def _piles(store: Store, rows: list[Row]) -> Iterator[str]:
    """Every pile holds what says to be in it, and as many as it says; every line takes turns."""
    inside: Counter[object] = Counter(row.pile for row in rows if row.pile is not None)
    lines = [*store.ready, *(line for parked in store.parked.values() for line in parked)]
    agendas = store.due.queues.values()
    waiting = [pile for agenda in agendas for pile in agenda.tenants.values()]
    for pile in (*lines, *waiting, store.fading.rows):
        held = list(pile)
        if not len(held) == len(pile) == inside.pop(pile, 0):
            yield f"a pile of {len(pile)} holds {len(held)}"
        if any(row.pile is not pile for row in held):
            yield "a pile holds a row that is elsewhere"
    for bundle in store.fading.bundles:
        if bundle.size != inside.pop(bundle, 0):
            yield f"a bundle of {bundle.size} holds another number"
    if inside:
        yield f"{inside.total()} rows are in piles that nobody finds"
    for each in (store.ready, *store.parked.values()):
        yield from _turns(store, each)
    if any(parked.empty for parked in store.parked.values()):
        yield "nothing is parked under a type, and it is still there"


def _turns(store: Store, lines: Lines) -> Iterator[str]:
    for line in lines:
        if not len(line) or lines.find(line.queue, line.tenant, line.lane) is not line:
            yield f"{_place(line)} takes turns, and is empty or not to be found"
        if not isinstance(lines.queues.get(line.queue), type(lines.queues)):
            yield f"{_place(line)} has no queue"
    for queue, tenant in store.paused:
        if tenant is None and queue in lines.queues.turns:
            yield f"{queue} is paused and takes turns"


def _place(line: Line) -> str:
    return f"{line.queue}/{line.tenant}/{line.lane}"


# ------------------------------------------------------------------------------------------------------ gates


def _gates(store: Store, rows: list[Row]) -> Iterator[str]:
    """What a gate has counted is what has ended; whoever waits is known to those it waits for."""
    waiters: dict[Ref, set[Row]] = defaultdict(set)
    for row in rows:
        if row.gate is not None:
            for id in row.item.after:
                waiters[row.kind.tenant, id].add(row)
            yield from _gate(store, row)
    known = {ref: set(found) for ref, found in store.waiters.items()}
    if known != waiters:
        yield f"waiters: {len(known)} refs, counted {len(waiters)}"


def _gate(store: Store, row: Row) -> Iterator[str]:
    found = row.gate
    assert found is not None
    if row.ended_at is not None:
        yield f"{_name(row)} has ended and waits"
    named = Counter(row.item.after)
    if found.open != sum(found.pending.values()) or any(named[id] != n for id, n in found.pending.items()):
        yield f"{_name(row)}: {found.open} open, {found.pending} pending of {row.item.after}"
    for id in named:
        other = store.find(row.kind.tenant, id)
        if other is not None and other.ended_at is not None and id in found.pending:
            yield f"{_name(row)} waits for {_name(other)}"
    if not 0 <= found.met <= len(row.item.after) - found.open:
        yield f"{_name(row)}: {found.met} met and {found.open} open of {len(row.item.after)}"
    if row.status == "blocked" and row.doom is None and found.state != "waiting":
        yield f"{_name(row)} should be {found.state}"


# ----------------------------------------------------------------------------------------------------- groups


def _groups(store: Store, rows: list[Row]) -> Iterator[str]:
    """Counters equal recounts, and a group has ended if and only if nobody in it is open."""
    members: dict[Group, list[Row]] = defaultdict(list)
    for row in rows:
        if row.group is not None:
            members[row.group].append(row)
        elif row.contributed and row.status != "success":
            yield f"{_name(row)} contributed"
    registered = [group for groups in store.groups.values() for group in groups.values()]
    if not {*registered} <= members.keys():
        yield "there are groups without members"
    for group, counted in members.items():
        yield from _group(group, counted)


def _group(group: Group, members: list[Row]) -> Iterator[str]:
    name = f"group {group.tenant}/{group.id}"
    open = sum(row.ended_at is None for row in members)
    if {*members} != group.members.keys():
        yield f"{name}: {len(group.members)} members, counted {len(members)}"
    if group.open != open or (group.ended_at is None) != (open > 0):
        yield f"{name}: {group.open} open, ended {group.ended_at}, counted {open}"
    if any(row.kind.tenant != group.tenant for row in members):
        yield f"{name} has members of other tenants"
    for status, said in (("dead", group.dead), ("cancelled", group.cancelled)):
        if {row for row in members if row.status == status} != said.keys():
            yield f"{name}: {len(said)} {status}"
    if group.contributed != (group.version > 0) or (group.final and not group.contributed):
        yield f"{name}: version {group.version}, contributed {group.contributed}, final {group.final}"
    if open and group.spot is not None:
        yield f"{name} is open and fades"


# ---------------------------------------------------------------------------------------------- workers, keys


def _workers(store: Store, rows: list[Row]) -> Iterator[str]:
    """Leases are held by workers that are known; slots add up."""
    held: dict[Worker, dict[int, str]] = defaultdict(dict)
    for row in rows:
        if (row.token != 0) != (row.worker is not None) or (row.status == "running") > (row.token != 0):
            yield f"{_name(row)}: token {row.token}, worker {row.worker}"
        if row.worker is not None:
            held[row.worker][row.token] = row.item.id
    slots: Counter[str] = Counter()
    for worker in store.workers.values():
        if {token: lease.id for token, lease in worker.held.items()} != held.pop(worker, {}):
            yield f"worker {worker.id} holds {len(worker.held)}"
        if worker.spot is None or worker.spot[0] > worker.until:
            yield f"worker {worker.id} would never lapse"
        slots.update(worker.slots)
    if held:
        yield f"{len(held)} workers hold leases and are not known"
    if slots != store.permits.slots:
        yield f"slots {store.permits.slots}, counted {slots}"
    knows = Counter(type for worker in store.workers.values() for type in worker.types or ())
    if knows != store.known or store.know_all != sum(it.types is None for it in store.workers.values()):
        yield "what the workers know was not counted right"


def _keys(store: Store, rows: list[Row]) -> Iterator[str]:
    """A key is held by the item that was stored last with it, for as long as that exists."""
    for (tenant, type, key), row in store.keys.items():
        if (row.gone, row.kind.tenant, row.kind.type, row.item.key) != (False, tenant, type, key):
            yield f"key {key} of {tenant}/{type} is held by {_name(row)}"
    last = {(row.kind.tenant, row.kind.type, row.item.key): row for row in rows if row.item.key is not None}
    for (tenant, type, key), row in store.keys.items():
        if last.get((tenant, type, key)) is not row:
            yield f"key {key} of {tenant}/{type} is held by {_name(row)}, who was not the last to get it"


def _families(store: Store, rows: list[Row]) -> Iterator[str]:
    """Parents and children know each other; labels lead to those that bear them."""
    for row in rows:
        for kid in row.kids or ():
            if kid.up is not row or kid.gone:
                yield f"{_name(kid)} does not know its parent {_name(row)}"
        if row.up is not None and row not in (row.up.kids or ()):
            yield f"{_name(row)} is not known to its parent"
    labelled: dict[Ref, set[Row]] = defaultdict(set)
    for row in rows:
        if row.item.workflow is not None:
            labelled[row.kind.tenant, row.item.workflow].add(row)
    if {ref: set(found) for ref, found in store.workflows.items()} != labelled:
        yield "workflows do not agree with their items"


def _ends(store: Store, rows: list[Row]) -> Iterator[str]:
    """Whatever has a deadline is watched, whatever may be pruned will be."""
    if {row for row in rows if row.status == "dead"} != store.dead.keys():
        yield f"{len(store.dead)} dead"
    for row in rows:
        ended = row.ended_at is not None
        if ended != (row.status in ("success", "dead", "cancelled")):
            yield f"{_name(row)}: ended at {row.ended_at}"
        watched = row.expiry is not None and row.expiry.spot is not None
        wanted = row.deadline is not None and not ended and row.doom is None and not row.overdue
        if watched != wanted:
            yield f"{_name(row)}: deadline {row.deadline}, watched: {watched}"
        fades = row.pile is not None or row.faded or (row.group is not None and row.group.spot is not None)
        if ended and not row.group_open and row.keep is not None and not fades:
            yield f"{_name(row)} would never be pruned"
    if len(store.deadlines) != sum(row.expiry is not None for row in rows):
        yield f"{len(store.deadlines)} deadlines are watched"
