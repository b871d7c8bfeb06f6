"""The transaction of a handler whose attempt is over: it is rolled back, and holds up no other work."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from tests.engine.kit import PATIENCE, Barrier, MakeApp, until, until_status
from treadle import Context, Retry, Treadle, WorkFailed, work
from treadle.engine import store_retry
from treadle.engine.run import attempt, loops
from treadle.engine.run.held import HeldLease
from treadle.errors import LeaseLost

pytestmark = pytest.mark.every_store

ONCE = Retry(attempts=1)


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "CANCEL_GRACE", 0.05)
    monkeypatch.setattr(loops, "CANCEL_GRACE", 0.05)
    monkeypatch.setattr(store_retry, "STOP_TIMEOUT", 0.05)  # on SQLite, claims wait for the transaction


@pytest.fixture(params=["sqlite", "postgres"])
def store(store: object) -> object:
    """Memory has no transactions."""
    return store


@work(name="take")
async def take(ctx: Context) -> bool:
    """Whether the key is free: what the transaction of another attempt claimed was undone."""
    return await ctx.claim("key")


def held_by(app: Treadle, ctx: Context) -> HeldLease:
    """The attempt of this context. While the test refers to it, its transaction is not garbage."""
    assert app.worker._runtime is not None
    held = app.worker._runtime.held.find(ctx)
    assert held is not None
    return held


async def test_a_block_that_ends_after_its_attempt_is_rolled_back(make_app: MakeApp) -> None:
    """The attempt timed out in the block, and the clean-up took longer than the grace period."""
    attempts: list[HeldLease] = []
    after_block: list[str] = []

    @work(name="slow", timeout=PATIENCE, retry=ONCE)
    async def slow(ctx: Context) -> None:
        attempts.append(held_by(app, ctx))
        try:
            async with ctx.transaction():
                assert await ctx.claim("key")
                ctx.extend(0.05)  # not earlier: before it is in the block
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    await until(lambda: attempts[0].over)
        except LeaseLost as error:
            after_block.append(error.reason)

    async with make_app(slow, take) as app:
        handle = await app.enqueue(slow())
        with pytest.raises(WorkFailed, match="longer than its timeout"):
            await handle.result(PATIENCE)
        assert await app.enqueue(take()).result(PATIENCE) is True
        await until(lambda: after_block)
    assert after_block == ["timeout"]


async def test_a_block_that_a_background_task_ends_after_the_handler_is_rolled_back(
    make_app: MakeApp,
) -> None:
    barrier = Barrier()
    tasks: list[asyncio.Task[None]] = []
    attempts: list[HeldLease] = []

    async def block(ctx: Context) -> None:
        async with ctx.transaction():
            assert await ctx.claim("key")
            await barrier.wait()

    @work(name="careless")
    async def careless(ctx: Context) -> None:
        attempts.append(held_by(app, ctx))
        tasks.append(asyncio.ensure_future(block(ctx)))
        await barrier.reached()

    async with make_app(careless, take) as app:
        handle = await app.enqueue(careless())
        await until(lambda: attempts and attempts[0].over)
        barrier.go.set()
        await handle.result(PATIENCE)
        with pytest.raises(LeaseLost):
            await tasks[0]
        assert await app.enqueue(take()).result(PATIENCE) is True


async def test_a_handler_that_does_not_end_after_its_block_is_settled(make_app: MakeApp) -> None:
    """It times out after the block and ignores its cancellation. Its transaction is rolled back first."""
    barrier = Barrier()

    @work(name="stubborn", timeout=PATIENCE, retry=ONCE)
    async def stubborn(ctx: Context) -> None:
        async with ctx.transaction():
            assert await ctx.claim("key")
        ctx.extend(0.05)  # not earlier: before it is behind the block
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await barrier.wait()

    async with make_app(stubborn, take) as app:
        handle = await app.enqueue(stubborn())
        with pytest.raises(WorkFailed):
            await handle.result(PATIENCE)
        assert await app.enqueue(take()).result(PATIENCE) is True
        barrier.go.set()


async def test_stop_rolls_back_what_a_handler_leaves_open(make_app: MakeApp) -> None:
    """The handler ignores its cancellation. Its item is given back."""
    barrier, go = Barrier(), asyncio.Event()
    tasks: list[asyncio.Task[object] | None] = []

    @work(name="stubborn")
    async def stubborn(ctx: Context) -> None:
        tasks.append(asyncio.current_task())
        async with ctx.transaction():
            assert await ctx.claim("key")
        try:
            await barrier.wait()
        except asyncio.CancelledError:
            await go.wait()

    first = make_app(stubborn)
    await first.start()
    handle = await first.enqueue(stubborn())
    await barrier.reached()
    await first.stop(drain=0)
    assert tasks[0] is not None
    assert not tasks[0].done()
    async with make_app(take) as second:
        assert (await second.handle(handle.id).state()).status == "ready"
        assert await second.enqueue(take()).result(PATIENCE) is True
    go.set()
    await tasks[0]


async def test_stop_ends_a_block_that_a_handler_does_not_leave(make_app: MakeApp) -> None:
    """Other processes can write although the handler still runs."""
    barrier, go = Barrier(), asyncio.Event()
    tasks: list[asyncio.Task[object] | None] = []

    @work(name="stubborn")
    async def stubborn(ctx: Context) -> None:
        tasks.append(asyncio.current_task())
        async with ctx.transaction():
            assert await ctx.claim("key")
            try:
                await barrier.wait()
            except asyncio.CancelledError:
                await go.wait()

    first = make_app(stubborn)
    await first.start()
    await first.enqueue(stubborn())
    await barrier.reached()
    await first.stop(drain=0)
    async with make_app(take) as second:
        assert await second.enqueue(take()).result(PATIENCE) is True
    go.set()
    assert tasks[0] is not None
    await asyncio.wait({tasks[0]}, timeout=PATIENCE)
    assert tasks[0].done()


async def test_a_second_transaction_at_the_same_time_is_refused(warm_url: str) -> None:
    """By two tasks of one handler. Only one of the two blocks can be a part of the settlement."""
    barrier = Barrier()

    async def block(ctx: Context, key: str) -> bool:
        async with ctx.transaction():
            return await ctx.claim(key) and await _both(barrier)

    @work(name="twice")
    async def twice(ctx: Context) -> list[str]:
        answers = await asyncio.gather(block(ctx, "one"), block(ctx, "two"), return_exceptions=True)
        return sorted(type(answer).__name__ for answer in answers)

    async with Treadle(warm_url, work=[twice]) as app:
        assert await app.enqueue(twice()).result(PATIENCE) == ["InputError", "bool"]


async def _both(barrier: Barrier) -> bool:
    barrier.count += 1
    await until(lambda: barrier.count == 2)
    return True


async def test_an_attempt_is_settled_although_its_connection_was_lost(warm_url: str) -> None:
    """After the block. The rollback fails, and the attempt fails with the handler's own error."""

    @work(name="cut", retry=Retry(attempts=2, base=0))
    async def cut(ctx: Context) -> int:
        if ctx.attempt == 1:
            async with ctx.transaction() as tx:
                pid = await tx.fetchval("select pg_backend_pid()")
            await _terminate(warm_url, pid)
            raise OSError("after the block")
        return ctx.attempt

    async with Treadle(warm_url, work=[cut]) as app:
        handle = await app.enqueue(cut())
        assert await handle.result(PATIENCE) == 2
        (failed,) = (await handle.state()).history
        assert (failed.attempt, failed.error_type) == (1, "OSError")


async def test_a_cancelled_item_leaves_no_transaction_open(warm_url: str) -> None:
    """On PostgreSQL: on SQLite no cancellation can be written before the transaction ends."""
    barrier = Barrier()
    attempts: list[HeldLease] = []

    @work(name="held")
    async def held(ctx: Context) -> None:
        async with ctx.transaction():
            assert await ctx.claim("key")
        attempts.append(held_by(app, ctx))
        await barrier.wait()

    async with Treadle(warm_url, work=[held, take], poll_interval=0.05, lease=0.5) as app:
        handle = await app.enqueue(held())
        await barrier.reached()
        await handle.cancel()
        await until(lambda: attempts[0].over)
        await until_status(app, handle.id, "cancelled")
        assert await app.enqueue(take()).result(PATIENCE) is True


async def _terminate(url: str, pid: int) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("select pg_terminate_backend($1, 5000)", pid)
    await connection.close()
