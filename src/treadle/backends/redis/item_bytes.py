"""The bytes of stored items, and how they are read. `lua/lib/rows.lua` has the formats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct as Bytes
from typing import Final, TypeAlias

from msgspec import Struct, msgpack

from treadle.item import DeathReason, ItemState, Lease, Status, Verdict

from .history_bytes import read_history

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
        _redrives,
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
        due_at=found.due_at,
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
    )
