"""EngineServices: what the context of a running handler asks of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from treadle.backend import Backend
from treadle.base.callables import runs_here
from treadle.base.ids import ids_of
from treadle.define.work import WorkTypeBase
from treadle.engine.core import Core
from treadle.engine.open_transaction import OpenTransaction, current_transaction
from treadle.engine.store_retry import retry_unavailable
from treadle.engine.tasks import finish
from treadle.engine.wait.read_results import ResultReader
from treadle.errors import InputError, LeaseLost
from treadle.handler.context import Context, blocking_connection
from treadle.item import ItemState, Lease

from .decide import PendingSettlement
from .held import HeldLease, HeldLeases, HeldSteps
from .settle import Settler
from .step_calls import wait_on
from .steps import StepServices

T = TypeVar("T")

_ONCE = "ctx.transaction() can be used once in an attempt, and not inside another one"


ExtendTimeout: TypeAlias = Callable[[HeldLease, float], float | None]
"""Moves the end of an attempt's timeout, on the event loop. Returns the end of the attempt."""


class EngineServices:
    """One for all attempts of a worker. `resources` is what the worker's lifespan yields."""

    def __init__(
        self, core: Core, worker_id: str, held: HeldLeases, settler: Settler, extend: ExtendTimeout
    ) -> None:
        self._core = core
        self._held = held
        self._extend = extend
        self._settler = settler
        self._loop = asyncio.get_running_loop()
        self._reader = ResultReader(core.backend, core.registry, core.tasks)
        self.attempt_steps = StepServices(core, self._reader)
        self.worker_id = worker_id
        self.resources: Any = None

    @property
    def keep(self) -> float:
        return self._core.settings.keep

    def check_nested(self, what: str) -> None:
        self._core.item_builder.check_nested(what)

    async def states(self, tenant: str, ids: Sequence[str]) -> list[ItemState | None]:
        wanted = ids_of(ids)
        return await self._ask(lambda within: self._reader.states(within, tenant, wanted))

    async def results(
        self, tenant: str, ids: Sequence[str], *, return_exceptions: bool, of: WorkTypeBase | None = None
    ) -> list[Any]:
        wanted = ids_of(ids)
        return await self._ask(
            lambda within: self._reader.results(
                within, tenant, wanted, return_exceptions=return_exceptions, of=of
            )
        )

    async def result_of(self, tenant: str, ids: Sequence[str], of: WorkTypeBase) -> Any:
        return await self._ask(lambda within: self._reader.result_of(within, tenant, ids, of))

    async def claim(self, lease: Lease, key: str, ttl: float) -> bool:
        return await self._ask(
            lambda within: within.claim_key(f"user:{key}", lease.id, ttl, tenant=lease.tenant)
        )

    async def _ask(self, question: Callable[[Backend | OpenTransaction], Awaitable[T]]) -> T:
        """The answer to a question that may be repeated. A store that is away briefly, as in a failover,
        costs no attempt. A transaction does not survive that."""
        within = self._within
        if within is not self._core.backend:
            return await question(within)
        return await retry_unavailable(lambda: question(within), self._core.settings)

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

    def transaction(self, ctx: Context, session: Any = None) -> AbstractAsyncContextManager[Any]:
        self._check_loop()
        held = self._held.find(ctx)
        if held is None or held.over:
            raise InputError("ctx.transaction() is for a handler that is running")
        if held.batch is not None:
            raise InputError("ctx.transaction() is not for a batch: its items are settled one by one")
        if held.transaction is not None or current_transaction(self._core.backend) is not None:
            raise InputError(_ONCE)
        return self._open_transaction(held, session)

    def extend(self, lease: Lease, seconds: float) -> float | None:
        held = self._held.by_token.get(lease.token)
        if held is None or self._core.loop is None:
            raise InputError("ctx.extend() is for a handler that is running")
        return run_on_loop(self._core.loop, partial(self._extend, held, seconds))

    def steps(self, lease: Lease, what: str) -> HeldSteps:
        held = self._held.by_token.get(lease.token)
        if held is None or held.over:
            raise LeaseLost(lease.id, "completed" if held is None or held.stop is None else held.stop)
        if held.steps is None:
            held.steps = self.attempt_steps.of(held, what)
        return held.steps

    @contextmanager
    def sync_transaction(self, ctx: Context, session: Any = None) -> Generator[Any]:
        block: _Block = self.wait(lambda: self._enter_block(ctx))
        transaction = block.transaction
        transaction.enter()
        try:
            with self._given_to_thread(transaction, session) as given:
                transaction.given = given
                yield given
        except BaseException as error:
            self.wait(partial(block.manager.__aexit__, type(error), error, error.__traceback__))
            raise
        self.wait(partial(block.manager.__aexit__, None, None, None))

    def _given_to_thread(self, transaction: HandlerTransaction, session: Any) -> AbstractContextManager[Any]:
        if session is None:
            return nullcontext(blocking_connection(transaction.given, self.wait))
        from treadle.handler.orm_session import blocking_session_on  # it imports SQLAlchemy

        return blocking_session_on(session, transaction.given, self.wait)

    async def _enter_block(self, ctx: Context) -> _Block:
        manager = self.transaction(ctx)
        await manager.__aenter__()
        transaction = current_transaction(self._core.backend)
        assert isinstance(transaction, HandlerTransaction)
        return _Block(manager, transaction)

    def wait(self, request: Callable[[], Awaitable[T]]) -> T:
        return wait_on(self._loop, request)

    @asynccontextmanager
    async def _open_transaction(self, held: HeldLease, session: Any) -> AsyncGenerator[Any]:
        transaction = HandlerTransaction(self._core, self._settler, held.lease.tenant)
        try:
            connection = await transaction.open()
            if session is None:
                yield connection
            else:
                from treadle.handler.orm_session import session_on  # it imports SQLAlchemy

                async with session_on(session, connection) as transaction.given:
                    yield transaction.given
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


def run_on_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], T]) -> T:
    """Call a function on the event loop, from there or from another thread."""
    if runs_here(loop):
        return call()
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001  the caller gets it
            answer.set_exception(error)

    loop.call_soon_threadsafe(run)
    return answer.result()


class HandlerTransaction(OpenTransaction):
    """A handler's transaction. It stays open after its block has ended, until the handler's outcome is
    settled in it. Then both commit, or neither does."""

    def __init__(self, core: Core, settler: Settler, tenant: str) -> None:
        super().__init__(core.backend, tenant)
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
        for item, queued_at in self.stored:
            self._core.announcer.queued([item], queued_at)
        self._settler.committed([pending], answer)
        self._core.wakeups.ready(self.lines)


class _Block(NamedTuple):
    """The open block of `ctx.sync.transaction()`."""

    manager: AbstractAsyncContextManager[Any]
    transaction: HandlerTransaction
