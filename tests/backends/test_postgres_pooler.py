"""PostgreSQL behind a pooler in transaction mode: sessions are shared, except the one that listens.

`TREADLE_TEST_POOLER=1` runs the whole contract there."""

import asyncio
import os
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.backends.postgres_store import connected, opened
from tests.backends.test_postgres import PostgresSubject, shared_database, shared_url
from tests.engine.kit import until
from tests.support.pooler import Pooler
from treadle import Context, Result, Treadle, work
from treadle.backends.postgres import PostgresBackend, wakeups
from treadle.backends.postgres.wakeups import NotifyWakeups
from treadle.errors import StoreUnavailable
from treadle.item import Wake
from treadle.store import listening
from treadle.testing.contract import BackendContract
from treadle.testing.contract.build import apply, beat, claim, item, submit, succeed
from treadle.testing.contract.check import consistent
from treadle.testing.contract.wakeups import PATIENCE, WakeRecorder

__all__ = ["shared_database", "shared_url"]


@work(name="record")
async def record(ctx: Context, n: int) -> int:
    async with ctx.transaction() as tx:
        await tx.execute("insert into mine values ($1)", n)
    return n


@work(name="many")
async def many(ctx: Context, count: int) -> Result[None, int]:
    return ctx.queue([record(n) for n in range(count)]).next(record(count))


async def run_two_apps(url: str, listen_url: str) -> None:
    """Run six groups, which store 21 rows in the table `mine` each, through a pooler."""
    one, two = (
        Treadle(PostgresBackend(url, prepare=False, listen_url=listen_url, pool_size=4), work=[record, many])
        for _ in range(2)
    )
    async with one, two, asyncio.timeout(120):
        handles = [await app.enqueue(many(20)) for app in (one, two) for _ in range(3)]
        for handle in handles:
            assert await handle.group() == 20


async def test_the_engine_behind_a_pooler(prepared_url: str) -> None:
    """Groups, dependencies, transactions of handlers and waiting, with 3 server connections for two apps."""
    async with connected(prepared_url) as admin, Pooler(prepared_url) as pooler:
        await admin.execute("create table mine (n int)")
        await run_two_apps(pooler.url, prepared_url)
        assert await admin.fetchval("select count(*) from mine") == 6 * 21
        assert pooler.shared
        await _is_consistent(prepared_url)


async def _is_consistent(url: str) -> None:
    async with opened(url) as backend:
        await consistent(backend)


async def test_timeouts_that_a_pooler_refuses(prepared_url: str) -> None:
    """A pooler cannot keep a session's settings. They are requested once, then left out."""
    async with Pooler(prepared_url) as pooler, opened(pooler.url, prepare=False, notify=False) as backend:
        await asyncio.gather(*(backend.now() for _ in range(5)))
        assert pooler.refused == ["statement_timeout"]


async def test_listening_elsewhere(prepared_url: str) -> None:
    """`listen_url` bypasses the pooler. Wake-ups that are sent through the pooler arrive there."""
    async with (
        Pooler(prepared_url) as pooler,
        opened(pooler.url, prepare=False, listen_url=prepared_url) as backend,
    ):
        recorder = WakeRecorder()
        await backend.subscribe(recorder)
        await backend.publish(Wake(items=(("t", "a"),)))
        await recorder.wait_for({("t", "a")})


async def test_listening_through_the_pooler(prepared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is accepted, and then nothing comes. Workers are told once, with what to set."""
    monkeypatch.setattr(listening, "PROBE_SECONDS", 0.3)
    async with Pooler(prepared_url) as pooler, opened(pooler.url, prepare=False) as backend:
        await backend.subscribe(WakeRecorder())
        await _is_told_of_silence(backend)
        assert not await backend.inspect()


async def test_a_check_that_could_not_be_sent_is_sent_again(
    prepared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "PROBE_SECONDS", 0.3)
    async with (
        Pooler(prepared_url) as pooler,
        opened(prepared_url, listen_url=pooler.url, prepare=False) as backend,
    ):
        with monkeypatch.context() as slow:
            slow.setattr(wakeups, "ECHO_SECONDS", 0.0)
            await backend.subscribe(WakeRecorder())
        await _is_told_of_silence(backend)


async def _is_told_of_silence(backend: PostgresBackend) -> None:
    async with asyncio.timeout(PATIENCE):
        while not (problems := await backend.inspect()):  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.02)
    assert "needs listen_url= past it" in str(problems[0])


async def test_listening_past_the_pooler_is_no_problem(
    prepared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes back is no wake-up for anyone."""
    monkeypatch.setattr(listening, "PROBE_SECONDS", 0.05)
    probed, probes = NotifyWakeups._probed, 0

    async def probed_later(self: NotifyWakeups) -> None:
        """On a busy machine its echo takes a while."""
        nonlocal probes
        await until(lambda: self._echo == "")
        await probed(self)
        probes += 1

    monkeypatch.setattr(NotifyWakeups, "_probed", probed_later)
    async with opened(prepared_url) as backend:
        recorder = WakeRecorder()
        await backend.subscribe(recorder)
        await until(lambda: probes >= 2)
        assert not await backend.inspect()
        assert not recorder.wakes


async def test_prepared_statements_fail(prepared_url: str) -> None:
    """A strict pooler loses prepared statements: hence `prepare=False`."""
    async with Pooler(prepared_url) as pooler:
        connection = await asyncpg.connect(pooler.url)
        assert await connection.fetchval("select $1::int", 1) == 1
        with pytest.raises(asyncpg.InvalidSQLStatementNameError):
            await connection.fetchval("select $1::int", 1)
        await connection.close()


async def test_without_prepare_false_the_error_says_what_to_set(prepared_url: str) -> None:
    """It is no refusal: settlements are repeated."""
    async with Pooler(prepared_url) as pooler:
        with pytest.raises(StoreUnavailable, match="needs prepare=False") as raised:
            await PostgresBackend(pooler.url, notify=False).open()
        assert "statement_cache_size" not in str(raised.value)


async def test_calls_use_every_server_connection(prepared_url: str) -> None:
    """Each transaction of a caller uses any server connection that is free."""
    async with Pooler(prepared_url) as pooler, opened(pooler.url, prepare=False, notify=False) as backend:
        await beat(backend)
        for n in range(20):
            await submit(backend, item(f"a{n}"), item(f"k{n}", key=f"{n}"))
            leases = await claim(backend)
            await apply(backend, *(succeed(lease, item(f"c{lease.id}")) for lease in leases))
        await consistent(backend)
        assert pooler.used == 3


class PooledSubject(PostgresSubject):
    _pooler: Pooler | None = None

    async def another(self) -> PostgresBackend:
        if self._pooler is None:  # not earlier: emptying the database ends all connections
            self._pooler = await self._stack.enter_async_context(Pooler(self._url, servers=6))
        backend = PostgresBackend(self._pooler.url, prepare=False, listen_url=self._url)
        await backend.open()
        self._stack.push_async_callback(backend.close)
        return backend


if os.environ.get("TREADLE_TEST_POOLER"):

    class TestPooledContract(BackendContract):
        @pytest.fixture
        async def subject(self, shared_url: str) -> AsyncIterator[PooledSubject]:
            async with PooledSubject(shared_url) as subject:
                yield subject
