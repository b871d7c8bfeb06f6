"""Settle: apply each settlement whose token still owns its item, as a whole or not at all.

Most settlements are plain: a root that is alone succeeds. `settle_plain.lua` applies these, and leaves those
that turn out not to be plain to `settle.lua`. The plain ones go first: the order matters only among the
others, unless children wait for other items, or have keys that other items may hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct as Bytes
from typing import Any, Final

from msgspec import Struct, field

from treadle.errors import StoreFull
from treadle.item import Contribution, Effects, EndedGroup, Item, Outcome, Rejected, Settled, Settlement
from treadle.rules.settlement import is_fold
from treadle.rules.submission import as_child

from .effects import NO_EFFECTS, read_effects
from .history_bytes import pack_failure
from .item_bytes import REASONS, Argument
from .new_item_bytes import item_arguments
from .scripts import RedisScript
from .stage import TRIES, PlainItems, RedisStages, plain_items, portion_arguments
from .workers import LOSSES

_PLAIN: Final = RedisScript("settle_plain")
_GENERAL: Final = RedisScript("settle")

_OWN_RESULT: Final = Contribution()
_APPLIED: Final = Outcome(verb="applied")
_OUTCOMES: Final = {
    b"": _APPLIED,
    b"a": Outcome(verb="applied", again=True),
    **{bytes([letter]): Outcome(verb="stale", loss=loss) for letter, loss in LOSSES.items()},
}

_KINDS: Final = {
    "success": b"S",
    "dead": b"D",
    "cancelled": b"C",
    "retry": b"t",
    "defer": b"f",
    "release": b"l",
}
_RECORDED: Final = frozenset(("dead", "cancelled", "retry"))
"""The kinds that add a failure to the history."""
_REASON_NUMBERS: Final = {reason: number for number, reason in enumerate(REASONS)}

# As settle_plain.lua and settle.lua name them.
_PLAIN_CONTRIBUTES, _PLAIN_RESULT, _PLAIN_RAN = 1, 2, 4
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
    _PLAIN_CHILDREN,
    _STAGE,
) = (1 << bit for bit in range(12))

_PLAIN_HEAD: Final = Bytes(">HIQHBd")
_HEAD: Final = Bytes(">HIQcHBddddH")
_INSTANT: Final = Bytes(">d")

PORTION: Final = 300
"""How many plain settlements one script gets, so that it does not hold the server for long."""
GENERAL_PORTION: Final = 100
"""The same for other settlements and their children."""
MANY_CHILDREN: Final = 30
"""So many plain children are stored in a short way, in a call of their own."""
NO_STAGE: Final = bytes(8)
"""The name of no stage: children that could not be staged."""
_NOT_STORED: Final = [b"n"]


class SentChildren(Struct, frozen=True):
    """Plain children as settle.lua gets them: the flag that says how, and the arguments."""

    flag: int
    arguments: list[Argument]


class RedisSettleCall(Struct):
    """One call of settle: what has become of its settlements so far."""

    settlements: Sequence[Settlement]
    outcomes: list[Outcome | None]
    released: list[Any] = field(default_factory=list[Any])
    ended_groups: list[EndedGroup] = field(default_factory=list[EndedGroup])
    doomed: int = 0
    at: float = 0.0
    refused: dict[bytes, None] = field(default_factory=dict[bytes, None])
    """The groups of which a fold was not applied."""

    def add(self, effects: Effects) -> None:
        self.released += effects.released
        self.ended_groups += effects.ended_groups
        self.doomed += effects.doomed

    def result(self) -> Settled:
        effects = NO_EFFECTS
        if self.released or self.ended_groups or self.doomed:
            effects = Effects(tuple(self.released), tuple(self.ended_groups), self.doomed)
        return Settled(tuple(outcome or _APPLIED for outcome in self.outcomes), effects, self.at)


class RedisSettle(RedisStages):
    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        call = RedisSettleCall(settlements, [None] * len(settlements))
        rest: Sequence[int] = range(len(settlements))
        plain = _plain_ones(settlements)
        if plain:
            left: list[int] = []
            for first in range(0, len(plain), PORTION):
                left += await self._settle_plain(call, plain[first : first + PORTION])
            if len(plain) == len(settlements):
                rest = left
            else:
                done = set(plain).difference(left)
                rest = [place for place in rest if place not in done]
        for places in _portions(settlements, rest):
            if not await self._settle_many_children(call, places):
                await self._settle_general(call, places)
        return call.result()

    async def _settle_plain(self, call: RedisSettleCall, places: Sequence[int]) -> list[int]:
        """Apply those of these settlements that are plain. Returns the others."""
        tenants: dict[str, int] = {}
        heads: list[Argument] = []
        settlements = [call.settlements[place] for place in places]
        for settlement in settlements:
            tenant = settlement.lease.tenant
            heads.append(_plain_argument(settlement, tenants.setdefault(tenant, len(tenants) + 1)))
        answer: bytes = await self._link.run(_PLAIN, [len(tenants), *tenants, *heads])
        (call.at,) = _INSTANT.unpack_from(answer)
        if len(answer) == _INSTANT.size:
            for place, settlement in zip(places, settlements, strict=True):
                _count_plain(call, place, settlement)
            return []
        left: list[int] = []
        for place, settlement, code in zip(places, settlements, answer[_INSTANT.size :], strict=True):
            if code == ord("1"):
                _count_plain(call, place, settlement)
            else:
                left.append(place)
        return left

    async def _settle_many_children(self, call: RedisSettleCall, places: Sequence[int]) -> bool:
        """Apply a settlement with many plain children, if it is alone. False: nothing was done."""
        settlement = call.settlements[places[0]]
        if len(settlement.children) < MANY_CHILDREN:
            return False
        lease = settlement.lease
        own = [as_child(item, lease.tenant, lease.id) for item in settlement.children]
        children = plain_items(own, lease)
        if children is None:
            return False
        if not self._is_large(settlement.children):
            inline = portion_arguments(children)
            sent = None if inline is None else SentChildren(_PLAIN_CHILDREN, [repr(children.keep), *inline])
            return sent is not None and await self._settle_general(call, places, sent)
        return await self._settle_in_stage(call, places, children)

    async def _settle_in_stage(
        self, call: RedisSettleCall, places: Sequence[int], children: PlainItems
    ) -> bool:
        """The same for more children than one call may store. If the server is full they cannot be staged,
        and one call settles them all."""
        for _ in range(TRIES):
            try:
                staged = await self._stage(children)
            except StoreFull:
                return False
            sent = SentChildren(_STAGE, [staged.stage or NO_STAGE, len(children), repr(children.keep)])
            is_settled = await self._settle_general(call, places, sent)
            if is_settled:
                await self._unfold_stage()
            if staged.stage:
                await self._drop_stage(staged.stage)  # there is none if it was decided
            if is_settled or staged.taken:
                return is_settled
        return False

    async def _settle_general(
        self, call: RedisSettleCall, places: Sequence[int], children: SentChildren | None = None
    ) -> bool:
        """`children`: those of the only settlement. False: one of these cannot be stored."""
        settlements = [call.settlements[place] for place in places]
        args: list[Argument] = [len(call.refused), *call.refused]
        for settlement in settlements:
            args += _arguments(settlement, children)
        at, outcomes, effects = await self._link.run(_GENERAL, args)
        if outcomes == [_NOT_STORED]:
            return False
        (call.at,) = _INSTANT.unpack(at)
        for place, settlement, answer in zip(places, settlements, outcomes, strict=True):
            call.outcomes[place] = outcome = _read_outcome(settlement, answer)
            if outcome.verb != "applied" and is_fold(settlement):
                call.refused[_group_name(settlement)] = None
        call.add(read_effects(effects))
        return True


# ------------------------------------------------------------------------------------------------------ plain


def _plain_ones(settlements: Sequence[Settlement]) -> list[int]:
    """The places of those that settle_plain.lua may apply."""
    found = [place for place, settlement in enumerate(settlements) if _may_be_plain(settlement)]
    if len(found) == 1 == len(settlements):
        return found
    if any(settlement.children and _look_at_others(settlement.children) for settlement in settlements):
        return []
    if len({settlement.lease.ref for settlement in settlements}) < len(settlements):
        return []
    return found


def _look_at_others(children: Sequence[Item]) -> bool:
    return any(child.after or child.key is not None for child in children)


def _may_be_plain(settlement: Settlement) -> bool:
    lease, contribution = settlement.lease, settlement.contribution
    return (
        settlement.kind == "success"
        and not settlement.children
        and (contribution is None or contribution == _OWN_RESULT)
        and lease.group_id == lease.id
        and not lease.after
        and lease.deadline is None
        and lease.verdict is None
        and not lease.losses
    )


def _plain_argument(settlement: Settlement, tenant: int) -> bytes:
    lease, result, ran = settlement.lease, settlement.result, settlement.ran
    flags = 0 if settlement.contribution is None else _PLAIN_CONTRIBUTES
    if result is not None:
        flags |= _PLAIN_RESULT
    if ran is not None:
        flags |= _PLAIN_RAN
    ref = lease.ref
    head = _PLAIN_HEAD.pack(ref >> 32, ref & 0xFFFFFFFF, lease.token, tenant, flags, ran or 0.0)
    return head + result if result else head


def _count_plain(call: RedisSettleCall, place: int, settlement: Settlement) -> None:
    lease, result = settlement.lease, settlement.result
    if settlement.contribution is None:
        call.outcomes[place] = _APPLIED
        call.ended_groups.append(EndedGroup(lease.id, lease.tenant, None, lease.type, 0))
    else:
        call.outcomes[place] = Outcome(verb="applied", version=1, value=result)
        call.ended_groups.append(EndedGroup(lease.id, lease.tenant, result, lease.type, 0))


# ---------------------------------------------------------------------------------------------------- general


def _portions(settlements: Sequence[Settlement], places: Sequence[int]) -> Iterator[list[int]]:
    """Cut them so that no call holds the server for long. A settlement with its children is one step, and
    alone if it has many."""
    portion: list[int] = []
    size = 0
    for place in places:
        more = 1 + len(settlements[place].children)
        if portion and (more > MANY_CHILDREN or size + more > GENERAL_PORTION):
            yield portion
            portion, size = [], 0
        portion.append(place)
        size += more if more <= MANY_CHILDREN else GENERAL_PORTION
    if portion:
        yield portion


def _group_name(settlement: Settlement) -> bytes:
    lease = settlement.lease
    return f"{lease.tenant}\0{lease.group_id}".encode()


def _arguments(settlement: Settlement, plain_children: SentChildren | None = None) -> list[Argument]:
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
    if plain_children is not None:
        flags |= plain_children.flag
        rest += plain_children.arguments
    elif settlement.children:
        flags |= _CHILDREN
        children = [as_child(item, lease.tenant, lease.id) for item in settlement.children]
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
    return [head + _group_name(settlement), *rest]


def _read_outcome(settlement: Settlement, answer: Any) -> Outcome:
    if isinstance(answer, bytes):
        return _OUTCOMES[answer]
    if isinstance(answer, int):
        return Outcome(verb="applied", version=answer, value=_contributed(settlement))
    match answer:
        case [b"m", version, value, final]:
            return Outcome(verb="moved", version=version, value=value, final=bool(final))
        case [b"r", why, ids, keys]:
            rejected = Rejected(why.decode(), tuple(map(bytes.decode, ids)), tuple(map(bytes.decode, keys)))
            return Outcome(verb="rejected", rejected=rejected)
        case _:
            _, version, ids = answer
            names = [id.decode() for id in ids]
            existing = dict(zip(names[::2], names[1::2], strict=True))
            value = _contributed(settlement) if version else None
            return Outcome(verb="applied", version=version, value=value, existing=existing)


def _contributed(settlement: Settlement) -> bytes | None:
    """The value of the group after an applied contribution."""
    contribution = settlement.contribution
    own = contribution is None or contribution.value is None
    return settlement.result if own or contribution is None else contribution.value
