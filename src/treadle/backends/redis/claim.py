"""Claim: lease items to a worker. `claim.lua` hands out ready items; `claim_all.lua` also does what is rarely
needed: removes lapsed workers, makes due items ready, and leases items that are to die. (If every claim did,
a lone item would take a tenth more processor time.)"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import msgpack
from msgspec.structs import replace

from treadle.item import AvoidedLane, Claim, Demand, Lease, SharedRoom

from .item_bytes import Argument, lease_of, read_double, read_item, read_labels, read_plain_leases
from .link import RedisVerbs
from .scripts import RedisScript

_CLAIM: Final = RedisScript("claim")
_CLAIM_ALL: Final = RedisScript("claim_all")
_MOST: Final = 300
"""Items that one script leases, so that it does not hold the server for long."""
_DID_MORE: Final = 2
_OTHER_ORDERS: Final = 3

_encode: Final = msgpack.Encoder().encode


class RedisClaim(RedisVerbs):
    _claims_all = False
    """Whether the last claim had to do more than to hand out ready items. So may the next one."""

    async def claim(self, demand: Demand) -> Claim:
        """Returns after the settlements and submissions whose items it leases: what follows from the answers
        to those, such as events, comes first."""
        claim = await self._claim(demand)
        if claim.leases:
            await self._link.until_answered()
        return claim

    async def _claim(self, demand: Demand) -> Claim:
        if demand.limit <= _MOST:
            claim, cut_short = await self._claim_portion(demand)
            if not cut_short:
                return claim
            leases = list(claim.leases)
            left = _rest(demand, claim.leases)
        else:
            leases, left = [], demand
        while True:
            portion = replace(left, limit=min(left.limit, _MOST))
            claim, cut_short = await self._claim_portion(portion)
            if claim.orders is not None:
                return replace(claim, leases=tuple(leases), orders=None) if leases else claim
            leases += claim.leases
            runs = sum(lease.verdict is None for lease in claim.leases)
            left = _rest(left, claim.leases)
            if not runs or not left.limit or (runs < portion.limit and not cut_short):
                return replace(claim, leases=tuple(leases))

    async def _claim_portion(self, demand: Demand) -> tuple[Claim, bool]:
        """The answer of one script, and whether there is more for this demand."""
        random = os.urandom(3)
        arguments = _arguments(demand, random)
        answer: Sequence[Any] = ()
        if not (self._claims_all or demand.strict or demand.unknown_grace is not None):
            answer = await self._link.run(_CLAIM, arguments, on="claim")
        if not answer:
            answer = await self._link.run(_CLAIM_ALL, arguments, on="claim")
            self._claims_all = answer[0] == _DID_MORE
        if not answer[0]:
            return Claim(alive=False), False
        if answer[0] == _OTHER_ORDERS:
            return Claim(orders=int(answer[1])), False
        return _read_claim(answer, demand, random), bool(answer[4])


# ---------------------------------------------------------------------------------------------------- sending


def _arguments(demand: Demand, random: bytes) -> list[Argument]:
    """As demand.lua reads them."""
    types = b"" if demand.types is None else _encode(demand.types)
    options: dict[str, object] = {}
    if demand.queues is not None:
        options["q"] = demand.queues
    if demand.tenants is not None:
        options["n"] = demand.tenants
    if demand.buffered:
        options["b"] = tuple(demand.buffered)
    if demand.shared:
        options["h"] = [(tuple(shared.types), shared.room) for shared in demand.shared]
    if demand.avoid:
        options["a"] = {type: _by_tenant(lanes) for type, lanes in demand.avoid.items()}
    if demand.strict:
        options["s"] = tuple(demand.strict)
    if demand.unknown_grace is not None:
        options["g"] = demand.unknown_grace
    return [
        demand.worker,
        random,
        demand.limit,
        types,
        _encode(options) if options else b"",
        b"" if demand.orders is None else demand.orders,
    ]


def _by_tenant(avoided: frozenset[AvoidedLane]) -> Mapping[str, object]:
    """True for a tenant all of whose lanes are avoided."""
    lanes: dict[str, list[str]] = {}
    whole: dict[str, object] = {}
    for tenant, lane in avoided:
        if lane is None:
            whole[tenant] = True
        else:
            lanes.setdefault(tenant, []).append(lane)
    return {**lanes, **whole}


def _rest(demand: Demand, leases: Sequence[Lease]) -> Demand:
    """What is still wanted after these leases."""
    types = None if demand.types is None else dict(demand.types)
    leases = [lease for lease in leases if lease.verdict is None]
    for lease in leases:
        if types is not None:
            types[lease.type] -= 1
    shared: list[SharedRoom] = []
    for room in demand.shared:
        used = sum(lease.type in room.types for lease in leases)
        if used < room.room:
            shared.append(SharedRoom(room.types, room.room - used))
        elif types is not None:
            types |= dict.fromkeys(room.types & types.keys(), 0)
    return replace(demand, limit=demand.limit - len(leases), types=types, shared=tuple(shared))


# ---------------------------------------------------------------------------------------------------- reading


def _read_claim(answer: Sequence[Any], demand: Demand, random: bytes) -> Claim:
    _, now, due, first, _, kinds, numbers, items, general, extras, *whole = answer
    at = read_double(now)
    leases: list[Lease] = []
    for raw in whole[0] if whole else ():
        leases.append(lease_of(read_item(raw), at))
    if items:
        token = (first << 24) + int.from_bytes(random, "big")
        rows = dict(zip(kinds[::2], kinds[1::2], strict=True))
        labels = read_labels(extras, len(items)) if extras else None
        found = read_plain_leases(numbers, items, rows, token, at, demand.buffered, labels)
        for place in range(0, len(general), 3):
            number = general[place] - 1
            item = items[number]
            raw = (numbers[6 * number : 6 * number + 6], item, general[place + 1], rows[item[1:5]])
            found[number] = lease_of(read_item((*raw, general[place + 2], b"")), at)
        leases += found
    return Claim(tuple(leases), None, read_double(due) if due else None)
