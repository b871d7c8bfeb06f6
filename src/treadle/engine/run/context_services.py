"""EngineServices: what contexts may ask of the engine while a handler runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from treadle.backend import Transaction
from treadle.context import Context
from treadle.engine.core import Core
from treadle.engine.wait.wait_result import item_value
from treadle.errors import InputError, TreadleError
from treadle.item import ItemState, Lease

from .held import HeldLease
from .settle import PendingSettlement, Settler


class EngineServices:
    """One for all attempts of a worker."""

    def __init__(self, core: Core, worker_id: str, active: Callable[[Context], HeldLease | None]) -> None:
        self._core = core
        self._active = active
        self.worker_id = worker_id
        self.resources: Any = None
        self.settler: Settler | None = None

    @property
    def keep(self) -> float:
        return self._core.settings.keep

    async def states(self, tenant: str, ids: Sequence[str]) -> list[ItemState | None]:
        states = await self._core.backend.get(list(ids), tenant=tenant)
        return [None if state is None else decoded(self._core, state) for state in states]

    async def results(self, tenant: str, ids: Sequence[str], *, return_exceptions: bool) -> list[Any]:
        states = await self._core.backend.get(list(ids), tenant=tenant)
        values: list[Any] = []
        for id, state in zip(ids, states, strict=True):
            try:
                values.append(item_value(self._core.registry, state, id))
            except TreadleError as error:
                if not return_exceptions:
                    raise
                values.append(error)
        return values

    async def claim(self, lease: Lease, key: str, ttl: float) -> bool:
        return await self._core.backend.claim_key(f"user:{key}", lease.id, ttl, tenant=lease.tenant)

    def transaction(self, ctx: Context) -> AbstractAsyncContextManager[Any]:
        active = self._active(ctx)
        if active is None:
            raise InputError("ctx.transaction() is for a handler that is running")
        if active.transaction is not None:
            raise InputError("ctx.transaction() can be used once in an attempt")
        return self._opened(active)

    @asynccontextmanager
    async def _opened(self, active: HeldLease) -> AsyncGenerator[Any]:
        assert self.settler is not None
        held = HeldTransaction(self.settler, self._core)
        try:
            yield await held.open()
        except BaseException as error:
            await held.undo(error)
            raise
        active.transaction = held


class HeldTransaction:
    """A handler's transaction after its block has ended: open until what the handler returns is settled in
    it. Then both commit, or neither does."""

    def __init__(self, settler: Settler, core: Core) -> None:
        self._settler = settler
        self._core = core
        self._stack = AsyncExitStack()
        self._transaction: Transaction | None = None

    async def open(self) -> Any:
        manager = self._core.backend.transaction()
        self._transaction = await self._stack.enter_async_context(manager)
        return self._transaction.connection

    async def undo(self, error: BaseException) -> None:
        await self._stack.__aexit__(type(error), error, error.__traceback__)

    async def settle(self, entry: PendingSettlement) -> None:
        """Settle in it and commit. Raises, with everything rolled back, if that cannot be."""
        assert self._transaction is not None
        async with self._stack:
            answer = await self._settler.within(self._transaction, entry)
        self._settler.follow([entry], answer)


def decoded(core: Core, state: ItemState) -> ItemState:
    """A state as users see it: with its result decoded."""
    if isinstance(state.result, bytes):
        state.result = core.registry.read_result(state.type, state.result)
    return state
