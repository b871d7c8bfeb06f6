"""Rebalance: which tenants should move so that the stores have as much as each other.

`propose` decides, and reads nothing. Each move takes a tenant from a store to one that has more than the
tenant less. So no move makes the fullest store fuller, or the emptiest one emptier, and moves end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, get_args

from treadle.backend import MovesTenants
from treadle.errors import InputError, StoreTooSlow, StoreUnavailable, UnsupportedError, message_of
from treadle.item import OPEN, Count
from treadle.item_facts import Overview
from treadle.records import BalanceBy, ProposedMove, RebalancePlan, StayingTenant, StoreLoad, StoreSize

from .member import Member, together
from .places import OWN, TenantPlaces

MOST: Final = 10
"""Moves of a plan, by default."""
MOST_EVER: Final = 1000
TOLERANCE: Final = 0.1
"""By how much the fullest store may have more than the emptiest, as a part of what each would have."""
MOST_STAYING: Final = 100
"""Tenants that stay of which a plan says why."""
MOVES: Final = "it moves now"
ALONE: Final = "it is the only store that tenants can leave or reach"
BY_ROOT: Final = (
    "by root the last digits of an id say for ever in which store it is. For more room, move whole stores: "
    "in a Redis cluster the server moves the slots of partitions from node to node while they are in use "
    "(redis-cli --cluster rebalance); elsewhere treadle promote moves one store after the other"
)

Loads: TypeAlias = Mapping[str, Mapping[str, int]]
"""How much each tenant has, by store."""
Tenants: TypeAlias = list[tuple[int, str]]
"""How much tenants have that may leave a store, the smallest first."""


# ------------------------------------------------------------------------------------------------- the plan


class Shift(NamedTuple):
    """A tenant that goes from one store to another."""

    gain: int
    """By how much the stores come nearer to each other, halved: no more than what goes."""
    weight: int
    tenant: str
    source: str
    to: str


def propose(loads: Loads, staying: Collection[str], tolerance: float, most: int) -> list[Shift]:
    """The moves that even out these stores, what brings most first.

    staying: tenants that do not move.
    tolerance: stores whose difference is no larger, as a part of what each would have, are even.
    most: the number of moves.
    """
    totals = {store: sum(tenants.values()) for store, tenants in loads.items()}
    even = sum(totals.values()) / max(1, len(totals))
    least = tolerance * even
    movable = {
        store: sorted(
            (weight, tenant) for tenant, weight in tenants.items() if weight and tenant not in staying
        )
        for store, tenants in loads.items()
    }
    moves: list[Shift] = []
    while len(moves) < most:
        found = _best(totals, movable, least, most - len(moves))
        if found is None:
            break
        moves.append(found)
        tenants = movable[found.source]
        del tenants[bisect_left(tenants, (found.weight, found.tenant))]  # it moves once
        totals[found.source] -= found.weight
        totals[found.to] += found.weight
    return moves


def _best(totals: Mapping[str, int], movable: Mapping[str, Tenants], least: float, left: int) -> Shift | None:
    """The move that brings most, of those that bring enough. left: how many moves there may be still."""
    found: list[Shift] = []
    for source, full in totals.items():
        for to, empty in totals.items():
            if full - empty > least:
                shift = _between(source, to, full - empty, movable[source], least, left)
                found += [] if shift is None else [shift]

    def brings(shift: Shift) -> int:
        return shift.weight * (totals[shift.source] - totals[shift.to] - shift.weight)

    for shift in sorted(found, key=lambda shift: (-brings(shift), shift.weight, shift.tenant, shift.to)):
        if 2 * shift.gain >= least:
            return shift
        tenants = movable[shift.source]
        small = _count_small(tenants, totals[shift.source] - totals[shift.to])
        if _bring_enough(tenants, small, least):
            return shift
    return None


def _between(
    source: str, to: str, difference: int, tenants: Tenants, least: float, left: int
) -> Shift | None:
    """The tenant that is nearest to half of what a store has more than another one. A larger one goes only if
    it brings more than smaller ones: it takes longer to copy."""
    small = _count_small(tenants, difference)
    if small < len(tenants):
        weight, tenant = tenants[small]
        gain = difference - weight
        if 2 * gain >= least and gain > min(difference // 2, _sum(tenants[max(0, small - left) : small])):
            return Shift(gain, weight, tenant, source, to)
    if not small:
        return None
    weight, tenant = tenants[small - 1]
    return Shift(weight, weight, tenant, source, to)


def _count_small(tenants: Tenants, difference: int) -> int:
    """How many have no more than half of what a store has more than another one. They come first."""
    return bisect_right(tenants, difference / 2, key=_weight)


def _bring_enough(tenants: Tenants, small: int, least: float) -> bool:
    """Whether small tenants, each of which brings little, bring enough together."""
    total = 0
    for place in range(small - 1, -1, -1):
        total += tenants[place][0]
        if 2 * total >= least:
            return True
    return False


def _sum(tenants: Tenants) -> int:
    return sum([weight for weight, _ in tenants])


def _weight(tenant: tuple[int, str]) -> int:
    return tenant[0]


# ------------------------------------------------------------------------------------- what the stores say


class Tenant:
    """What a store has of a tenant."""

    def __init__(self) -> None:
        self.open = self.items = 0
        self.estimated = False

    @classmethod
    def of(cls, tenants: Iterable[Tenant]) -> Tenant:
        """What several have together."""
        total = cls()
        for each in tenants:
            total.open += each.open
            total.items += each.items
            total.estimated |= each.estimated
        return total

    def add(self, count: Count) -> None:
        self.items += count.count
        self.open += count.count if count.status in OPEN else 0
        self.estimated |= count.estimated


Held: TypeAlias = Mapping[str, Mapping[str, Tenant]]
"""What each store has of each tenant."""


class Balancer:
    """Reads what the stores have, and proposes moves of tenants."""

    def __init__(self, places: TenantPlaces) -> None:
        self._places = places

    async def plan(
        self, *, most: int = MOST, tolerance: float = TOLERANCE, by: BalanceBy = "items"
    ) -> RebalancePlan:
        if self._places.by_root:
            raise UnsupportedError("tenant_moves", "ManyStores", "moves of slots", advice=BY_ROOT)
        _check(most, tolerance, by)
        members = self._places.members
        held = dict(await together([self._read(member, by) for member in members]))
        left_out = {member.name: why for member in members if (why := _why_not(member))}
        if len(members) - len(left_out) < 2:
            left_out = {member.name: left_out.get(member.name, ALONE) for member in members}
        loads = {
            store: {name: tenant.open if by == "open" else tenant.items for name, tenant in tenants.items()}
            for store, tenants in held.items()
            if store not in left_out
        }
        own, staying = _own(loads), _in_several(loads)
        while True:  # until no tenant of the plan stays
            shifts = propose(loads, {*staying, *own}, tolerance, most)
            stays = dict(await together([self._why_stays(shift) for shift in shifts]))
            found = {tenant: why for tenant, why in stays.items() if why}
            if not found:
                return _plan(shifts, held, left_out, staying, by)
            staying |= found

    async def _read(self, member: Member, by: BalanceBy) -> tuple[str, Mapping[str, Tenant]]:
        try:
            if by == "open":
                overview: Overview = await member.call("overview")
                counts: Sequence[Count] = [each for each in overview.counts if each.status in OPEN]
            else:
                counts = await member.call("counts", ended=True)
        except StoreTooSlow:
            raise
        except StoreUnavailable as error:
            missing = StoreUnavailable(
                f"the store {member.name!r} does not answer, and a plan without it would be wrong: "
                f"{message_of(error)}"
            )
            missing.store = member.name
            raise missing from error
        tenants: defaultdict[str, Tenant] = defaultdict(Tenant)
        for count in counts:
            tenants[count.tenant].add(count)
        return member.name, tenants

    async def _why_stays(self, shift: Shift) -> tuple[str, str]:
        """Why a tenant stays. Empty: it can move."""
        mark = await self._places.mark_at(self._places.by_name[shift.source], shift.tenant)
        if mark is None or (mark.state == "owned" and not mark.move):
            return shift.tenant, ""
        if mark.state == "away":
            return shift.tenant, MOVES
        return shift.tenant, (
            f"a move to {mark.to} has begun: end it with treadle move --tenant {shift.tenant} "
            f"--to {mark.to} --resume, or with --give-up"
        )


def _check(most: object, tolerance: object, by: object) -> None:
    if type(most) is not int or not 1 <= most <= MOST_EVER:
        raise InputError.of("most", most, f"must be a whole number from 1 to {MOST_EVER}")
    if not isinstance(tolerance, (int, float)) or not 0 <= tolerance <= 1:
        raise InputError.of("tolerance", tolerance, "must be a number from 0 to 1: 0.1 is a tenth")
    if by not in get_args(BalanceBy):
        raise InputError.of("by", by, f"must be one of {', '.join(get_args(BalanceBy))}")


def _why_not(member: Member) -> str:
    """Why no tenant leaves a store, or comes into it. Empty: they can."""
    backend = member.backend
    if "tenant_moves" in backend.capabilities and isinstance(backend, MovesTenants):
        return ""
    return "tenants cannot leave or reach it while it is in use"


def _own(loads: Loads) -> set[str]:
    """Tenants of treadle's own: they are at home."""
    return {name for tenants in loads.values() for name in tenants if name.startswith(OWN)}


