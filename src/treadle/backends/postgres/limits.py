"""Limits: permits under limits that the fleet shares, and keys that are claimed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.item import PermitReply, PermitRequest
from treadle.retry import Retry

from .codes import ALGORITHM_CODES
from .connection import PostgresVerbs
from .statements import statements

_sql = statements("limits")

OTHERS_CLAIM: Final = Retry(attempts=200, base=0.004, factor=1.7, max=0.25, jitter=0.5)
"""Of a key that an open transaction has claimed: about a minute."""


class PostgresLimits(PostgresVerbs):
    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        rows = await self._calls.rows(_sql("claim_key"), key, tenant, owner, ttl, conflict=OTHERS_CLAIM)
        claimed: bool = rows[0][0]
        return claimed

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
            repeatable=False,
        )
        counts, waits = record["counts"], record["waits"]
        return [
            PermitReply(counts[n], waits[n]) if request.limits else PermitReply(request.count)
            for n, request in enumerate(requests)
        ]

    async def return_permits(self, requests: Sequence[PermitRequest], *, worker: str) -> None:
        returned = [
            (limit.name, request.count)
            for request in requests
            for limit in request.limits
            if limit.algorithm == "slots"
        ]
        if returned:
            names, counts = [name for name, _ in returned], [count for _, count in returned]
            await self._calls.rows(_sql("return_permits"), worker, names, counts, repeatable=False)
