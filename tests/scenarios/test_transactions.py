"""Q1 to Q6 on PostgreSQL: the user's data and work in one transaction, in the whole engine."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg
from django.db import transaction

from tests.backends.postgres_store import connected, wake_channel
from tests.engine.kit import PATIENCE, Seen, failure, until_status
from tests.scenarios.shipping import shipping
from tests.support.django_connection import django_connection
from treadle import Context, Result, Retry, Treadle, work
from treadle.events import Queued, Started

PROJECT = Path(__file__).parents[2]


class Undo(Exception):
    """Rolls a transaction back."""


class Channel:
    """Records every notification of our channel, as other processes get them."""

    def __init__(self) -> None:
        self.notifications: list[str] = []
        self._any = asyncio.Event()

    def __call__(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        self.notifications.append(str(payload))
        self._any.set()

    async def wait(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._any.wait()

    @property
    def wakes(self) -> int:
        """The wake-ups of users' transactions."""
        return self.notifications.count('{"ready":true}')


@asynccontextmanager
async def listening(url: str) -> AsyncGenerator[tuple[Channel, asyncpg.Connection]]:
    """A listener on our channel, and a connection of the user with its own table."""
    async with connected(url) as listener, connected(url) as user:
        channel = Channel()
        await listener.add_listener(await wake_channel(listener), channel)
        await user.execute("create table orders (id int)")
        yield channel, user


@work(name="confirm")
async def confirm(order: int) -> int:
    return order


async def test_q01_a_rolled_back_transaction_submits_nothing(warm_url: str) -> None:
    """Neither the row nor the item exists. There was no wake-up and no event."""
    seen = Seen()
    async with listening(warm_url) as (channel, user):
        app = Treadle(warm_url, work=[confirm], on_event=seen)
        await app.connect()
        with suppress(Undo):
            async with user.transaction():
                await user.execute("insert into orders values (1)")
                handle = await app.enqueue(confirm(1), tx=user)
                raise Undo
        assert await app.get(handle) == [None]
        assert await user.fetchval("select count(*) from orders") == 0
        await user.execute("select pg_notify($1, 'the end')", await wake_channel(user))
        await channel.wait()
        assert channel.wakes == 0
        assert seen.events == []
        await app.close()


async def test_q02_a_committed_transaction_wakes_workers_once(warm_url: str) -> None:
    """Ten items, one wake-up, after the commit: the handlers find the user's row."""
    found: list[int] = []

    @work(name="look")
    async def look(n: int) -> int:
        async with connected(warm_url) as mine:
            found.append(await mine.fetchval("select count(*) from orders"))
        return n

    producer = Treadle(warm_url, work=[look])
    async with listening(warm_url) as (channel, user), Treadle(warm_url, work=[look]):
        await producer.connect()
        async with user.transaction():
            await user.execute("insert into orders values (1)")
            handles = await producer.enqueue_many([look(n) for n in range(10)], tx=user)
            assert channel.wakes == 0
        assert [await handle.result(PATIENCE) for handle in handles] == list(range(10))
        assert found == [1] * 10
        assert channel.wakes == 1
        await producer.close()


async def test_q03_a_rolled_back_savepoint_submits_nothing(warm_url: str) -> None:
    """Only the item that was enqueued outside of it exists."""
    seen = Seen()
    async with connected(warm_url) as user, Treadle(warm_url, work=[confirm], on_event=seen) as app:
        async with user.transaction():
            outer = await app.enqueue(confirm(1), tx=user)
            with suppress(Undo):
                async with user.transaction():
                    inner = await app.enqueue(confirm(2), tx=user)
                    raise Undo
        assert await outer.result(PATIENCE) == 1
        assert await app.get(inner) == [None]
        assert {event.id for event in seen.of(Started)} == {outer.id}
        assert not seen.of(Queued, inner.id)


async def test_q04_a_worker_killed_before_the_commit_leaves_nothing(warm_url: str) -> None:
    """Row, result and continuation do not exist. The next worker makes exactly one of each."""
    async with connected(warm_url) as user:
        await user.execute("create table orders (id int)")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.scenarios.shipping", warm_url, cwd=PROJECT
        )
        assert await process.wait() == -signal.SIGKILL
        assert await user.fetchval("select count(*) from orders") == 0
        assert await user.fetchval("select count(*) from treadle.item") == 1
        assert await user.fetchval("select count(*) from treadle.ended_item") == 0
        assert await shipping(warm_url, die=False) == 2
        assert await user.fetchval("select count(*) from orders") == 1
        assert await user.fetchval("select count(*) from treadle.ended_item") == 2


async def test_q05_an_exception_after_the_block_undoes_everything(warm_url: str) -> None:
    """The row, the result, its children and its dependents are as if it had not run."""
    runs: list[int] = []

    @work(name="after")
    async def after() -> None: ...

    @work(name="ship", retry=Retry(attempts=2, base=3600, jitter=0))
    async def ship(ctx: Context) -> Result[None, int]:
        runs.append(ctx.attempt)
        async with ctx.transaction() as tx:
            await tx.execute("insert into orders values (1)")
        ctx.queue(confirm(1))
        raise RuntimeError("too late")

    async with connected(warm_url) as user:
        await user.execute("create table orders (id int)")
        async with Treadle(warm_url, work=[ship, confirm, after], strict_return=False) as app:
            handle = await app.enqueue(ship())
            waiting = await app.enqueue(after(), after=[handle.id])
            state = await until_status(app, handle.id, "scheduled")
            assert (state.attempt, runs, [one.message for one in state.history]) == (1, [1], ["too late"])
            assert (await waiting.state()).status == "blocked"
            assert await user.fetchval("select count(*) from orders") == 0
            assert await user.fetchval("select count(*) from treadle.item") == 2


async def test_q06_an_error_in_the_users_sql_fails_the_attempt(warm_url: str) -> None:
    """The transaction is aborted. The attempt has failed, and the connection can be used again."""

    @work(name="divide", retry=Retry(attempts=3, base=0))
    async def divide(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute("insert into orders values (1)")
            await tx.execute("select 1 / 0")

    async with connected(warm_url) as user:
        await user.execute("create table orders (id int)")
        async with Treadle(warm_url, work=[divide, confirm]) as app:
            error = await failure(app.enqueue(divide()).result(PATIENCE))
            assert (error.reason, error.attempts) == ("exhausted", 3)
            assert "division by zero" in str(error.error)
            for n in range(20):
                assert await app.enqueue(confirm(n)).result(PATIENCE) == n
        assert await user.fetchval("select count(*) from orders") == 0


async def test_q01_to_q03_in_a_django_view(warm_url: str) -> None:
    """In the thread of the request, with `app.sync`: a commit, a rollback, and a rollback to a savepoint."""
    app = Treadle(warm_url, work=[confirm])

    def view() -> list[int | None]:
        with django_connection(warm_url) as connection:
            with transaction.atomic(using=connection.alias):
                kept = app.sync.enqueue(confirm(1), tx=connection)
                with suppress(Undo), transaction.atomic(using=connection.alias):
                    inner = app.sync.enqueue(confirm(2), tx=connection)
                    raise Undo
            with suppress(Undo), transaction.atomic(using=connection.alias):
                undone = app.sync.enqueue(confirm(3), tx=connection)
                raise Undo
        assert app.sync.get([inner.id, undone.id]) == [None, None]
        return [kept.result(timeout=PATIENCE)]

    app.sync.start()
    try:
        assert await asyncio.to_thread(view) == [1]
    finally:
        await asyncio.to_thread(app.sync.stop)
