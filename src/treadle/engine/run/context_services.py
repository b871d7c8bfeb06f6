"""EngineServices: what the context of a running handler asks of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from treadle.backend import Backend
from treadle.context import Context
from treadle.context_sync import blocking_connection
from treadle.engine.core import Core
from treadle.engine.large_values import read_value
from treadle.engine.open_transaction import OpenTransaction, current_transaction
from treadle.engine.tasks import finish
from treadle.engine.wait.wait_result import decode_states, item_value
from treadle.errors import InputError, LeaseLost, Stopped, TreadleError
from treadle.ids import ids_of
from treadle.item import ItemState, Lease

from .held import HeldLease, HeldLeases
from .pending import PendingSettlement
from .settle import Settler

T = TypeVar("T")

LOOP_CHECK: Final = 1.0
"""So often a thread that waits for an answer checks whether the worker's event loop still exists."""
_ONCE = "ctx.transaction() can be used once in an attempt, and not inside another one"


class EngineServices:
    """One for all attempts of a worker. `resources` is what the worker's lifespan yields."""

    def __init__(self, core: Core, worker_id: str, held: HeldLeases, settler: Settler) -> None:
        self._core = core
        self._held = held
        self._settler = settler
        self._loop = asyncio.get_running_loop()
        self.worker_id = worker_id
        self.resources: Any = None

    @property
    def keep(self) -> float:
        return self._core.settings.keep

    async def states(self, tenant: str, ids: Sequence[str]) -> list[ItemState | None]:
        states = await self._within.get(ids_of(ids), tenant=tenant)
        return await decode_states(self._core.registry, states)

    async def results(self, tenant: str, ids: Sequence[str], *, return_exceptions: bool) -> list[Any]:
        wanted = ids_of(ids)
        states = await self._within.get(wanted, tenant=tenant)
        values: list[Any] = []
        for id, state in zip(wanted, states, strict=True):
            try:
                data = None if state is None else state.result
                values.append(await read_value(data, item_value, self._core.registry, state, id))
            except TreadleError as error:
                if not return_exceptions:
                    raise
                values.append(error)
        return values

    async def claim(self, lease: Lease, key: str, ttl: float) -> bool:
        return await self._within.claim_key(f"user:{key}", lease.id, ttl, tenant=lease.tenant)

    @property
    def _within(self) -> Backend | OpenTransaction:
        """The handler's transaction, if one is open; otherwise the store."""
        self._check_loop()
        return current_transaction(self._core.backend) or self._core.backend

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "this is not the worker's event loop, on which a Context answers: in a thread with an event "
                "loop of its own, use `await asyncio.to_thread(ctx.sync.results, ids)` and the like"
            )

    def transaction(self, ctx: Context) -> AbstractAsyncContextManager[Any]:
        self._check_loop()
        held = self._held.find(ctx)
        if held is None or held.over:
            raise InputError("ctx.transaction() is for a handler that is running")
        if held.batch is not None:
            raise InputError("ctx.transaction() is not for a batch: its items are settled one by one")
        if held.transaction is not None or current_transaction(self._core.backend) is not None:
            raise InputError(_ONCE)
        return self._open_transaction(held)

    @contextmanager
    def sync_transaction(self, ctx: Context) -> Generator[Any]:
        block: _Block = self.wait(lambda: self._enter_block(ctx))
        transaction = block.transaction
        transaction.enter()
        transaction.given = blocking_connection(transaction.given, self.wait)
        try:
            yield transaction.given
        except BaseException as error:
            self.wait(partial(block.manager.__aexit__, type(error), error, error.__traceback__))
            raise
        self.wait(partial(block.manager.__aexit__, None, None, None))

    async def _enter_block(self, ctx: Context) -> _Block:
        manager = self.transaction(ctx)
        await manager.__aenter__()
        transaction = current_transaction(self._core.backend)
        assert isinstance(transaction, HandlerTransaction)
        return _Block(manager, transaction)

    def wait(self, request: Callable[[], Awaitable[T]]) -> T:
        async def on_loop() -> T:
            return await request()

        coroutine = on_loop()
        try:
            answer = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise Stopped("the worker") from None
        while True:
            try:
                return answer.result(LOOP_CHECK)
            except CancelledError:
                raise Stopped("the worker") from None
            except TimeoutError:
                # Raised by the request itself, or by the wait for it.
                if answer.done():
                    raise
                if self._loop.is_closed():
                    raise Stopped("the worker") from None

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


class _Block(NamedTuple):
    """The open block of `ctx.sync.transaction()`."""

    manager: AbstractAsyncContextManager[Any]
    transaction: HandlerTransaction
