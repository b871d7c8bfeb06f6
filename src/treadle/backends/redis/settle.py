"""Settle: apply each settlement whose token still owns its item, as a whole or not at all.

Most settlements are plain: a root that is alone succeeds. `settle_plain.lua` applies these, and leaves those
that turn out not to be plain to `settle.lua`. (Without it a drain takes 1.7 times the processor time, and 2.4
times that of the server.) `settle_members.lua` does the same for many members of groups that succeed.
(Without it a fan-out of 3,000 takes the server 1.5 times as long.) The plain ones go first: the order
matters only among the others, unless children wait for other items, or have keys that other items may hold.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from struct import Struct as Bytes
from typing import Any, Final, TypeAlias

from msgspec import Struct, field

from treadle.errors import StoreFull
from treadle.item import Contribution, Effects, EndedGroup, Item, Outcome, Record, Settled, Settlement
from treadle.store.rules.settlement import LONE_VERSION, is_fold, next_version
from treadle.store.rules.submission import as_child

from .item_bytes import Argument
from .scripts import RedisScript
from .settlement_bytes import (
    APPLIED,
    NO_EFFECTS,
    PLAIN_CHILDREN,
    STAGE,
    SentChildren,
    contributed,
    group_name,
    member_argument,
    plain_argument,
    read_effects,
    read_outcome,
    settlement_arguments,
)
from .stage import TRIES, PlainItems, RedisStages, count_plain, plain_items, portion_arguments
from .steps import write_records

_PLAIN: Final = RedisScript("settle_plain")
_MEMBERS: Final = RedisScript("settle_members")
_GENERAL: Final = RedisScript("settle")
_SUSPEND: Final = RedisScript("suspend")
"""For calls in which a settlement suspends its item."""

_PLAIN_CONTRIBUTIONS: Final = (None, Contribution())

_INSTANT: Final = Bytes(">d")
_NOTHING_DONE, _CONTRIBUTED = b"nc"
"""What settle_members.lua answers for a settlement."""

PORTION: Final = 300
"""Plain settlements that one script gets, so that it does not hold the server for long."""
MEMBERS: Final = 8
"""Successes of members of groups that are worth a call of their own."""
GENERAL_PORTION: Final = 100
"""The same for other settlements, by weight."""
WEIGHTS: Final[Mapping[str, float]] = {"dead": 2.0, "retry": 1.5}
"""How much a settlement of a kind takes the server, of what a success or a child takes."""
MANY_CHILDREN: Final = 30
"""Plain children that are stored in a short way, in a call of their own. Without it a fan-out of 3,000 takes
the server 1.3 times as long."""
NO_STAGE: Final = bytes(8)
"""The name of no stage: children that could not be staged."""
_NOT_STORED: Final = [b"n"]


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

    def begun(self, at: float) -> None:
        """A script of this call applied some of them at this instant. The first one counts: what it released
        may have started before the others ran."""
        self.at = self.at or at

    def add(self, effects: Effects) -> None:
        self.released += effects.released
        self.ended_groups += effects.ended_groups
        self.doomed += effects.doomed

    def result(self) -> Settled:
        effects = NO_EFFECTS
        if self.released or self.ended_groups or self.doomed:
            effects = Effects(tuple(self.released), tuple(self.ended_groups), self.doomed)
        return Settled(tuple([outcome or APPLIED for outcome in self.outcomes]), effects, self.at)


SettlePortion: TypeAlias = Callable[[RedisSettleCall, Sequence[int]], Awaitable[list[int]]]
"""Applies some of the settlements at these places. Returns the others."""


class RedisSettle(RedisStages):
    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        if logged := [one for one in settlements if one.log is not None]:
            await write_records(self._link, [Record(lease=one.lease, log=one.log) for one in logged])
        call = RedisSettleCall(settlements, [None] * len(settlements))
        rest: Sequence[int] = range(len(settlements))
        if is_alone := len(settlements) == 1 or _may_be_reordered(settlements):
            rest = await self._settle_some(call, rest, _plain_ones(settlements), self._settle_plain)
        if is_alone and len(rest) >= MEMBERS:
            rest = await self._settle_some(call, rest, _members(settlements, rest), self._settle_members)
        for places in _portions(settlements, rest):
            if not await self._settle_many_children(call, places):
                await self._settle_general(call, places)
        return call.result()

    async def _settle_some(
        self, call: RedisSettleCall, places: Sequence[int], some: Sequence[int], settle: SettlePortion
    ) -> Sequence[int]:
        """Apply some of the settlements at these places in a short way. Returns the others, and those that it
        has left."""
        if not some:
            return places
        left: list[int] = []
        for first in range(0, len(some), PORTION):
            left += await settle(call, some[first : first + PORTION])
        if len(some) == len(places):
            return left
        done = set(some).difference(left)
        return [place for place in places if place not in done]

    async def _settle_plain(self, call: RedisSettleCall, places: Sequence[int]) -> list[int]:
        """Apply those of these settlements that are plain. Returns the others."""
        settlements = [call.settlements[place] for place in places]
        answer: bytes = await self._link.run(_PLAIN, _arguments(settlements, plain_argument))
        (at,) = _INSTANT.unpack_from(answer)
        if len(answer) == _INSTANT.size:
            call.begun(at)
            _count_plain(call, places)
            return []
        codes = answer[_INSTANT.size :]
        if b"1" in codes:
            call.begun(at)
        _count_plain(call, [place for place, code in zip(places, codes, strict=True) if code == ord("1")])
        return [place for place, code in zip(places, codes, strict=True) if code != ord("1")]

    async def _settle_members(self, call: RedisSettleCall, places: Sequence[int]) -> list[int]:
        """Apply those of these successes of members that are plain. Returns the others."""
        settlements = [call.settlements[place] for place in places]
        arguments = _arguments(settlements, member_argument)
        at, effects, answers = await self._link.run(_MEMBERS, arguments)
        call.add(read_effects(effects))
        left: list[int] = []
        for place, settlement, answer in zip(places, settlements, answers, strict=True):
            if answer == _NOTHING_DONE:
                left.append(place)
            elif answer == _CONTRIBUTED:
                version, value = next_version(settlement.lease.token, None), contributed(settlement)
                call.outcomes[place] = Outcome(verb="applied", version=version, value=value)
            else:
                call.outcomes[place] = APPLIED
        if len(left) < len(places):
            call.begun(*_INSTANT.unpack(at))
        return left

    async def _settle_many_children(self, call: RedisSettleCall, places: Sequence[int]) -> bool:
        """Apply a settlement with many plain children, if it is alone. False: nothing was done."""
        settlement = call.settlements[places[0]]
        if len(settlement.children) < MANY_CHILDREN:
            return False
        lease = settlement.lease
        own = [as_child(item, lease.tenant, lease.id) for item in settlement.children]
        count = count_plain(own, lease)
        if count < MANY_CHILDREN or len({item.id for item in own}) < len(own):
            return False
        plain, others = plain_items(own[:count], lease), own[count:]
        if plain is None:
            return False
        if self._is_large(plain):
            return await self._settle_in_stage(call, places, plain, others)
        inline = portion_arguments(plain)
        if inline is None:
            return False
        sent = SentChildren(PLAIN_CHILDREN, [repr(plain.keep), *inline], others)
        return await self._settle_general(call, places, sent)

    async def _settle_in_stage(
        self, call: RedisSettleCall, places: Sequence[int], plain: PlainItems, others: Sequence[Item]
    ) -> bool:
        """The same for more children than one call may store. If the server is full they cannot be staged,
        and one call settles them all."""
        for _ in range(TRIES):
            try:
                staged = await self._stage(plain)
            except StoreFull:
                return False
            arguments: list[Argument] = [staged.stage or NO_STAGE, len(plain), repr(plain.keep)]
            is_settled = await self._settle_general(call, places, SentChildren(STAGE, arguments, others))
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
            args += settlement_arguments(settlement, children)
        suspends = any(settlement.kind == "suspend" for settlement in settlements)
        at, outcomes, effects = await self._link.run(_SUSPEND if suspends else _GENERAL, args)
        if outcomes == [_NOT_STORED]:
            return False
        call.begun(*_INSTANT.unpack(at))
        for place, settlement, answer in zip(places, settlements, outcomes, strict=True):
            call.outcomes[place] = outcome = read_outcome(settlement, answer)
            if outcome.verb != "applied" and is_fold(settlement):
                call.refused[group_name(settlement)] = None
        call.add(read_effects(effects))
        return True


# ------------------------------------------------------------------------------------------------------ plain


def _may_be_reordered(settlements: Sequence[Settlement]) -> bool:
    """Whether it does not matter which of them are applied first, except to those of one group."""
    if any(settlement.children and _look_at_others(settlement.children) for settlement in settlements):
        return False
    return len({settlement.lease.ref for settlement in settlements}) == len(settlements)


def _plain_ones(settlements: Sequence[Settlement]) -> list[int]:
    """The places of those that settle_plain.lua may apply."""
    return [place for place, settlement in enumerate(settlements) if _may_be_plain(settlement)]


def _look_at_others(children: Sequence[Item]) -> bool:
    return any(child.after or child.key is not None for child in children)


def _may_be_plain(settlement: Settlement) -> bool:
    lease = settlement.lease
    return (
        lease.group_id == lease.id
        and settlement.contribution in _PLAIN_CONTRIBUTIONS
        and _is_plain_success(settlement)
    )


def _is_plain_success(settlement: Settlement) -> bool:
    lease = settlement.lease
    return (
        settlement.kind == "success"
        and not settlement.children
        and not lease.after
        and lease.deadline is None
        and lease.verdict is None
        and not lease.losses
        and not lease.deferrals
    )


def _members(settlements: Sequence[Settlement], places: Sequence[int]) -> list[int]:
    """The places of those that settle_members.lua may apply: none of a group to which others of this call
    contribute. Empty if there are few."""
    found = [place for place in places if _may_be_member(settlements[place])]
    if len(found) < len(places):
        others = set(places).difference(found)
        groups = {group_name(settlements[place]) for place in others if settlements[place].contribution}
        if groups:
            found = [place for place in found if group_name(settlements[place]) not in groups]
    return found if len(found) >= MEMBERS else []


def _may_be_member(settlement: Settlement) -> bool:
    contribution, lease = settlement.contribution, settlement.lease
    return (
        lease.group_id != lease.id
        and (contribution is None or not (contribution.final or contribution.version is not None))
        and _is_plain_success(settlement)
    )


def _arguments(settlements: Sequence[Settlement], pack: Callable[[Settlement, int], bytes]) -> list[Argument]:
    """Their tenants, and each of them with the number of its tenant."""
    tenants: dict[str, int] = {}
    heads = [pack(each, tenants.setdefault(each.lease.tenant, len(tenants) + 1)) for each in settlements]
    return [len(tenants), *tenants, *heads]


def _count_plain(call: RedisSettleCall, places: Sequence[int]) -> None:
    """These were applied. Each ended its group."""
    settlements, outcomes, ended_groups = call.settlements, call.outcomes, call.ended_groups
    for place in places:
        settlement = settlements[place]
        lease = settlement.lease
        if settlement.contribution is None:
            outcomes[place], value = APPLIED, None
        else:
            value = settlement.result
            outcomes[place] = Outcome(verb="applied", version=LONE_VERSION, value=value)
        ended_groups.append(EndedGroup(lease.id, lease.tenant, value, lease.type, 0))


# ---------------------------------------------------------------------------------------------------- general


def _portions(settlements: Sequence[Settlement], places: Sequence[int]) -> Iterator[list[int]]:
    """Cut them so that no call holds the server for long. A settlement with its children is one step, and
    alone if it has many."""
    portion: list[int] = []
    size = 0.0
    for place in places:
        settlement = settlements[place]
        is_large = len(settlement.children) >= MANY_CHILDREN
        parts = len(settlement.children) + len(settlement.steps)
        weight = GENERAL_PORTION if is_large else WEIGHTS.get(settlement.kind, 1) + parts
        if portion and (is_large or size + weight > GENERAL_PORTION):
            yield portion
            portion, size = [], 0.0
        portion.append(place)
        size += weight
    if portion:
        yield portion
