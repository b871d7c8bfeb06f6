"""Limits: permits under limits that the fleet shares, and keys that are claimed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.item import PermitHolder, PermitReply, PermitRequest
from treadle.retry import Retry

from .columns import ALGORITHM_CODES
from .connection import PostgresVerbs, Record
from .statements import statements

_sql = statements("limits")

OTHERS_CLAIM: Final = Retry(attempts=200, base=0.004, factor=1.7, max=0.25, jitter=0.5)
"""Of a key that an open transaction has claimed: about a minute."""


class PostgresLimits(PostgresVerbs):
    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        rows = await self._calls.rows(_sql("claim_key"), key, tenant, owner, ttl, conflict=OTHERS_CLAIM)
        claimed: bool = rows[0][0]
        return claimed

    async def key_owner(self, key: str, *, tenant: str) -> str | None:
        rows = await self._calls.rows(_sql("key_owner"), key, tenant)
        return rows[0]["owner"] if rows else None

    async def take_permits(
        self, requests: Sequence[PermitRequest], *, worker: str = ""
    ) -> Sequence[PermitReply]:
        limits = [(n, limit) for n, request in enumerate(requests, 1) for limit in request.limits]
        if not limits:
            return [PermitReply(request.count) for request in requests]
        record = await self._calls.row(
            _sql("take_permits"),
            worker,
            [n for n, _ in limits],
            [request.count for request in requests],
            [limit.name for _, limit in limits],
            [ALGORITHM_CODES[limit.algorithm] for _, limit in limits],
            [limit.limit for _, limit in limits],
            [limit.window for _, limit in limits],
            *_leases(requests),
            repeatable=False,
        )
        counts, waits, holders = record["counts"], record["waits"], _holders(record)
        return [
            PermitReply(counts[n], waits[n], tuple(holders.get(n + 1, ())))
            if request.limits
            else PermitReply(request.count)
            for n, request in enumerate(requests)
        ]

    async def return_permits(self, requests: Sequence[PermitRequest], *, worker: str) -> None:
        returned = [
            (limit.name, request.count, None if request.lease is None else request.lease.token)
            for request in requests
            for limit in request.limits
            if limit.algorithm == "slots"
        ]
        if returned:
            names, counts, tokens = map(list, zip(*returned, strict=True))
            of_leases = tokens if any(tokens) else None
            await self._calls.rows(_sql("return_permits"), worker, names, counts, of_leases, repeatable=False)

    async def keep_permits(self, held: Sequence[PermitRequest], counted: int, *, worker: str) -> int:
        kept = [(limit.name, request) for request in held for limit in request.limits]
        leases = [request.lease for _, request in kept]
        found: int = await self._calls.value(
            _sql("keep_permits"),
            worker,
            counted,
            [name for name, _ in kept],
            [request.count for _, request in kept],
            [None if lease is None else lease.token for lease in leases],
            [None if lease is None else lease.ref for lease in leases],
            repeatable=False,
        )
        return found


def _leases(requests: Sequence[PermitRequest]) -> tuple[list[int | None] | None, list[int | None] | None]:
    """The tokens and items of the leases that permits are for. None: none is for a lease."""
    leases = [request.lease for request in requests]
    if not any(leases):
        return None, None
    tokens = [None if lease is None else lease.token for lease in leases]
    return tokens, [None if lease is None else lease.ref for lease in leases]


def _holders(record: Record) -> dict[int, list[PermitHolder]]:
    """By the number of the request, from 1: the holders in the answer of `take_permits`."""
    holders: dict[int, list[PermitHolder]] = {}
    if record["holder_request"] is not None:
        columns = (record[f"holder_{name}"] for name in ("request", "id", "tenant", "due", "no"))
        for request, *holder in zip(*columns, strict=True):
            holders.setdefault(request, []).append(PermitHolder(*holder))
    return holders