def _in_several(loads: Loads) -> dict[str, str]:
    """The stores were read one after another: a tenant of several moves meanwhile."""
    stores = Counter(name for tenants in loads.values() for name in tenants if not name.startswith(OWN))
    return {name: MOVES for name, count in stores.items() if count > 1}


def _plan(
    shifts: Sequence[Shift],
    held: Held,
    left_out: Mapping[str, str],
    staying: Mapping[str, str],
    by: BalanceBy,
) -> RebalancePlan:
    after = {store: dict(tenants) for store, tenants in held.items()}
    moves: list[ProposedMove] = []
    for shift in shifts:
        tenant = after[shift.to][shift.tenant] = after[shift.source].pop(shift.tenant)
        moves.append(
            ProposedMove(
                tenant=shift.tenant,
                source=shift.source,
                to=shift.to,
                open=tenant.open,
                items=None if by == "open" else tenant.items,
                estimated=tenant.estimated,
            )
        )
    before, then = _sizes(held, left_out, by), _sizes(after, left_out, by)
    return RebalancePlan(
        moves=tuple(moves),
        stores=tuple(
            StoreLoad(name=name, left_out=left_out.get(name, ""), before=before[name], after=then[name])
            for name in held
        ),
        staying=tuple(
            StayingTenant(tenant=name, why=why) for name, why in sorted(staying.items())[:MOST_STAYING]
        ),
    )


def _sizes(held: Held, left_out: Collection[str], by: BalanceBy) -> dict[str, StoreSize]:
    sums = {store: Tenant.of(tenants.values()) for store, tenants in held.items()}
    weights = {store: each.open if by == "open" else each.items for store, each in sums.items()}
    total = sum(weight for store, weight in weights.items() if store not in left_out)
    return {
        store: StoreSize(
            open=each.open,
            items=None if by == "open" else each.items,
            share=None if store in left_out or not total else weights[store] / total,
            estimated=each.estimated,
        )
        for store, each in sums.items()
    }
