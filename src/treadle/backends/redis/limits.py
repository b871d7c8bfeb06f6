"""Limits: permits that the fleet shares, and keys that are claimed for a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from struct import Struct as Bytes
from typing import Any, Final, cast, get_args

from msgspec import Struct, msgpack

from treadle.item import Algorithm, Limit, PermitHolder, PermitReply, PermitRequest
from treadle.item_facts import LimitHolder, LimitUse
from treadle.store.rules.limits import LimitState
from treadle.store.rules.watching import rate_use, slots_use

from .item_bytes import pack_number, pack_token, read_double
from .link import On, RedisVerbs
from .scripts import RedisScript

PORTION: Final = 250
"""Limits that one script looks at."""

_ALGORITHMS: Final[tuple[Algorithm, ...]] = get_args(Algorithm)
LIMIT_STATE: Final = Bytes(">ddddd")

_CLAIM_KEY: Final = RedisScript("claim_key")
_KEY_OWNER: Final = RedisScript("key_owner")
_TAKE_PERMITS: Final = RedisScript("take_permits")
_TAKE_LEASE_PERMITS: Final = RedisScript("take_lease_permits")
_RETURN_PERMITS: Final = RedisScript("return_permits")
_KEEP_PERMITS: Final = RedisScript("keep_permits")
_LIMITS: Final = RedisScript("limits")


class SentLimit(Struct, array_like=True, frozen=True, gc=False):
    name: str
    limit: int
    window: float
    algorithm: Algorithm


class SentRequest(Struct, array_like=True, frozen=True, gc=False):
    """A PermitRequest as scripts read it. Its lease is sent apart: they cannot read bytes in msgpack."""

    count: int
    limits: list[SentLimit]


_encode: Final = msgpack.Encoder().encode


class RedisLimits(RedisVerbs):
    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        return bool(await self._link.run(_CLAIM_KEY, [f"{tenant}\0{key}", owner, ttl]))

    async def key_owner(self, key: str, *, tenant: str) -> str | None:
        return await self._key_owner(key, tenant, "read")

    async def _key_owner(self, key: str, tenant: str, on: On) -> str | None:
        owner = await self._link.run(_KEY_OWNER, [f"{tenant}\0{key}"], on=on)
        return None if owner is None else owner.decode()

    async def take_permits(
        self, requests: Sequence[PermitRequest], *, worker: str = ""
    ) -> Sequence[PermitReply]:
        if not requests:
            return []
        sent = _encode([_sent(request, dict.fromkeys(request.limits)) for request in requests])
        if any(request.lease is not None for request in requests):
            replies = await self._link.run(_TAKE_LEASE_PERMITS, [worker, sent, *_leases(requests)])
            return [PermitReply(count, read_double(wait), _holders(rows)) for count, wait, rows in replies]
        replies = await self._link.run(_TAKE_PERMITS, [worker, sent])
        return [
            PermitReply(count, read_double(wait))
            for count, wait in zip(replies[::2], replies[1::2], strict=True)
        ]

    async def return_permits(self, requests: Sequence[PermitRequest], *, worker: str) -> None:
        if requests:
            sent = _encode([_sent(request, request.limits) for request in requests])
            await self._link.run(_RETURN_PERMITS, [worker, sent, *_leases(requests)])

    async def keep_permits(self, held: Sequence[PermitRequest], counted: int, *, worker: str) -> int:
        sent = _encode([_sent(request, request.limits) for request in held])
        found: int = await self._link.run(_KEEP_PERMITS, [worker, counted, sent, *_leases(held)])
        return found

    async def limits(self, names: Sequence[str] | None = None, *, count: int = 500) -> Sequence[LimitUse]:
        if names is not None:
            return await self._named_limits(sorted(set(names)))
        found: list[LimitUse] = []
        after = b""
        while len(found) < count:
            now, after, *rows = await self._link.run(_LIMITS, [PORTION, after], on="read")
            found += _uses(rows, read_double(now))
            if not after:
                break
        return list(islice(found, max(0, count)))

    async def _named_limits(self, names: Sequence[str]) -> list[LimitUse]:
        wanted = [f"{name}\0{algorithm}" for name in names for algorithm in sorted(_ALGORITHMS)]
        found: list[LimitUse] = []
        for first in range(0, len(wanted), PORTION):
            answer = await self._link.run(_LIMITS, [0, *wanted[first : first + PORTION]], on="read")
            found += _uses(answer[2:], read_double(answer[0]))
        return found


def _sent(request: PermitRequest, limits: Iterable[Limit]) -> SentRequest:
    sent = [SentLimit(limit.name, limit.limit, limit.window, limit.algorithm) for limit in limits]
    return SentRequest(request.count, sent)


def _leases(requests: Iterable[PermitRequest]) -> list[bytes]:
    return [
        b"" if request.lease is None else pack_number(request.lease.ref) + pack_token(request.lease.token)
        for request in requests
    ]


def _holders(rows: Iterable[Sequence[bytes]]) -> tuple[PermitHolder, ...]:
    holders = [
        PermitHolder(id.decode(), tenant.decode(), read_double(due_at), int.from_bytes(n, "big"))
        for id, tenant, due_at, n in rows
    ]
    return tuple(sorted(holders, key=lambda holder: (holder.due_at, holder.number)))


def _uses(rows: Iterable[Sequence[Any]], now: float) -> list[LimitUse]:
    """Those of these limits that are in use."""
    uses = (_use(name.decode(), row, now) for name, row in rows)
    return [use for use in uses if use is not None]


def _use(full_name: str, row: Any, now: float) -> LimitUse | None:
    name, algorithm = full_name.rsplit("\0", 1)
    if algorithm == "slots":
        return slots_use(
            name,
            [
                LimitHolder(worker.decode(), count, tuple(id.decode() for id in items))
                for worker, count, items in row
            ],
        )
    at, used, before, limit, window = LIMIT_STATE.unpack(row)
    return rate_use(name, cast(Algorithm, algorithm), (int(limit), window), LimitState(at, used, before), now)
