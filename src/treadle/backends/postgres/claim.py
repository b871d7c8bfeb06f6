"""Claim: lease what is ready, in fair order, and what is doomed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from treadle.item import AvoidedLane, Claim, Demand, Lease

from .columns import INNER_SEPARATOR, names, numbers
from .connection import PostgresVerbs, leasing
from .fairness import PostgresFairness
from .workers import lease_of

_NO_LANES: Final[frozenset[AvoidedLane]] = frozenset()
CLAIM: Final = leasing("claim", "claim")


class PostgresClaim(PostgresVerbs):
    async def claim(self, demand: Demand) -> Claim:
        fairness = demand.fairness if isinstance(demand.fairness, PostgresFairness) else PostgresFairness()
        queue, *others = fairness.last_served(demand.limit)
        rows = await self._calls.rows(
            CLAIM[self._calls.durable_claims],
            *_demanded(demand),
            queue,
            *map(_listed, others),
            demand.orders,
            repeatable=False,
        )
        if not rows:
            return Claim(alive=False)
        last = rows.pop()
        if last["orders"] is not None:
            return Claim(fairness=fairness, orders=last["orders"])
        leases = _in_order([lease_of(row) for row in rows], last["picks"])
        fairness.served([(one.queue, one.tenant, one.lane) for one in leases if one.verdict is None])
        return Claim(tuple(leases), fairness, last["next_due"], left=tuple(dict.fromkeys(last["left_types"])))


def _demanded(demand: Demand) -> tuple[object, ...]:
    types = demand.types
    return (
        demand.worker,
        demand.limit,
        None if types is None else _listed(tuple(types)),
        None if types is None else numbers(tuple(types.values()), whole=True),
        _listed(demand.queues),
        _listed(demand.tenants),
        _avoided(demand) if demand.avoid or demand.strict else None,
        _listed(tuple(demand.buffered) or None),
        *_shared(demand),
        _listed(tuple(demand.strict) or None),
        demand.unknown_grace,
    )


def _shared(demand: Demand) -> tuple[str | None, str | None]:
    """The rooms that types share as the type `treadle.demand` has them."""
    if not demand.shared or demand.types is None:
        return None, None
    places = {type: place for place, each in enumerate(demand.shared, 1) for type in each.types}
    rooms = [each.room for each in demand.shared]
    return numbers([places.get(type) for type in demand.types], whole=True), numbers(rooms, whole=True)


def _avoided(demand: Demand) -> str:
    """The lanes to avoid as the type `treadle.demand` has them. Types that avoid the same share a set, except
    strict ones: the store adds the lanes that are held."""
    strict = {type: demand.avoid.get(type, _NO_LANES) for type in demand.strict}
    shared = {type: lanes for type, lanes in demand.avoid.items() if type not in strict}
    sets = {id(lanes): (str(number), lanes) for number, lanes in enumerate(shared.values())}
    keys = {type: sets[id(lanes)][0] for type, lanes in shared.items()}
    keys.update((type, f"strict{number}") for number, type in enumerate(strict))
    for number, lanes in (*sets.values(), *((keys[type], lanes) for type, lanes in strict.items())):
        for tenant, lane in lanes:
            keys[INNER_SEPARATOR.join((number, tenant) if lane is None else (number, tenant, lane))] = ""
    return msgspec.json.encode(keys).decode()


def _listed(given: Sequence[str] | None) -> str | None:
    """Names as one text. An empty sequence becomes one empty name, which matches nothing."""
    return None if given is None else names(given or ("",), whole=True)


def _in_order(leases: list[Lease], order: Sequence[int]) -> list[Lease]:
    """The store answers items in no particular order; `order` has their numbers in the fair one."""
    by_number = {lease.ref: lease for lease in leases}
    return [by_number[no] for no in order]
