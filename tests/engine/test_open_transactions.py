"""Handlers that keep their transactions open, or spoil them: other work goes on, and they are told."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress

import asyncpg
import pytest

from tests.engine.kit import PATIENCE
from treadle import Context, Retry, Treadle, WorkFailed, work
from treadle.backend import Backend
from treadle.backends.postgres import PostgresBackend

pytestmark = pytest.mark.every_store

MANY = 20


@pytest.mark.parametrize("pool_size", [10, 3])
async def test_open_transactions_leave_connections_for_others(warm_url: str, pool_size: int) -> None:
    """Also while many handlers wait for a transaction, or for a key that an open one has claimed."""
    opened, all_claim, go = asyncio.Event(), asyncio.Event(), asyncio.Event()
    claims: list[str] = []

    @work(name="hold")
    async def hold(ctx: Context) -> None:
        async with ctx.transaction():
            if ctx.id == holding[0].id:
                assert await ctx.claim("key")
                opened.set()
            await go.wait()

    @work(name="claim")
    async def claim(ctx: Context) -> bool:
        await opened.wait()
        claims.append(ctx.id)
        if len(claims) == MANY:
            all_claim.set()
        return await ctx.claim("key")

    @work(name="other")
    async def other(ctx: Context) -> str:
        return ctx.id

    backend = PostgresBackend(warm_url, pool_size=pool_size)
    async with Treadle(backend, work=[hold, claim, other], poll_interval=0.1) as app:
        holding = [hold() for _ in range(MANY)]
        held = await app.enqueue_many(holding)
        claiming = await app.enqueue_many([claim() for _ in range(MANY)])
        await opened.wait()
        await all_claim.wait()
        for _ in range(3):
            handle = await app.enqueue(other())
            assert await handle.result(PATIENCE) == handle.id
        go.set()
        assert [await handle.result(PATIENCE) for handle in claiming] == [False] * MANY
        assert [await handle.result(PATIENCE) for handle in held] == [None] * MANY


async def test_stop_does_not_wait_for_requested_transactions(warm_url: str) -> None:
    """Handlers that wait for a transaction are interrupted like all others."""
    opened = asyncio.Event()

    @work(name="hold")
    async def hold(ctx: Context) -> None:
        async with ctx.transaction():
            opened.set()
            await asyncio.Event().wait()

    app = Treadle(warm_url, work=[hold])
    await app.start()
    handles = await app.enqueue_many([hold() for _ in range(MANY)])
    await opened.wait()
    async with asyncio.timeout(PATIENCE / 3):
        await app.stop(drain=0)
    async with Treadle(warm_url, work=[]) as other:
        states = await other.get(handles)
    assert {state.status for state in states if state is not None} == {"ready"}


@work(name="spoil", retry=Retry(attempts=1))
async def spoil(ctx: Context, how: str) -> str:
    async with ctx.transaction() as tx:
        if how == "error":
            with suppress(asyncpg.UndefinedTableError):
                await tx.execute("select 1 from nowhere")
        elif inspect.isawaitable(done := tx.execute(how)):
            await done
    return "done"


@pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK"])
async def test_a_handler_that_ends_its_transaction_is_told(store: Callable[[], Backend], how: str) -> None:
    async with Treadle(store(), work=[spoil]) as app:
        with pytest.raises(WorkFailed, match="leave COMMIT and ROLLBACK to its block"):
            await app.enqueue(spoil(how)).result(PATIENCE)


async def test_a_handler_that_hides_an_error_of_its_transaction_is_told(warm_url: str) -> None:
    async with Treadle(warm_url, work=[spoil]) as app:
        with pytest.raises(WorkFailed, match="BackendError: a statement of yours has failed"):
            await app.enqueue(spoil("error")).result(PATIENCE)
