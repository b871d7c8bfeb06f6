"""EngineServices: what the context of a running handler asks of the engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from treadle.backend import Backend
from treadle.context import Context
from treadle.engine.core import Core
from treadle.engine.open_transaction import OpenTransaction, current_transaction
from treadle.engine.tasks import finish
from treadle.engine.wait.read_results import ResultReader
from treadle.errors import InputError, LeaseLost
from treadle.ids import ids_of
from treadle.item import ItemState, Lease

from .held import HeldLease, HeldLeases
from .pending import PendingSettlement
from .settle import Settler

_ONCE = "ctx.transaction() can be used once in an attempt, and not inside another one"


class EngineServices:
    """One for all attempts of a worker. `resources` is what the worker's lifespan yields."""

    def __init__(self, core: Core, worker_id: str, held: HeldLeases, settler: Settler) -> None:
        self._core = core
        self._held = held
        self._settler = settler
        self._reader = ResultReader(core.backend, core.registry)
        self.worker_id = worker_id
        self.resources: Any = None

    @property
    def keep(self) -> float:
        return self._core.settings.keep

    def check_nested(self, what: str) -> None:
        self._core.item_builder.check_nested(what)

    async def states(self, tenant: str, ids: Sequence[str]) -> list[ItemState | None]:
        return await self._reader.states(self._within, tenant, ids_of(ids))

    async def results(self, tenant: str, ids: Sequence[str], *, return_exceptions: bool) -> list[Any]:
        wanted = ids_of(ids)
        return await self._reader.results(self._within, tenant, wanted, return_exceptions=return_exceptions)

    async def claim(self, lease: Lease, key: str, ttl: float) -> bool:
        return await self._within.claim_key(f"user:{key}", lease.id, ttl, tenant=lease.tenant)

    @property
    def _within(self) -> Backend | OpenTransaction:
        """The handler's transaction, if one is open; otherwise the store."""
        return current_transaction(self._core.backend) or self._core.backend

    def transaction(self, ctx: Context) -> AbstractAsyncContextManager[Any]:
        held = self._held.find(ctx)
        if held is None or held.over:
            raise InputError("ctx.transaction() is for a handler that is running")
        if held.transaction is not None or current_transaction(self._core.backend) is not None:
            raise InputError(_ONCE)
        return self._open_transaction(held)

    @asynccontextmanager
    async def _open_transaction(self, held: HeldLease) -> AsyncGenerator[Any]:
        transaction = HandlerTransaction(self._core, self._settler)
        try:
            yield await transaction.open()
            self._check_may_commit(held)
        except BaseException as error:
            await finish(transaction.roll_back(error))
            raise
        held.transaction = transaction

    def _check_may_commit(self, held: HeldLease) -> None:
        """Raise if nothing would end the transaction after its block."""
        if held.over:
            raise LeaseLost(held.lease.id, held.stop or "completed")
        if held.transaction is not None:
            raise InputError(_ONCE)


class HandlerTransaction(OpenTransaction):
    """A handler's transaction. It stays open after its block has ended, until the handler's outcome is
    settled in it. Then both commit, or neither does."""

    def __init__(self, core: Core, settler: Settler) -> None:
        super().__init__(core.backend)
        self._core = core
        self._settler = settler

    async def roll_back(self, error: BaseException) -> None:
        async with self.lock:
            self.is_open = False
            await self.stack.__aexit__(type(error), error, error.__traceback__)

    async def settle(self, pending: PendingSettlement) -> None:
        """Settle in it and commit. If that fails, everything is rolled back and the error is raised."""
        async with self.lock:
            self.is_open = False
            async with self.stack:
                answer = await self._settler.within(self.transaction, pending)
        self._core.announcer.queued(self.stored)
        self._settler.committed([pending], answer)
        self._core.wakeups.ready((item.type, item.queue) for item in self.stored)
