"""What a wrapped backend hands out: a transaction and a heartbeat connection, whose calls pass through
`WrappedBackend.around` too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from treadle.backend import HeartbeatConnection, Transaction
from treadle.item import (
    Heartbeat,
    HeartbeatReply,
    ItemState,
    Rejected,
    Settled,
    Settlement,
    Submission,
    Submitted,
)

T = TypeVar("T")


class AroundCalls(Protocol):
    """A backend that has `around`."""

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T: ...


class WrappedTransaction:
    def __init__(self, inner: Transaction, backend: AroundCalls) -> None:
        self._inner = inner
        self._backend = backend
        self.settlements: list[Settlement] = []
        """What it commits."""

    @property
    def connection(self) -> object:
        return self._inner.connection

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        self.settlements += settlements
        return await self._backend.around(
            "settle_within", (settlements,), lambda: self._inner.settle(settlements)
        )

    async def submit(self, submissions: Sequence[Submission]) -> Sequence[tuple[Submitted, ...] | Rejected]:
        return await self._backend.around(
            "submit_within", (submissions,), lambda: self._inner.submit(submissions)
        )

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        return await self._backend.around("get_within", (ids,), lambda: self._inner.get(ids, tenant=tenant))

    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        return await self._backend.around(
            "claim_key_within", (key,), lambda: self._inner.claim_key(key, owner, ttl, tenant=tenant)
        )


class WrappedHeartbeatConnection:
    def __init__(self, inner: HeartbeatConnection, backend: AroundCalls) -> None:
        self._inner = inner
        self._backend = backend

    async def open(self) -> None:
        await self._inner.open()

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        return await self._backend.around("heartbeat_connection", (beat,), lambda: self._inner.beat(beat))

    async def close(self) -> None:
        await self._inner.close()
