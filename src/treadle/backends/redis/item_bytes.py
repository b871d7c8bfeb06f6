"""The bytes of items, of their history, of new items and of leases.

`lua/lib/rows.lua` has the formats of what is stored; `new_items.lua` and `submit_plain.lua` read new items.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import lru_cache
from struct import Struct as Bytes
from typing import Final, TypeAlias

from msgspec import Struct, msgpack

from treadle.item import Attempt, DeathReason, ErrorInfo, Item, ItemState, Lease, Status, Verdict
from treadle.store.rules.settlement import failed_attempt, lost_attempt
from treadle.store.rules.times import is_held, shown_due

Argument: TypeAlias = bytes | str | int | float

STATUSES: Final[dict[bytes, Status]] = {
    b"b": "blocked",
    b"w": "scheduled",
    b"r": "ready",
    b"R": "running",
    b"S": "success",
    b"D": "dead",
    b"C": "cancelled",
}
LETTERS: Final[dict[Status, bytes]] = {status: letter for letter, status in STATUSES.items()}
VERDICTS: Final[tuple[Verdict | None, ...]] = (None, "expired", "unsatisfiable", "unknown_type")
REASONS: Final[tuple[DeathReason | None, ...]] = (
    None,
    "exhausted",
    "aborted",
    "expired",
    "lease_lost",
    "unsatisfiable",
    "undecodable",
    "bad_result",
    "unknown_type",
)

HIGHEST_PRIORITY: Final = 2**31 - 1
_ITEM: Final = Bytes(">B4s6sdId")
_SUSPENDED: Final = 1 << 15
_HAS_STEPS: Final = 1 << 14
_DEFERRED: Final = 2
"""Added to the byte before a result: the number of deferrals follows."""
_STATE: Final = Bytes(">c8sBBBIIHH6sdddddd")
_DOUBLE: Final = Bytes(">d")
_ENDED: Final = Bytes(">ddB")
_LENGTH: Final = Bytes(">H")


class ItemBody(Struct, array_like=True, frozen=True, gc=False):
    """What scripts do not look at, and what another item with the same key may replace."""

    input: bytes
    attempts: int | None
    options: bytes


class ItemExtra(Struct, frozen=True, gc=False, omit_defaults=True):
    """What few items have, and never changes: see `Rows.extra` in rows.lua."""

    k: str | None = None
    w: str | None = None
    wt: str | None = None
    p: str | None = None
    a: tuple[str, ...] = ()
    n: int = 0
    d: bool = False
    g: str | None = None
    c: bool = False
    x: bool = False


NO_EXTRA: Final = ItemExtra()

decode_body: Final = msgpack.Decoder(ItemBody).decode
_decode_extra: Final = msgpack.Decoder(ItemExtra).decode


# ---------------------------------------------------------------------------------------------------- sending


def pack_number(number: int) -> bytes:
    """The number of an item as scripts use it."""
    return number.to_bytes(6, "big")


def pack_token(token: int) -> bytes:
    return token.to_bytes(8, "big")


def pack_priority(priority: int) -> bytes:
    """In the order of bytes, a higher priority comes first."""
    return (HIGHEST_PRIORITY - priority).to_bytes(4, "big")


def pack_double(value: float) -> bytes:
    return _DOUBLE.pack(value)


def read_double(data: bytes) -> float:
    value: float = _DOUBLE.unpack(data)[0]
    return value


# ---------------------------------------------------------------------------------------------------- reading


class KindNames(Struct, frozen=True, gc=False):
    tenant: str
    queue: str
    lane: str
    type: str


@lru_cache(1024)
def read_kind(row: bytes) -> KindNames:
    names: list[str] = []
    at = 16
    for _ in range(4):
        (length,) = _LENGTH.unpack_from(row, at)
        names.append(row[at + 2 : at + 2 + length].decode())
        at += 2 + length
    return KindNames(*names)


class RedisItem(Struct, gc=False):
    """A row as scripts answer it (`Rows.raw`), read."""

    number: int
    id: str
    kind: KindNames
    group: bytes
    """The number of its group."""
    queued_at: float
    priority: int
    keep: float
    keep_dead: float | None
    body: ItemBody
    extra: ItemExtra
    history: bytes
    status: Status = "ready"
    token: int = 0
    owned: bool = False
    begun: bool = True
    verdict: Verdict | None = None
    reason: DeathReason | None = None
    attempt: int = 0
    failures: int = 0
    losses: int = 0
    deferrals: int = 0
    place: int = 0
    due_at: float = 0.0
    ready_at: float = 0.0
    claimed_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    deadline: float | None = None
    worker: str | None = None
    mark: str = ""
    result: bytes | None = None
    contributed: bool = False
    """For a root that is alone: it gave its group a value."""
    failed_group: bool = False
    has_steps: bool = False
    suspended: bool = False
    """It was suspended, and its last lease, if it has one since, goes on from there."""

    @property
    def group_id(self) -> str:
        return self.extra.g or self.id


def read_item(raw: Sequence[bytes]) -> RedisItem:
    """Read (n, item, state, kind, extra, past)."""
    n, item, state, kind, extra, past = raw
    flags, _, group, queued_at, priority, keep = _ITEM.unpack_from(item)
    at = _ITEM.size
    keep_dead: float | None = None
    if flags & 2:
        (keep_dead,) = _DOUBLE.unpack_from(item, at)
        at += 8
    body_at = at + 1 + item[at]
    found = RedisItem(
        int.from_bytes(n, "big"),
        item[at + 1 : body_at].decode(),
        read_kind(kind),
        group,
        queued_at,
        HIGHEST_PRIORITY - priority,
        keep,
        keep_dead,
        decode_body(item[body_at:]),
        read_extra(extra),
        past,
        due_at=queued_at,
        ready_at=queued_at,
    )
    found.place = found.number
    if state:
        _read_state(found, state)
    return found


def read_extra(extra: bytes) -> ItemExtra:
    return _decode_extra(extra) if extra else NO_EXTRA


def _read_state(found: RedisItem, state: bytes) -> None:
    letter = state[:1]
    if letter in b"pqP":
        _read_short_state(found, state, letter)
        return
    (
        status,
        token,
        flags,
        verdict,
        reason,
        found.attempt,
        found.failures,
        found.losses,
        redrives,
        place,
        found.due_at,
        found.ready_at,
        claimed_at,
        started_at,
        ended_at,
        deadline,
    ) = _STATE.unpack_from(state)
    found.status = STATUSES[status]
    found.token = int.from_bytes(token, "big")
    found.begun, found.owned = bool(flags & 1), bool(flags & 64)
    found.contributed, found.failed_group = bool(flags & 2), bool(flags & 8)
    found.verdict, found.reason = VERDICTS[verdict], REASONS[reason]
    found.place = int.from_bytes(place, "big")
    found.claimed_at, found.started_at = claimed_at or None, started_at or None
    found.ended_at, found.deadline = ended_at or None, deadline or None
    found.suspended, found.has_steps = bool(redrives & _SUSPENDED), bool(redrives & _HAS_STEPS)
    at = _STATE.size
    found.worker, at = _text(state, at)
    at += 1 + 8 * state[at]
    mark, at = _text(state, at)
    found.mark = mark or ""
    ending = state[at]
    if ending >= _DEFERRED:
        found.deferrals = int.from_bytes(state[at + 1 : at + 5], "big")
        at, ending = at + 4, ending - _DEFERRED
    if ending:
        found.result = state[at + 1 :]


def _read_short_state(found: RedisItem, state: bytes, letter: bytes) -> None:
    found.token = int.from_bytes(state[1:9], "big")
    (found.claimed_at,) = _DOUBLE.unpack_from(state, 9)
    found.worker, at = _text(state, 17)
    if letter == b"P":
        found.status, found.attempt = "success", 1
        found.ended_at, started_at, flags = _ENDED.unpack_from(state, at)
        found.started_at = started_at or None
        found.contributed = bool(flags & 1)
        if flags & 2:
            found.result = state[at + _ENDED.size :]
    else:
        found.status, found.owned = "running", True
        found.begun = letter == b"p"
        found.attempt = int(found.begun)


def _text(data: bytes, at: int) -> tuple[str | None, int]:
    end = at + 1 + data[at]
    return data[at + 1 : end].decode() or None, end


def item_states(rows: Iterable[Sequence[bytes]]) -> tuple[ItemState, ...]:
    """Items without their history."""
    return tuple(item_state(read_item(raw)) for raw in rows)


def item_state(found: RedisItem, *, history: bool = False) -> ItemState:
    """An item, and its history if that is asked for. `waiting_for` is left out."""
    attempts = read_history(found.history) if found.history else ()
    last = attempts[-1] if attempts and found.status != "success" else None
    kind, extra, body = found.kind, found.extra, found.body
    return ItemState(
        id=found.id,
        type=kind.type,
        status=found.status,
        tenant=kind.tenant,
        reason=found.reason,
        attempt=found.attempt,
        attempts=body.attempts,
        failures=found.failures,
        losses=found.losses,
        deferrals=found.deferrals,
        result=found.result,
        error=None
        if last is None
        else (f"{last.error_type}: {last.message}" if last.message else last.error_type),
        error_type=None if last is None else last.error_type,
        history=attempts if history else (),
        queued_at=found.queued_at,
        due_at=shown_due(found.due_at, found.ended_at),
        claimed_at=found.claimed_at,
        started_at=found.claimed_at if found.status == "running" else found.started_at,
        ended_at=found.ended_at,
        deadline=found.deadline,
        priority=found.priority,
        lane=kind.lane,
        queue=kind.queue,
        group_id=found.group_id,
        parent=extra.p,
        workflow=extra.w,
        workflow_type=extra.wt,
        after=extra.a,
        key=extra.k,
        worker=found.worker if found.status == "running" or found.ended_at is not None else None,
        input=body.input,
        options=body.options,
        mark=found.mark,
        release="" if last is None else last.release,
        has_steps=found.has_steps,
        suspended=found.suspended and not found.owned and found.ended_at is None,
        held=found.ended_at is None and is_held(found.due_at),
    )


def lease_of(found: RedisItem, now: float) -> Lease:
    """The lease of a row that is leased now. `now`: when it was claimed, for one with a verdict."""
    kind, extra, body = found.kind, found.extra, found.body
    begun = found.begun or found.verdict is not None
    return Lease(
        found.id,
        kind.tenant,
        found.token,
        kind.type,
        body.input,
        found.attempt if begun else found.attempt + 1,
        found.group_id,
        kind.queue,
        kind.lane,
        found.priority,
        body.attempts,
        extra.p,
        extra.w,
        extra.wt,
        extra.a,
        body.options,
        found.queued_at,
        found.due_at,
        now if found.verdict is not None or found.claimed_at is None else found.claimed_at,
        found.deadline,
        found.verdict,
        found.number,
        found.failures,
        found.losses,
        begun,
        found.ready_at,
        found.deferrals,
        found.has_steps,
        found.suspended,
    )


_LOST: Final = Bytes(">Id")
_FAILED: Final = Bytes(">IdB")

_encode: Final = msgpack.Encoder().encode
_decode: Final = msgpack.Decoder(tuple[bytes, bytes, bytes]).decode


def pack_failure(failure: ErrorInfo) -> bytes:
    """The failure of an attempt, as scripts put it into the history. Its texts may hold lone surrogates."""
    texts = failure.type, failure.message, failure.traceback
    return pack_failure_texts(*(text.encode("utf-8", "surrogatepass") for text in texts))


def pack_failure_texts(type: bytes, message: bytes, traceback: bytes) -> bytes:
    return _encode([type, message, traceback])


def _read_failure(data: bytes) -> ErrorInfo:
    return ErrorInfo(*(text.decode("utf-8", "surrogatepass") for text in _decode(data)))


def read_history(past: bytes) -> tuple[Attempt, ...]:
    """All attempts of a history, the oldest first."""
    found: list[Attempt] = []
    at = 0
    while at < len(past):
        end = at + 4 + int.from_bytes(past[at : at + 4], "big")
        entry = past[at + 4 : end]
        found.append(_lost(entry) if entry[:1] == b"L" else _failed(entry))
        at = end
    return tuple(found)


def _lost(entry: bytes) -> Attempt:
    attempt, instant = _LOST.unpack_from(entry, 1)
    worker, _, release = entry[1 + _LOST.size :].decode().partition("\0")
    return lost_attempt(attempt, instant, worker, release)


def _failed(entry: bytes) -> Attempt:
    attempt, instant, length = _FAILED.unpack_from(entry, 1)
    worker_at = 1 + _FAILED.size
    failure_at = worker_at + length
    worker, _, release = entry[worker_at:failure_at].decode().partition("\0")
    return failed_attempt(_read_failure(entry[failure_at:]), attempt, instant, worker, release)


_HEAD: Final = Bytes(">HIdd")
_PLAIN_HEAD: Final = Bytes(">IdB")
_PLAIN_HEAD_KEEP_DEAD: Final = Bytes(">IddB")


class ItemSpec(ItemExtra, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """All of a new item that a plain one does not have: what is stored, and what is only used now."""

    dl: float = 0.0
    ra: float | None = None
    ei: float | None = None
    de: float | None = None
    ks: str | float = "open"
    kp: str = "existing"
    dm: float | None = None
    me: tuple[str, ...] = ()
    lt: str | None = None


_PLAIN: Final = ItemSpec()


def item_arguments(items: Sequence[Item], group_id: str | None = None) -> list[Argument]:
    """New items as `NewItems.read` in new_items.lua reads them. `group_id`: the group that children join,
    unless they name one."""
    kinds: dict[tuple[str, str, str, str], int] = {}
    rows: list[Argument] = []
    for item in items:
        kind = (item.tenant, item.queue, item.lane, item.type)
        number = kinds.setdefault(kind, len(kinds) + 1)
        keep_dead = -1.0 if item.keep_dead is None else item.keep_dead
        head = _HEAD.pack(number, HIGHEST_PRIORITY - item.priority, item.keep, keep_dead)
        rows += (head + item.id.encode(), pack_spec(item, group_id), pack_body(item))
    return [len(kinds), *(text for kind in kinds for text in kind), len(items), *rows]


def pack_spec(item: Item, group_id: str | None = None) -> bytes:
    """Empty for a plain item."""
    spec = ItemSpec(
        k=item.key,
        w=item.workflow,
        wt=item.workflow_type,
        p=item.parent,
        a=item.after,
        n=item.need,
        d=item.counting == "done",
        g=item.group_id or group_id,
        c=item.closes_group,
        x=not item.contributes,
        dl=item.delay,
        ra=item.run_at,
        ei=item.expires_in,
        de=item.deadline,
        ks=item.key_scope,
        kp=item.key_policy,
        dm=item.debounce_max,
        me=item.must_exist,
        lt=item.lease_to,
    )
    return b"" if spec == _PLAIN else _encode(spec)


def plain_class(item: Item) -> bytes:
    """What plain items have in common: their flags and their kind. See submit_plain.lua."""
    flags = "\0" if item.keep_dead is None else "\2"
    return f"{flags}{item.tenant}\0{item.queue}\0{item.lane}\0{item.type}".encode()


def pack_plain(item: Item) -> tuple[bytes, bytes]:
    """The id of a plain item, and its row from the priority on."""
    id, priority, body = item.id.encode(), HIGHEST_PRIORITY - item.priority, pack_body(item)
    if item.keep_dead is None:
        return id, b"".join((_PLAIN_HEAD.pack(priority, item.keep, len(id)), id, body))
    head = _PLAIN_HEAD_KEEP_DEAD.pack(priority, item.keep, item.keep_dead, len(id))
    return id, b"".join((head, id, body))


def pack_body(item: Item) -> bytes:
    return _encode(ItemBody(item.input, item.attempts, item.options))


_PLACE: Final = Bytes(">H")
_FIRST_LEASE: Final = Bytes(">B4s6xdI8x")


def read_plain_leases(
    numbers: bytes,
    items: Sequence[bytes],
    kinds: Mapping[bytes, bytes],
    token: int,
    now: float,
    buffered: Container[str],
    labels: Sequence[ItemExtra] | None = None,
) -> list[Lease]:
    """The leases of rows that were never claimed before, as `claim.lua` answers them.

    numbers: six bytes of each. token: that of the first. labels: the extra of each; None if none has one.
    """
    names = {k: read_kind(row) for k, row in kinds.items()}
    leases: list[Lease] = []
    at = 0
    extra = NO_EXTRA
    for place, item in enumerate(items):
        flags, k, queued_at, priority = _FIRST_LEASE.unpack_from(item)
        kind = names[k]
        id_at = 40 if flags & 2 else 32
        body_at = id_at + item[id_at - 1]
        id = item[id_at:body_at].decode()
        body = decode_body(item[body_at:])
        type = kind.type
        if labels is not None:
            extra = labels[place]
        # In the order of the fields: by keyword this would take four times as long.
        leases.append(
            Lease(
                id,
                kind.tenant,
                token,
                type,
                body.input,
                1,
                extra.g or id,
                kind.queue,
                kind.lane,
                HIGHEST_PRIORITY - priority,
                body.attempts,
                extra.p,
                extra.w,
                extra.wt,
                extra.a,
                body.options,
                queued_at,
                queued_at,
                now,
                None,
                None,
                int.from_bytes(numbers[at : at + 6], "big"),
                0,
                0,
                type not in buffered,
                queued_at,
            )
        )
        at += 6
        token += 1 << 24
    return leases


def read_labels(extras: Sequence[bytes], count: int) -> list[ItemExtra]:
    """The extras of this many leases: see `HandOut.extras` in hand_out.lua."""
    labels = [NO_EXTRA] * count
    for extra, places in zip(extras[::2], extras[1::2], strict=True):
        found = read_extra(extra)
        for (place,) in _PLACE.iter_unpack(places):
            labels[place - 1] = found
    return labels
