"""The bytes of settlements, as settle_plain.lua, settle_members.lua and settle.lua read and answer them, and
of effects (`Effects.answer` in effects.lua)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct as Bytes
from typing import Any, Final

from msgspec import Struct

from treadle.item import Effects, EndedGroup, Item, Outcome, Rejected, ReleasedItem, Settlement
from treadle.store.rules.submission import as_child

from .item_bytes import REASONS, Argument, item_arguments, pack_failure, read_extra, read_kind
from .step_bytes import step_arguments
from .workers import LOSSES

APPLIED: Final = Outcome(verb="applied")
_OUTCOMES: Final = {
    b"": APPLIED,
    b"a": Outcome(verb="applied", again=True),
    b"y": Outcome(verb="applied", ready=True),
    **{bytes([letter]): Outcome(verb="stale", loss=loss) for letter, loss in LOSSES.items()},
}

_KINDS: Final = {
    "success": b"S",
    "dead": b"D",
    "cancelled": b"C",
    "retry": b"t",
    "defer": b"f",
    "release": b"l",
    "suspend": b"s",
}
_RECORDED: Final = frozenset(("dead", "cancelled", "retry"))
"""The kinds that add a failure to the history."""
_REASON_NUMBERS: Final = {reason: number for number, reason in enumerate(REASONS)}

# As settle_plain.lua, settle_members.lua and lib/settlements.lua name them.
_PLAIN_CONTRIBUTES, _PLAIN_RESULT, _PLAIN_RAN, _MEMBER_VALUE = 1, 2, 4, 8
(
    _RESULT,
    _CONTRIBUTES,
    _FINAL,
    _FOLD,
    _VALUE,
    _RAN,
    _RUN_AT,
    _FAILURE,
    _MARK,
    _CHILDREN,
    PLAIN_CHILDREN,
    STAGE,
    _STEPS,
) = (1 << bit for bit in range(13))

_PLAIN_HEAD: Final = Bytes(">HIQHBd")
_FLAGS_AT: Final = 16
"""Where `_PLAIN_HEAD` has the flags."""
_HEAD: Final = Bytes(">HIQcHBddddH")
LENGTH: Final = Bytes(">I")


class SentChildren(Struct, frozen=True):
    """Children as settlements.lua gets them. flag: how the plain ones are sent. arguments: the plain ones.
    others: the children after them."""

    flag: int
    arguments: list[Argument]
    others: Sequence[Item] = ()


def plain_argument(settlement: Settlement, tenant: int) -> bytes:
    lease, result, ran = settlement.lease, settlement.result, settlement.ran
    flags = 0 if settlement.contribution is None else _PLAIN_CONTRIBUTES
    if result is not None:
        flags |= _PLAIN_RESULT
    if ran is not None:
        flags |= _PLAIN_RAN
    ref = lease.ref
    head = _PLAIN_HEAD.pack(ref >> 32, ref & 0xFFFFFFFF, lease.token, tenant, flags, ran or 0.0)
    return head + result if result else head


def member_argument(settlement: Settlement, tenant: int) -> bytes:
    head, contribution = plain_argument(settlement, tenant), settlement.contribution
    if contribution is None or contribution.value is None:
        return head
    value, size = contribution.value, _PLAIN_HEAD.size
    flags = bytes([head[_FLAGS_AT] | _MEMBER_VALUE])
    return b"".join(
        (head[:_FLAGS_AT], flags, head[_FLAGS_AT + 1 : size], LENGTH.pack(len(value)), value, head[size:])
    )


def group_name(settlement: Settlement) -> bytes:
    lease = settlement.lease
    return f"{lease.tenant}\0{lease.group_id}".encode()


def settlement_arguments(settlement: Settlement, sent: SentChildren | None = None) -> list[Argument]:
    """A settlement as lib/settlements.lua reads it. `sent`: its children, if many are plain."""
    lease, contribution, kind = settlement.lease, settlement.contribution, settlement.kind
    flags, version = 0, 0.0
    rest: list[Argument] = []
    if settlement.result is not None:
        flags |= _RESULT
        rest.append(settlement.result)
    if contribution is not None:
        flags |= _CONTRIBUTES | (_FINAL if contribution.final else 0)
        if contribution.version is not None:
            flags |= _FOLD
            version = float(contribution.version)
        if contribution.value is not None:
            flags |= _VALUE
            rest.append(contribution.value)
    if settlement.failure is not None and kind in _RECORDED:
        flags |= _FAILURE
        rest.append(pack_failure(settlement.failure))
    if settlement.mark:
        flags |= _MARK
        rest.append(settlement.mark)
    if settlement.steps and kind == "suspend":
        flags |= _STEPS
        rest += (len(settlement.steps), *step_arguments(settlement.steps))
    if sent is not None:
        flags |= sent.flag
        rest += sent.arguments
        children = sent.others
    else:
        children = [as_child(item, lease.tenant, lease.id) for item in settlement.children]
    if children:
        flags |= _CHILDREN
        rest += item_arguments(children, lease.group_id)
    ran, run_at, ref = settlement.ran, settlement.run_at, lease.ref
    head = _HEAD.pack(
        ref >> 32,
        ref & 0xFFFFFFFF,
        lease.token,
        _KINDS[kind],
        flags | (0 if ran is None else _RAN) | (0 if run_at is None else _RUN_AT),
        _REASON_NUMBERS[settlement.reason],
        ran or 0.0,
        settlement.delay,
        run_at or 0.0,
        version,
        len(lease.tenant.encode()),
    )
    return [head + group_name(settlement), *rest]


def read_outcome(settlement: Settlement, answer: Any) -> Outcome:
    if isinstance(answer, bytes):
        return _OUTCOMES[answer]
    if isinstance(answer, int):
        return Outcome(verb="applied", version=answer, value=contributed(settlement))
    match answer:
        case [b"m", version, value, final]:
            return Outcome(verb="moved", version=version, value=value, final=bool(final))
        case [b"r", why, ids, keys]:
            rejected = Rejected(why.decode(), tuple(map(bytes.decode, ids)), tuple(map(bytes.decode, keys)))
            return Outcome(verb="rejected", rejected=rejected)
        case _:
            _, version, ids, *ready = answer
            names = [id.decode() for id in ids]
            existing = dict(zip(names[::2], names[1::2], strict=True))
            value = contributed(settlement) if version else None
            return Outcome(verb="applied", version=version, value=value, ready=bool(ready), existing=existing)


def contributed(settlement: Settlement) -> bytes | None:
    """The value of the group after an applied contribution."""
    contribution = settlement.contribution
    own = contribution is None or contribution.value is None
    return settlement.result if own or contribution is None else contribution.value


NO_EFFECTS: Final = Effects()


def read_effects(answer: Sequence[Any]) -> Effects:
    released, ended_groups, doomed = answer
    if not released and not ended_groups and not doomed:
        return NO_EFFECTS
    return Effects(
        tuple(_released(*each) for each in released),
        tuple(_ended_group(*each) for each in ended_groups),
        doomed,
    )


def _released(id: bytes, kind: bytes, extra: bytes) -> ReleasedItem:
    names, rest, name = read_kind(kind), read_extra(extra), id.decode()
    return ReleasedItem(name, names.tenant, names.type, rest.g or name, names.queue, rest.p, rest.a)


def _ended_group(id: bytes, tenant: bytes, type: bytes, failed: int, value: bytes | None) -> EndedGroup:
    return EndedGroup(id.decode(), tenant.decode(), value, type.decode(), failed)


def joined_effects(parts: Iterable[Effects]) -> Effects:
    """The effects of several scripts that are one call."""
    found = [part for part in parts if part is not NO_EFFECTS]
    if len(found) <= 1:
        return found[0] if found else NO_EFFECTS
    return Effects(
        tuple(each for part in found for each in part.released),
        tuple(each for part in found for each in part.ended_groups),
        sum(part.doomed for part in found),
    )
