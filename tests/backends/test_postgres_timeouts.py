"""PostgreSQL: statements that take too long, and transactions that are open for too long."""

import asyncio
from contextlib import suppress

import asyncpg
import pytest

from tests.backends.postgres_store import connected, opened
from treadle import LongTransaction, Treadle
from treadle.backends.postgres import PostgresBackend, watch
from treadle.engine.upkeep.prune import Pruner
from treadle.errors import BackendError, StoreTooSlow, StoreUnavailable
from treadle.item import Heartbeat
from treadle.testing.contract.build import item, submit

WAITING_FOR_LOCKS = """
select count(*) from pg_locks where not granted
  and database = (select oid from pg_database where datname = current_database())
"""


async def _pin(connection: "asyncpg.Connection") -> int:
    """Take a snapshot and keep it. Returns the pid of the session."""
    await connection.execute("begin isolation level repeatable read")
    pid: int = await connection.fetchval("select pg_backend_pid()")
    return pid


class TestLongTransactions:
    async def test_are_reported_with_session_and_age(self, prepared_url: str) -> None:
        """The message says what to do."""
        async with opened(prepared_url, long_transaction=0) as backend, connected(prepared_url) as user:
            assert await backend.inspect() == []
            pid = await _pin(user)
            (trouble,) = await backend.inspect()
            assert isinstance(trouble, LongTransaction)
            assert trouble.pid == pid
            assert trouble.seconds > 0
            assert f"pg_terminate_backend({pid})" in str(trouble)

    async def test_are_reported_once(self, prepared_url: str) -> None:
        """And again when it has become twice as old, or when it is another one of that session."""
        async with opened(prepared_url, long_transaction=0) as backend, connected(prepared_url) as user:
            await _pin(user)
            (first,) = await backend.inspect()
            assert isinstance(first, LongTransaction)
            backend._long_transactions._reported = {first.holder: 1000.0}
            assert len(await backend.inspect()) == 1  # younger: it is another one
            backend._long_transactions._reported = {first.holder: first.seconds}
            reports = 0
            while not reports:
                reports = len(await backend.inspect())
            assert backend._long_transactions._reported[first.holder] >= 2 * first.seconds
            await user.execute("rollback")
            assert await backend.inspect() == []
            assert backend._long_transactions._reported == {}

    async def test_harmless_ones_are_not_reported(self, prepared_url: str) -> None:
        """Neither a transaction without a snapshot, nor a young one, nor any if the check is off."""
        async with opened(prepared_url, long_transaction=0) as backend, connected(prepared_url) as user:
            await user.execute("begin; select 1")
            assert await backend.inspect() == []
            await user.execute("rollback")
            await _pin(user)
            async with opened(prepared_url) as usual, opened(prepared_url, long_transaction=None) as off:
                assert not await usual.inspect()
                assert not await off.inspect()

    async def test_prepared_transactions_are_reported(self, prepared_url: str) -> None:
        """They belong to no session, and survive a restart."""
        async with opened(prepared_url, long_transaction=0) as backend, connected(prepared_url) as user:
            if await user.fetchval("show max_prepared_transactions") == "0":
                pytest.skip("the server of TREADLE_TEST_POSTGRES allows no prepared transactions")
            await user.execute("begin; create table mine (); prepare transaction 'left behind'")
            (trouble,) = await backend.inspect()
            await user.execute("rollback prepared 'left behind'")
            assert "rollback prepared 'left behind'" in str(trouble)

    async def test_workers_report_them_to_on_error(self, prepared_url: str) -> None:
        """Like all errors that no caller can receive."""
        reported: list[tuple[BaseException, str]] = []
        backend = PostgresBackend(prepared_url, long_transaction=0)
        app = Treadle(backend, on_error=lambda error, phase: reported.append((error, phase)))
        async with app, connected(prepared_url) as user:
            pid = await _pin(user)
            pruner: Pruner = app.worker._runtime.loops.pruner
            await pruner.inspect()
            assert [
                (error.pid, phase)
                for error, phase in reported
                if isinstance(error, LongTransaction) and error.pid == pid  # one of its own may be open too
            ] == [(pid, "claim")]


