"""The audit of a Redis store: read all keys of a namespace, recount everything, and say what does not agree.

It reads bytes with code of its own, so that a mistake in the formats is found too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct, unpack, unpack_from
from typing import Any

import hiredis
from msgspec import msgpack

from tests.support.valkey import Client
from treadle.backends.redis.scripts import RedisScript
from treadle.store.rules.listing import OUTCOMES, outcome_of

KILLING = 3
GROUP_MARK = "\x1e"
UNSATISFIABLE = 5
STATUSES = b"bwrRSDC"
ENDED = b"SDC"

ITEM = Struct(">B4s6sd4sd")
STATE = Struct(">c8sBBBIIHH6sdddddd")
GROUP = Struct(">IdBIIddI6s4s")
NO_GROUP = bytes(6)

COUNTERS = {"seq", "names", "tokens", "served", "batches", "worker_numbers", "audit_numbers", "step_numbers"}
OTHERS = {
    *("item", "extra", "state", "past", "changers", "id", "key", "keyed", "workflows", "children", "pages"),
    *("workflow_roots", "roots_of_workflow"),
    *("text", "uses", "kind", "kinds", "counts"),
    *("ready", "ring", "turns", "due", "due_first", "doomed", "lanes", "lanes_ready", "deadlines"),
    *("groups", "group_ids", "members", "nested", "deaths", "cancels", "listed", "left"),
    *("waiters", "tolerant", "unmet", "gates", "fades", "fade"),
    *("dead", "cancelled", "killing", "marks", "marked", "marks_last"),
    *("released", "mark_releases"),
    *("workers", "workers_until", "worker_info", "worker_release", "releases", "held", "paused", "orders"),
    *("known_types", "unknown_since"),
    *("limits", "limit_names", "limits_idle", "slots", "permits", "permit_leases", "permit_index"),
    *("claimed", "claimed_until", "arriving", "schedules", "removed_schedules", "schedule_runs"),
    *("stats", "stats_at", "audits"),
    *("steps", "recorded", "signal_keys"),
    *("stages", "stage_rows", "staged"),
    *("meta", "shift", "wake", "writes", "unknown_searches"),
}


def audit(client: Client, prefix: str, *, may_have: Iterable[str] = ()) -> list[str]:
    """The inconsistencies of a namespace in the database that the client has selected. There are none, unless
    there is a bug. `may_have`: further keys."""
    store = read(client, prefix)
    problems: list[str] = []
    for key in sorted(store.keys.keys() - COUNTERS - OTHERS - {*may_have}):
        problems.append(f"the key {key} is unknown to the audit")
    try:
        for check in CHECKS:
            problems += check(store)
    except Exception as error:  # a broken store must not hide what was found before
        problems.append(f"the audit failed: {error!r}")
        if not problems[:-1]:
            raise
    return [*problems, *_missing_keys(client, prefix)]


def _missing_keys(client: Client, prefix: str) -> Iterator[str]:
    """The quick check of the backend finds nothing where nothing is wrong."""
    source = RedisScript("missing_keys").source
    keys = [f"{{{prefix}}}:{name}" for name in source.keys]
    try:
        for name in client.call("EVAL", source.text, len(keys), *keys):
            yield f"the backend says that {name.decode()} is missing"
    except hiredis.ReplyError as error:
        if not str(error).startswith("STAGED"):
            raise


# ---------------------------------------------------------------------------------------------------- reading


@dataclass(eq=False)
class Kind:
    k: bytes
    tenant: bytes
    queue: bytes
    lane: bytes
    type: bytes
    names: tuple[str, str, str, str]

    @property
    def line(self) -> bytes:
        return self.queue + self.tenant + self.lane


@dataclass(eq=False)
class Row:
    n: bytes
    id: str
    kind: Kind
    group: bytes
    queued_at: float
    priority: bytes
    keep: float
    keep_dead: float | None
    extra: dict[str, Any]
    short: bool = True
    status: bytes = b"r"
    token: bytes = bytes(8)
    verdict: int = 0
    reason: int = 0
    losses: int = 0
    place: bytes = b""
    due_at: float = 0.0
    ended_at: float | None = None
    deadline: float | None = None
    worker: str = ""
    mark: str = ""
    begun: bool = True
    contributed: bool = False
    failed_group: bool = False
    overdue: bool = False
    prune_pending: bool = False
    owned: bool = False
    holds_lane: bool = False
    suspended: bool = False
    has_steps: bool = False
    has_records: bool = False

    def __str__(self) -> str:
        return f"{self.kind.names[0]}/{self.id} ({self.status.decode()})"

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def after(self) -> list[str]:
        return self.extra.get("a", [])

    @property
    def need(self) -> int:
        return self.extra.get("n", 0)

    @property
    def group_id(self) -> str:
        return self.extra.get("g") or self.id

    @property
    def tolerates(self) -> bool:
        return bool(self.extra.get("d")) or self.need < len(self.after)

    @property
    def kept_for(self) -> float | None:
        return self.keep_dead if self.status == b"D" else self.keep

    @property
    def lane_name(self) -> bytes:
        return self.kind.type + self.kind.tenant + self.kind.lane

    def waits_as(self, name: str) -> bytes:
        data = name.encode()
        return self.kind.tenant + len(data).to_bytes(2, "big") + data


@dataclass(eq=False)
class Group:
    g: bytes
    open: int
    version: int
    contributed: bool
    final: bool
    closer: bool
    failed: int
    cancellations: int
    ended_at: float | None
    keep: float | None
    members: int
    outer: bytes | None
    tenant: bytes
    id: str
    found: list[Row] = field(default_factory=list[Row])

    @property
    def outcome(self) -> int:
        counts = self.open, self.failed, self.cancellations
        return OUTCOMES.index(outcome_of(*counts, contributed=self.contributed, final=self.final))

    def __str__(self) -> str:
        return f"group {self.id} ({int.from_bytes(self.g, 'big')})"


@dataclass(eq=False)
class Store:
    keys: dict[str, Any]
    kinds: dict[bytes, Kind] = field(default_factory=dict[bytes, Kind])
    rows: dict[bytes, Row] = field(default_factory=dict[bytes, Row])
    groups: dict[bytes, Group] = field(default_factory=dict[bytes, Group])

    def hash(self, name: str) -> dict[bytes, bytes]:
        return self.keys.get(name, {})

    def set(self, name: str) -> dict[bytes, float]:
        return self.keys.get(name, {})

    def number(self, name: str) -> int:
        return int(self.keys.get(name, 0))

    def find(self, tenant: bytes, id: str) -> Row | None:
        places = self.hash("id").get(id.encode(), b"")
        for at in range(0, len(places), 10):
            if places[at + 6 : at + 10] == tenant:
                return self.rows.get(places[at : at + 6])
        return None

    def find_group(self, tenant: bytes, id: str) -> Group | Row | None:
        root = self.find(tenant, id)
        if root is not None and root.group == root.n:
            return self.groups.get(root.n, root)
        found = [each for each in self.groups.values() if each.id == id and each.tenant == tenant]
        return found[0] if found else None

    def ended(self, tenant: bytes, name: str) -> bytes | None:
        """How an item, or a group, has ended; None if it is open or does not exist."""
        if not name.startswith(GROUP_MARK):
            row = self.find(tenant, name)
            return row.status if row is not None and row.ended else None
        found = self.find_group(tenant, name[1:])
        if found is None or found.ended_at is None:
            return None
        if isinstance(found, Row):
            return b"D" if found.failed_group or found.status == b"C" else b"S"
        return b"D" if found.failed or found.cancellations else b"S"

    def kept_since(self, group: Group | None) -> float | None:
        latest = 0.0
        while group is not None:
            if group.ended_at is None:
                return None
            latest = max(latest, group.ended_at)
            group = self.groups.get(group.outer) if group.outer else None
        return latest


def read(client: Client, prefix: str) -> Store:
    beginning = f"{{{prefix}}}:"
    found = read_keys(client, sorted(client.call("KEYS", "*")))
    names = {key.decode(): value for key, value in found.items()}
    store = Store(
        {name.removeprefix(beginning): _value(*names[name]) for name in names if name.startswith(beginning)}
    )
    store.hash("held").pop(bytes(6), None)  # it only makes the hash large
    for k, data in store.hash("kinds").items():
        store.kinds[k] = _kind(k, data)
    for n, data in sorted(store.hash("item").items()):
        store.rows[n] = _row(store, n, data)
    for g, data in store.hash("groups").items():
        store.groups[g] = _group(g, data)
    for row in store.rows.values():
        if row.group in store.groups:
            store.groups[row.group].found.append(row)
    return store


READS = {"hash": ("HGETALL",), "zset": ("ZRANGE", 0, -1, "WITHSCORES"), "string": ("GET",)}


def read_keys(client: Client, keys: Sequence[bytes]) -> dict[bytes, tuple[str, Any]]:
    """The type and the content of each key, as the server answers them."""
    types: list[Any] = client.call_all([("TYPE", key) for key in keys])
    kinds: list[str] = [type.decode() if isinstance(type, bytes) else type for type in types]
    commands = [(READS[kind][0], key, *READS[kind][1:]) for key, kind in zip(keys, kinds, strict=True)]
    return dict(zip(keys, zip(kinds, client.call_all(commands), strict=True), strict=True))


def _value(kind: str, value: Any) -> Any:
    if kind == "hash":
        return dict(zip(value[::2], value[1::2], strict=True))
    if kind == "zset":
        return {member: float(score) for member, score in zip(value[::2], value[1::2], strict=True)}
    return value


def _kind(k: bytes, data: bytes) -> Kind:
    names: list[str] = []
    at = 16
    for _ in range(4):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        names.append(data[at + 2 : end].decode())
        at = end
    tenant, queue, lane, type = names
    return Kind(k, data[:4], data[4:8], data[8:12], data[12:16], (tenant, queue, lane, type))


def _row(store: Store, n: bytes, data: bytes) -> Row:
    flags, k, group, queued_at, priority, keep = ITEM.unpack_from(data)
    at = ITEM.size
    keep_dead = None
    if flags & 2:
        (keep_dead,) = unpack_from(">d", data, at)
        at += 8
    id = data[at + 1 : at + 1 + data[at]].decode()
    extra = msgpack.decode(store.hash("extra")[n]) if flags & 1 else {}
    row = Row(
        n, id, store.kinds[k], group, queued_at, priority, keep, keep_dead, extra, place=n, due_at=queued_at
    )
    state = store.hash("state").get(n)
    if state is not None:
        _read_state(row, state)
    return row


def _read_state(row: Row, state: bytes) -> None:
    if state[:1] in b"pqP":
        row.token, (row.worker, at) = state[1:9], _text(state, 17)
        row.owned, row.begun, row.status = state[:1] != b"P", state[:1] != b"q", b"R"
        if state[:1] == b"P":
            row.status = b"S"
            row.ended_at, _, flags = unpack_from(">ddB", state, at)
            row.contributed = bool(flags & 1)
        return
    row.short = False
    row.status, row.token, flags, row.verdict, row.reason, _, _, row.losses = STATE.unpack_from(state)[:8]
    redrives, row.place, row.due_at = STATE.unpack_from(state)[8:11]
    row.suspended, row.has_steps, row.has_records = (bool(redrives & bit) for bit in (32768, 16384, 8192))
    row.ended_at, row.deadline = (value or None for value in STATE.unpack_from(state)[14:16])
    row.begun, row.contributed, row.failed_group = bool(flags & 1), bool(flags & 2), bool(flags & 8)
    row.overdue, row.prune_pending = bool(flags & 16), bool(flags & 32)
    row.owned, row.holds_lane = bool(flags & 64), bool(flags & 128)
    row.worker, at = _text(state, STATE.size)
    row.mark, _ = _text(state, at + 1 + 8 * state[at])


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    return data[at + 1 : end].decode(), end


def _group(g: bytes, data: bytes) -> Group:
    open, version, flags, failed, cancelled, ended_at, keep, members, outer, tenant = GROUP.unpack_from(data)
    id, _ = _text(data, GROUP.size)
    return Group(
        g,
        open,
        version,
        bool(flags & 1),
        bool(flags & 2),
        bool(flags & 8),
        failed,
        cancelled,
        ended_at or None,
        keep if flags & 16 else None,
        members,
        outer if outer != NO_GROUP else None,
        tenant,
        id,
    )


# ------------------------------------------------------------------------------------------------------- rows


def same(what: str, stored: Iterable[Any], counted: Iterable[Any]) -> Iterator[str]:
    """Say how two sets differ."""
    stored, counted = {*stored}, {*counted}
    if lost := counted - stored:
        yield f"{what}: {len(lost)} missing, such as {min(lost, key=repr)!r}"
    if extra := stored - counted:
        yield f"{what}: {len(extra)} too many, such as {min(extra, key=repr)!r}"


def data_of_rows(store: Store) -> Iterator[str]:
    """Every row is found by its id, and nothing is stored of rows that are gone."""
    ids: dict[bytes, bytes] = defaultdict(bytes)
    for row in store.rows.values():
        ids[row.id.encode()] += row.n + row.kind.tenant
        if row.ended != (row.ended_at is not None):
            yield f"{row}: ended at {row.ended_at}"
        if row.mark and row.status != b"D":
            yield f"{row} has a mark, and is not dead"
        if row.status not in STATUSES:
            yield f"{row} has a status that does not exist"
    yield from same("id", store.hash("id").items(), ids.items())
    for name in ("extra", "state", "past", "changers", "gates", "held"):
        for n in store.hash(name).keys() - store.rows.keys():
            yield f"{name} has data of an item that is gone: {n.hex()}"
    with_extra = {row.n for row in store.rows.values() if row.extra}
    if with_extra != store.hash("extra").keys():
        yield "extra does not agree with the flags of the items"
    for name, highest in (("seq", store.rows), ("names", store.kinds)):
        if highest and store.number(name) < int.from_bytes(max(highest), "big"):
            yield f"the counter {name} is behind"


def pages(store: Store) -> Iterator[str]:
    counted: Counter[str] = Counter()
    for row in store.rows.values():
        page = int.from_bytes(row.n, "big") // 1000
        counted[f"{page}"] += 1
        if row.ended:
            counted[f"{page}e"] += 1
    stored = {page.decode(): int(count) for page, count in store.hash("pages").items()}
    yield from same("pages", ((page, n) for page, n in stored.items() if n), counted.items())
    for page in stored.keys() - counted.keys():
        if f"{page.rstrip('e')}" not in counted:
            yield f"page {page} is empty, and still there"


def kinds(store: Store) -> Iterator[str]:
    """Kinds and texts have numbers, and counters equal a recount."""
    texts: dict[str, bytes] = {}
    uses: Counter[str] = Counter()
    for kind in store.kinds.values():
        for text, number in zip(kind.names, (kind.tenant, kind.queue, kind.lane, kind.type), strict=True):
            if texts.setdefault(text, number) != number:
                yield f"the text {text} has two numbers"
            uses[text] += 1
    yield from same("text", store.hash("text").items(), ((text.encode(), n) for text, n in texts.items()))
    yield from same("uses", ((text.decode(), int(n)) for text, n in store.hash("uses").items()), uses.items())
    names = {
        "\0".join(kind.names).encode(): kind.k + kind.tenant + kind.queue + kind.lane + kind.type
        for kind in store.kinds.values()
    }
    yield from same("kind", store.hash("kind").items(), names.items())
    counted = Counter(row.kind.k + row.status for row in store.rows.values())
    stored = {name: int(count) for name, count in store.hash("counts").items()}
    yield from same("counts", ((name, n) for name, n in stored.items() if n), counted.items())
    for name in stored:
        if name[:4] not in store.kinds:
            yield f"there is a counter of a kind that is gone: {name!r}"


def empty_kinds(store: Store) -> Iterator[str]:
    for kind in store.kinds.values():
        if not any(row.kind is kind for row in store.rows.values()):
            yield f"no item has the kind {kind.names}, and it is still there"


# ----------------------------------------------------------------------------------------------------- places


def places(store: Store) -> Iterator[str]:
    """Every open row is in the one place where its status and verdict are looked at."""
    expected: dict[str, set[bytes]] = defaultdict(set)
    for row in store.rows.values():
        kind = row.kind
        if row.ended:
            continue
        if row.owned:
            expected["held"].add(row.n)
            if row.status != b"R" and not row.verdict:
                yield f"{row} is leased"
        elif row.status == b"R":
            yield f"{row} runs, and is not leased"
        elif row.verdict:
            expected["doomed"].add(kind.type + kind.queue + kind.tenant + row.n)
        elif row.status == b"r":
            expected["ready"].add(kind.k + row.priority + row.place + row.n)
        elif row.status == b"w":
            expected["due"].add(kind.queue + kind.tenant + unpack_double(row.due_at) + row.n)
        elif not row.after:
            yield f"{row} is blocked, and waits for nothing"
    for name in ("doomed", "ready", "due"):
        yield from same(name, store.set(name), expected[name])
    yield from same("held", store.hash("held"), expected["held"])
    first: dict[bytes, float] = {}
    for member in sorted(expected["due"]):
        first.setdefault(member[:8], unpack(">d", member[8:16])[0])
    yield from same("due_first", store.set("due_first").items(), first.items())


def unpack_double(value: float) -> bytes:
    return Struct(">d").pack(max(value, 0.0))


def rings(store: Store) -> Iterator[str]:
    """Every kind with ready rows has a turn, and no other has."""
    nodes: dict[bytes, tuple[bytes, bytes]] = {}
    types: set[bytes] = set()
    for member in store.set("ready"):
        kind = store.kinds.get(member[:4])
        if kind is None:
            yield f"a ready item has a kind that is gone: {member!r}"
            continue
        type, queue, tenant = kind.type, kind.queue, kind.tenant
        nodes[b"K" + kind.k] = b"L" + type + queue + tenant, kind.lane + kind.k
        nodes[b"T" + type + queue + tenant] = b"T" + type + queue, tenant
        nodes[b"Q" + type + queue] = b"Q" + type, queue
        types.add(b"Y" + type + kind.names[3].encode())
    turns = store.hash("turns")
    yield from same("turns", turns, nodes)
    members = {prefix + turns.get(node, b"") + child for node, (prefix, child) in nodes.items()}
    yield from same("ring", store.set("ring"), members | types)
    highest = max(turns.values(), default=bytes(6))
    if store.number("served") < int.from_bytes(highest, "big"):
        yield "the counter served is behind"


def strict_lanes(store: Store) -> Iterator[str]:
    holders = [row for row in store.rows.values() if row.holds_lane]
    yield from same("lanes", store.hash("lanes").items(), ((row.lane_name, row.n) for row in holders))
    for row in holders:
        if row.ended:
            yield f"{row} has ended and holds a lane"
    ready = {row.n for row in holders if row.status == b"r" and not row.verdict and not row.owned}
    yield from same("lanes_ready", store.set("lanes_ready"), ready)


def deadlines(store: Store) -> Iterator[str]:
    watched = {
        (row.n, row.deadline)
        for row in store.rows.values()
        if row.deadline is not None and not row.ended and not row.verdict and not row.overdue
    }
    yield from same("deadlines", store.set("deadlines").items(), watched)


# ----------------------------------------------------------------------------------------------- dependencies


def dependencies(store: Store) -> Iterator[str]:
    """Gates have counted what has ended. Rows that wait are registered with their prerequisites."""
    waiters: set[bytes] = set()
    unmet: set[bytes] = set()
    tolerant: set[bytes] = set()
    waiting = {row.n for row in store.rows.values() if row.after and not row.ended}
    yield from same("gates", store.hash("gates"), waiting)
    for row in store.rows.values():
        names = {row.waits_as(name) + row.n for name in row.after}
        if row.after and not row.ended:
            waiters |= names
            yield from _gate(store, row)
        elif row.after:
            if row.reason == UNSATISFIABLE:
                unmet |= names
            if row.tolerates:
                tolerant |= names
    yield from same("waiters", store.set("waiters"), waiters)
    yield from same("unmet", store.set("unmet"), unmet)
    yield from same("tolerant", store.set("tolerant"), tolerant)


def _gate(store: Store, row: Row) -> Iterator[str]:
    data = store.hash("gates").get(row.n)
    if data is None:
        return
    met, open, pending = *unpack_from(">II", data), data[8:]
    if len(pending) != len(row.after) or pending.count(b"1") != open:
        yield f"{row}: {open} open, {pending!r} pending of {row.after}"
    by_name: dict[str, int] = {}
    for name, letter in zip(row.after, pending, strict=False):
        if by_name.setdefault(name, letter) != letter:
            yield f"{row} waits for {name} and does not"
        ended = store.ended(row.kind.tenant, name)
        if letter == ord("1") and ended is not None:
            yield f"{row} waits for {name}, which has ended: {ended.decode()}"
    if not 0 <= met <= len(row.after) - open:
        yield f"{row}: {met} met and {open} open of {len(row.after)}"
    if row.status == b"b" and not row.verdict and not row.owned:
        if met >= row.need:
            yield f"{row} should be released"
        elif met + open < row.need:
            yield f"{row} should be doomed"


# ----------------------------------------------------------------------------------------------------- groups


def groups(store: Store) -> Iterator[str]:
    """Counters equal recounts. A group has ended if and only if none of its members is open."""
    ids: dict[bytes, bytes] = defaultdict(bytes)
    members: set[bytes] = set()
    nested: set[bytes] = set()
    listed: set[bytes] = set()
    for group in sorted(store.groups.values(), key=lambda group: group.g):
        ids[group.id.encode()] += group.g + group.tenant
        members |= {group.g + row.n for row in group.found}
        if group.outer is not None:
            nested.add(group.outer + group.g)
        if group.outer is None and group.members + int(store.hash("left").get(group.g, 0)) > 1:
            listed.add(str(group.outcome).encode() + group.g)
        yield from _group_counters(group, store.hash("changers"))
        yield from _closer(store, group)
    for row in store.rows.values():
        if row.group not in store.groups and row.group != row.n:
            yield f"{row} is in a group that does not exist"
        if row.group in store.groups and row.group_id != store.groups[row.group].id:
            yield f"{row} says that it is in {row.group_id}, and is in {store.groups[row.group]}"
        if row.group in store.groups and row.contributed:
            yield f"{row} contributed as if it were alone"
        if row.group not in store.groups and row.contributed and row.status != b"S":
            yield f"{row} contributed"
    stored_ids = {id: b"".join(sorted(split(places, 10))) for id, places in store.hash("group_ids").items()}
    yield from same("group_ids", stored_ids.items(), ids.items())
    yield from same("members", store.set("members"), members)
    yield from same("nested", store.set("nested"), nested)
    yield from same("listed", store.set("listed"), listed)
    yield from same("left", store.hash("left").keys(), store.hash("left").keys() & store.groups.keys())
    yield from _ends_in_groups(store)


def split(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def _group_counters(group: Group, changers: Container[bytes]) -> Iterator[str]:
    """`changers`: the rows that have taken over the data of others. Their group does not take over how long
    they are kept, on any backend."""
    open = sum(not row.ended for row in group.found)
    if group.members != len(group.found):
        yield f"{group}: {group.members} members, counted {len(group.found)}"
    if not group.found and not group.closer:
        yield f"{group} has no members"
    if group.open != open or (group.ended_at is None) != (open > 0):
        yield f"{group}: {group.open} open, ended {group.ended_at}, counted {open}"
    if any(row.kind.tenant != group.tenant for row in group.found):
        yield f"{group} has members of other tenants"
    if group.failed < sum(row.failed_group for row in group.found):
        yield f"{group}: {group.failed} failed, more are there"
    if group.cancellations < sum(row.status == b"C" for row in group.found):
        yield f"{group}: {group.cancellations} cancelled, more are there"
    if group.contributed != (group.version > 0) or (group.final and not group.contributed):
        yield f"{group}: version {group.version}, contributed {group.contributed}, final {group.final}"
    keeps = [
        min(row.keep, row.keep if row.keep_dead is None else row.keep_dead)
        for row in group.found
        if row.n not in changers
    ]
    if keeps and (group.keep is None or group.keep > min(keeps)):
        yield f"{group} is kept for {group.keep}, a member only for {min(keeps)}"


def _closer(store: Store, group: Group) -> Iterator[str]:
    closer = store.rows.get(group.g) if group.closer else None
    if group.closer and (closer is None or not closer.extra.get("c")):
        yield f"{group} says that an item closes it, and none does"
    if closer is not None and closer.group != group.outer:
        yield f"{group} is closed by {closer}, which is not in the group around it"


def _ends_in_groups(store: Store) -> Iterator[str]:
    deaths: set[bytes] = set()
    cancels: set[bytes] = set()
    for row in store.rows.values():
        if row.failed_group and row.status != b"D":
            yield f"{row} failed its group, and is not dead"
        if row.group in store.groups and row.ended_at is not None:
            entry = row.group + unpack_double(row.ended_at) + row.n
            if row.failed_group:
                deaths.add(entry)
            if row.status == b"C":
                cancels.add(entry)
    yield from same("deaths", store.set("deaths"), deaths)
    yield from same("cancels", store.set("cancels"), cancels)


# ------------------------------------------------------------------------------------------------------ steps

STEP = Struct(">6sIdIBddH")


def steps(store: Store) -> Iterator[str]:
    """Nothing is recorded of rows that do not say so, and each step, chunk and signal is there once."""
    of_rows: dict[bytes, dict[bytes, bytes]] = defaultdict(dict)
    for name, value in store.hash("recorded").items():
        of_rows[name[:6]][name[6:]] = value
    names: dict[bytes, set[bytes]] = defaultdict(set)
    for member in store.set("steps"):
        names[member[:6]].add(member[6:])
    keyed = {member[:6] for member in store.set("signal_keys")}
    for n in (of_rows.keys() | names.keys() | keyed) - store.rows.keys():
        yield f"steps of an item that is gone: {n.hex()}"
    for row in store.rows.values():
        own = of_rows[row.n]
        if row.has_steps != bool(names[row.n]):
            yield f"{row} says that it has steps: {row.has_steps}, and has {len(names[row.n])}"
        if not row.has_records and (row.n in keyed or any(name[:1] in b"pcm" for name in own)):
            yield f"{row} says that it has no mail, progress or stream"
        if row.suspended and row.status == b"b":
            yield f"{row} is suspended"
        yield from _steps_of(row, own, names[row.n])
        yield from _stream_and_mail_of(row, own)


def _steps_of(row: Row, own: dict[bytes, bytes], names: set[bytes]) -> Iterator[str]:
    stored = {name[1:]: STEP.unpack_from(value) for name, value in own.items() if name[:1] == b"s"}
    yield from same(f"steps of {row}", names, (step[0] + name for name, step in stored.items()))
    listed: list[bytes] = []
    data = own.get(b"w", b"")
    while data:
        end = 2 + int.from_bytes(data[:2], "big")
        listed.append(data[2:end])
        data = data[end:]
    yield from same(
        f"open steps of {row}", listed, (name for name, step in stored.items() if not step[4] & 8)
    )
    if len(listed) > len({*listed}) or own.get(b"w") == b"":
        yield f"{row} lists an open step twice, or none"


def _stream_and_mail_of(row: Row, own: dict[bytes, bytes]) -> Iterator[str]:
    chunks = {int.from_bytes(name[1:], "big") for name in own if name[:1] == b"c" and len(name) > 1}
    count = int.from_bytes(own.get(b"c", b""), "big")
    yield from same(f"chunks of {row}", chunks, range(1, count + 1))
    box, unread = own.get(b"m", bytes(4)), set[bytes]()
    data = box[4:]
    while data:
        unread.add(data[:6])
        data = data[8 + int.from_bytes(data[6:8], "big") :]
    if len(unread) != int.from_bytes(box[:4], "big") or own.get(b"m") == bytes(4):
        yield f"{row} has {len(unread)} signals, and counts others"
    if lost := {name[1:] for name in own if name[:1] == b"m" and len(name) > 1} - unread:
        yield f"{row} has the values of {len(lost)} signals that were taken"


# ----------------------------------------------------------------------------------------------------- labels


def labels(store: Store) -> Iterator[str]:
    """Keys, workflows, parents, and the indexes of ended rows."""
    keyed: set[bytes] = set()
    last: dict[bytes, bytes] = {}
    workflows: set[bytes] = set()
    roots: set[bytes] = set()
    roots_of: set[bytes] = set()
    for row in store.rows.values():
        key, workflow = row.extra.get("k"), row.extra.get("w")
        if key is not None:
            keyed.add(long(key) + row.n + row.kind.tenant)
            last[row.kind.tenant + row.kind.type + key.encode()] = row.n
        if workflow is not None:
            workflows.add(long(workflow) + row.n + row.kind.tenant)
        if workflow is not None and row.group == row.n:
            roots.add(row.n)
            roots_of.add(long(workflow) + row.kind.tenant + row.n)
    for key, n in store.hash("key").items():
        if last.get(key) != n:
            yield f"the key {key!r} is held by {n.hex()}, which was not stored last with it"
    yield from same("keyed", store.set("keyed"), keyed)
    yield from same("workflows", store.set("workflows"), workflows)
    yield from same("workflow_roots", store.set("workflow_roots"), roots)
    yield from same("roots_of_workflow", store.set("roots_of_workflow"), roots_of)
    children: set[bytes] = set()
    for row in store.rows.values():
        parent = store.find(row.kind.tenant, row.extra["p"]) if "p" in row.extra else None
        if parent is not None and parent.n < row.n:
            children.add(parent.n + row.n)
    yield from same("children", store.set("children"), children)


def long(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "big") + data


def ended_rows(store: Store) -> Iterator[str]:
    rows = store.rows.values()
    dead = [row for row in rows if row.status == b"D"]
    yield from same("dead", store.set("dead"), (row.n for row in dead))
    yield from same("cancelled", store.set("cancelled"), (row.n for row in rows if row.status == b"C"))
    killing = {row.n for row in rows if row.losses >= KILLING and not row.ended}
    yield from same("killing", store.set("killing"), killing)
    marks = {long(row.mark) + row.kind.tenant + unpack_double(row.ended_at or 0.0) + row.n for row in dead}
    yield from same("marks", store.set("marks"), marks)
    yield from same("marked", store.set("marked"), (long(row.mark) + row.n + row.kind.tenant for row in dead))
    yield from same("marks_last", store.set("marks_last"), {row.mark.encode() for row in dead})
    released = store.hash("released")
    for n in released.keys() - {row.n for row in dead}:
        yield f"released has {n!r}, which is not dead"
    shares: set[bytes] = set()
    for row in dead:
        if (release := released.get(row.n)) is not None:
            prefix = long(row.mark) + row.kind.tenant + bytes([len(release)]) + release
            shares.add(prefix + unpack_double(row.ended_at or 0.0) + row.n)
    yield from same("mark_releases", store.set("mark_releases"), shares)


def retention(store: Store) -> Iterator[str]:
    """Every row that may be pruned will be, when its time has come."""
    at: dict[bytes, float] = {}
    groups: dict[bytes, float] = {}
    batches: set[bytes] = set()
    rest: dict[bytes, tuple[bytes, float]] = {}
    for member, score in store.set("fades").items():
        letter, name = member[:1], member[1:]
        if letter == b"N":
            at[name] = min(score, at.get(name, score))
        elif letter == b"G":
            groups[name] = score
        elif letter == b"U":
            rest[name[:6]] = name[6:], score
        else:
            batches.add(name)
            for n in split(store.hash("fade").get(name, b""), 6):
                at[n] = min(score, at.get(n, score))
    yield from same("fade", store.hash("fade"), batches)
    for row in store.rows.values():
        group = store.groups.get(row.group)
        since = row.ended_at if group is None else store.kept_since(group)
        if since is None or row.ended_at is None or row.kept_for is None or row.prune_pending:
            continue
        found = [score for score in (at.get(row.n), groups.get(row.group)) if score is not None]
        found += [score for n, score in [rest.get(row.group, (b"\xff", 0.0))] if n <= row.n]
        if not found:
            yield f"{row} would never be pruned"
        elif min(found) > since + row.kept_for and (group is None or row.n not in store.hash("changers")):
            yield f"{row} would be pruned at {min(found)}, not at {since + row.kept_for}"


# ---------------------------------------------------------------------------------------------------- workers


def workers(store: Store) -> Iterator[str]:
    """Leases belong to workers that are stored, and permits add up."""
    names: dict[bytes, str] = {}
    types: Counter[bytes] = Counter()
    until: dict[bytes, float] = {}
    for name, data in store.hash("workers").items():
        until[name], number, flags, _ = unpack_from(">d4sBd", data)
        names[number] = name.decode()
        types.update(type for type in data[21:].split(b"\0") if type) if flags & 2 else types.update([b""])
    yield from same("workers_until", store.set("workers_until").items(), until.items())
    stored = {type: int(count) for type, count in store.hash("known_types").items()}
    yield from same("known_types", stored.items(), types.items())
    for name in store.hash("worker_release").keys() - until.keys():
        yield f"worker_release has {name!r}, which is no worker"
    for name in store.hash("worker_info").keys() - until.keys():
        yield f"there is information about the worker {name!r}, which is gone"
    for n, holder in store.hash("held").items():
        row = store.rows.get(n)
        if row is None:
            continue
        if names.get(holder[:4]) != row.worker:
            yield f"{row} is held by {names.get(holder[:4])}, and says {row.worker}"
        if (holder[4:] == b"d") != (row.verdict != 0):
            yield f"{row} is held as {holder[4:]!r}, and its verdict is {row.verdict}"
    tokens = [row.token for row in store.rows.values() if row.owned]
    if len(tokens) != len({*tokens}):
        yield "two leases have the same token"
    yield from _permits(store, names)


def _permits(store: Store, names: dict[bytes, str]) -> Iterator[str]:
    held: Counter[bytes] = Counter()
    index: set[bytes] = set()
    for owner, count in store.hash("permits").items():
        number, name = owner[:4], owner[4:]
        held[name] += int(count)
        index |= {b"N" + long(name.decode()) + number, b"W" + number + name}
        if number not in names or int(count) <= 0:
            yield f"{count!r} permits of {name!r} are held by {names.get(number)}"
    for lease, holder in store.hash("permit_leases").items():
        token, name = lease[:8], lease[8:]
        index |= {b"L" + long(name.decode()) + token, b"X" + holder[6:10] + token + name}
        if holder[6:10] not in names:
            yield f"a lease of a worker that is gone has a permit of {name!r}"
    slots = {name: int(count) for name, count in store.hash("slots").items()}
    yield from same("slots", slots.items(), held.items())
    yield from same("permit_index", store.set("permit_index"), index)
    limits = {*store.hash("limits"), *(name + b"\0slots" for name in slots)}
    yield from same("limit_names", store.set("limit_names"), limits)
    yield from same("limits_idle", store.set("limits_idle"), store.hash("limits"))
    yield from same("claimed_until", store.set("claimed_until"), store.hash("claimed"))


def records(store: Store) -> Iterator[str]:
    yield from same("stats_at", store.set("stats_at"), store.hash("stats"))
    numbers = [int.from_bytes(number, "big") for number in store.hash("audits") if number != b"first"]
    if numbers and store.number("audit_numbers") < max(numbers):
        yield "the counter audit_numbers is behind"


def stages(store: Store) -> Iterator[str]:
    """Items that are staged belong to a stage that can be forgotten."""
    found: dict[bytes, tuple[int, int]] = {}
    for stage, data in store.hash("stages").items():
        if stage == b"unfolding":
            yield "a stage was decided, and is not unfolded"
        else:
            found[stage] = unpack_from(">II", data, 9)
    rows = {(row[:8], int.from_bytes(row[8:], "big")) for row in store.hash("stage_rows")}
    counted = {(stage, number) for stage, (_, portions) in found.items() for number in range(portions)}
    yield from same("stage_rows", rows, counted)
    for id, stage in store.hash("staged").items():
        if stage not in found:
            yield f"{id!r} belongs to a stage that is gone"


CHECKS: tuple[Callable[[Store], Iterator[str]], ...] = (
    data_of_rows,
    pages,
    kinds,
    places,
    rings,
    strict_lanes,
    deadlines,
    dependencies,
    groups,
    labels,
    ended_rows,
    retention,
    workers,
    records,
    stages,
    steps,
)