class TestTimeouts:
    async def test_the_server_ends_what_takes_too_long(self, prepared_url: str) -> None:
        """The statement is rolled back, and may be tried again."""
        async with opened(prepared_url, statement_timeout=0.2) as backend, connected(prepared_url) as admin:
            await admin.execute("begin; lock table treadle.item")
            with pytest.raises(StoreTooSlow, match="timeout"):
                await submit(backend, item("a"))
            await admin.execute("rollback")
            await submit(backend, item("a"))

    async def test_in_a_handlers_transaction_too(self, prepared_url: str) -> None:
        """The handler gets the driver's own error, and may set a longer timeout."""
        async with opened(prepared_url, statement_timeout=0.2) as backend:

            async def sleep() -> None:
                async with backend.transaction() as transaction:
                    await transaction.connection.execute("set local statement_timeout = 0")
                    await transaction.connection.execute("select pg_sleep(0.4)")
                    await transaction.connection.execute("set local statement_timeout = '50ms'")
                    await transaction.connection.execute("select pg_sleep(60)")

            with pytest.raises(asyncpg.QueryCanceledError):
                await sleep()

    async def test_a_caller_gives_up_on_a_server_that_hangs(self, prepared_url: str) -> None:
        """After `patience`, a few times. The server is told to stop, and no lock is waited for afterwards."""
        async with opened(prepared_url, patience=0.1) as backend, connected(prepared_url) as admin:
            await admin.execute("begin; lock table treadle.item")
            with pytest.raises(StoreUnavailable):
                await submit(backend, item("a"))
            await admin.execute("rollback")
            await submit(backend, item("b"))
            assert await admin.fetchval(WAITING_FOR_LOCKS) == 0

    async def test_a_read_for_operators_is_stopped_early(
        self, prepared_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is not repeated, the error says what was done, and the server works on it no longer."""
        monkeypatch.setattr(watch, "READ_SECONDS", 0.1)
        async with opened(prepared_url) as backend, connected(prepared_url) as admin:
            await submit(backend, item("a"))
            await admin.execute("begin; lock table treadle.open_item")
            for read in (backend.overview, lambda: backend.explain("a")):
                with pytest.raises(StoreTooSlow, match=r"within 0\.1 s, and was told to stop"):
                    await read()
            await admin.execute("rollback")
            monkeypatch.setattr(watch, "READ_SECONDS", 30.0)  # a busy machine takes longer than 0.1 s
            assert await backend.explain("a") is not None
            assert await admin.fetchval(WAITING_FOR_LOCKS) == 0

    async def test_heartbeats_of_the_watchdog_too(self, prepared_url: str) -> None:
        """They have a connection of their own, with the same `patience`."""
        async with opened(prepared_url, patience=0.1) as backend, connected(prepared_url) as admin:
            heartbeats = backend.heartbeat_connection()
            await heartbeats.open()
            await admin.execute("begin; lock table treadle.worker")
            try:
                async with asyncio.timeout(20):
                    with pytest.raises(StoreUnavailable, match="TimeoutError"):
                        await heartbeats.beat(Heartbeat(worker="w", lease=10))
            finally:
                await admin.execute("rollback")
                await heartbeats.close()

    async def test_locks_are_waited_for_a_moment_only(self, prepared_url: str) -> None:
        """Each function that Python calls sets a lock timeout. When it is over, the call is repeated."""
        async with opened(prepared_url), connected(prepared_url) as admin:
            waits = await admin.fetch(
                "select proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
                " where n.nspname = 'treadle' and prosrc ~ 'for (no key )?update;'"
                " and not coalesce(array_to_string(proconfig, ' ') ~ 'lock_timeout', false)"
            )
            # Other functions call these, with their own timeout.
            assert {row["proname"] for row in waits} == {
                "count_towards_dependents",
                "check_folds",
                "update_groups",
                "signal_one",
                "lock_orders",
            }


async def test_retries_are_bounded_and_scattered(prepared_url: str) -> None:
    """If the server is away, a call is repeated a few times, with growing delays that are never the same."""
    async with opened(prepared_url) as backend:
        waits: list[float] = []

        async def record(seconds: float) -> None:
            waits.append(seconds)

        backend._calls.sleep = record
        refusing = asyncpg.CannotConnectNowError("starting up")

        async def attempt() -> None:
            raise refusing

        for _ in range(20):
            with suppress(BackendError):
                await backend._calls.call_with_retries(attempt, repeatable=True)
        assert len(waits) == 20 * 3
        assert len(set(waits)) == len(waits)
        assert all(
            0.5 * base <= wait <= base for wait, base in zip(waits, (0.05, 0.1, 0.2) * 20, strict=True)
        )


async def test_many_give_up_together(prepared_url: str) -> None:
    """Callers that wait for a connection fail as soon as those that have one."""
    async with (
        opened(prepared_url, patience=0.1, pool_size=3, reserved=1) as backend,
        connected(prepared_url) as admin,
    ):
        await admin.execute("begin; lock table treadle.item")
        async with asyncio.timeout(30):
            failed = await asyncio.gather(
                *(submit(backend, item(f"a{n}")) for n in range(6)), return_exceptions=True
            )
        assert all(isinstance(one, StoreUnavailable) for one in failed)
