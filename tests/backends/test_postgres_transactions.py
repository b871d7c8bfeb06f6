"""PostgreSQL: submits in the user's transaction, with every driver; the user's writes in the backend's."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psycopg
import pytest
import sqlalchemy
from django.db import transaction
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.backends.postgres_store import connected, opened
from tests.support.databases import Prepared
from tests.support.django_connection import django_connection
from treadle.backends.postgres import PostgresBackend, pool
from treadle.backends.postgres.schema import Connection
from treadle.errors import CycleError, DuplicateIdError, InputError
from treadle.item import Rejected, Submission, Wake
from treadle.testing.contract.build import (
    apply,
    beat,
    claim,
    claim_ids,
    contribute,
    dependent,
    exists,
    group,
    item,
    items,
    only,
    start,
    start_one,
    state,
    status,
    statuses,
    submit,
    submit_one,
    succeed,
)
from treadle.testing.contract.check import consistent
from treadle.testing.contract.wakeups import WakeRecorder

Execute = Callable[[str], Awaitable[object]]
User = Callable[[str, bool], AbstractAsyncContextManager[tuple[object, Execute]]]
"""A transaction of the user, committed or not: what is passed as `tx=`, and how to execute in it."""


class Undo(Exception):
    """Rolls a transaction back."""


@asynccontextmanager
async def by_asyncpg(url: str, commit: bool) -> AsyncGenerator[tuple[object, Execute]]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    yield connection, connection.execute
    await (transaction.commit() if commit else transaction.rollback())
    await connection.close()


@asynccontextmanager
async def by_asyncpg_pool(url: str, commit: bool) -> AsyncGenerator[tuple[object, Execute]]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield connection, connection.execute
        await (transaction.commit() if commit else transaction.rollback())


@asynccontextmanager
async def by_psycopg(url: str, commit: bool) -> AsyncGenerator[tuple[object, Execute]]:
    with psycopg.connect(url) as connection:
        yield connection, later(connection.execute)
        if not commit:
            connection.rollback()


@asynccontextmanager
async def by_psycopg_async(url: str, commit: bool) -> AsyncGenerator[tuple[object, Execute]]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection, connection.execute  # type: ignore[misc]
        if not commit:
            await connection.rollback()


@asynccontextmanager
async def by_sqlalchemy(url: str, commit: bool) -> AsyncGenerator[tuple[object, Execute]]:
    engine = sqlalchemy.create_engine(dialect(url, "psycopg"))
    with engine.connect() as connection:
        yield connection, later(connection.exec_driver_sql)
        if commit:
            connection.commit()
    engine.dispose()


@asynccontextmanager
async def by_sqlalchemy_session(url: str, commit: bool) -> AsyncGenerator[tuple[object, Execute]]:
    engine = sqlalchemy.create_engine(dialect(url, "psycopg"))
    with Session(engine) as session:
        yield session, later(lambda text: session.execute(sqlalchemy.text(text)))
        if commit:
            session.commit()
    engine.dispose()


def by_async_sqlalchemy(driver: str) -> User:
    @asynccontextmanager
    async def user(url: str, commit: bool) -> AsyncGenerator[tuple[object, Execute]]:
        engine = create_async_engine(dialect(url, driver))
        async with engine.connect() as connection:
            yield connection, connection.exec_driver_sql
            if commit:
                await connection.commit()
        await engine.dispose()

    return user


def by_async_session(driver: str) -> User:
    @asynccontextmanager
    async def user(url: str, commit: bool) -> AsyncGenerator[tuple[object, Execute]]:
        engine = create_async_engine(dialect(url, driver))
        async with AsyncSession(engine) as session:
            yield session, lambda text: session.execute(sqlalchemy.text(text))
            if commit:
                await session.commit()
        await engine.dispose()

    return user


@asynccontextmanager
async def by_django(url: str, commit: bool) -> AsyncGenerator[tuple[object, Execute]]:
    with pytest.MonkeyPatch.context() as patch:
        # It refuses to block an event loop, which code in a thread does not have; see test_sync.py.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        with django_connection(url) as connection:
            block = transaction.atomic(using=connection.alias)
            block.__enter__()
            yield connection, later(lambda text: connection.cursor().execute(text))
            transaction.set_rollback(not commit, using=connection.alias)
            block.__exit__(None, None, None)


def dialect(url: str, driver: str) -> str:
    return urlunsplit(urlsplit(url)._replace(scheme=f"postgresql+{driver}"))


def later(call: Callable[[str], object]) -> Execute:
    async def execute(text: str) -> object:
        return call(text)

    return execute


USERS: dict[str, User] = {
    "asyncpg": by_asyncpg,
    "asyncpg pool": by_asyncpg_pool,
    "psycopg": by_psycopg,
    "psycopg async": by_psycopg_async,
    "sqlalchemy": by_sqlalchemy,
    "sqlalchemy session": by_sqlalchemy_session,
    "sqlalchemy async, asyncpg": by_async_sqlalchemy("asyncpg"),
    "sqlalchemy async, psycopg": by_async_sqlalchemy("psycopg_async"),
    "sqlalchemy async session, asyncpg": by_async_session("asyncpg"),
    "sqlalchemy async session, psycopg": by_async_session("psycopg_async"),
    "django": by_django,
}
every_driver = pytest.mark.parametrize("user", USERS.values(), ids=USERS)


@asynccontextmanager
async def psycopg_autocommit(url: str) -> AsyncGenerator[object]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@asynccontextmanager
async def async_psycopg_autocommit(url: str) -> AsyncGenerator[object]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        yield connection


@asynccontextmanager
async def sqlalchemy_autocommit(url: str) -> AsyncGenerator[object]:
    engine = sqlalchemy.create_engine(dialect(url, "psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@asynccontextmanager
async def async_sqlalchemy_autocommit(url: str) -> AsyncGenerator[object]:
    engine = create_async_engine(dialect(url, "asyncpg"), isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        yield connection
    await engine.dispose()


@asynccontextmanager
async def django_autocommit(url: str) -> AsyncGenerator[object]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        with django_connection(url) as connection:
            yield connection


AUTOCOMMIT: dict[str, Callable[[str], AbstractAsyncContextManager[object]]] = {
    "asyncpg": connected,
    "psycopg": psycopg_autocommit,
    "psycopg async": async_psycopg_autocommit,
    "sqlalchemy": sqlalchemy_autocommit,
    "sqlalchemy async": async_sqlalchemy_autocommit,
    "django": django_autocommit,
}


class TestSubmitInTransaction:
    @every_driver
    async def test_it_exists_if_the_transaction_commits(self, warm_url: str, user: User) -> None:
        """Items and the user's writes become visible together."""
        async with opened(warm_url) as backend, connected(warm_url) as admin:
            await admin.execute("create table mine (id text)")
            async with user(warm_url, True) as (tx, execute):
                await execute("insert into mine values ('a')")
                answer = only(await backend.submit([Submission((item("a"), dependent("a", id="b")))], tx=tx))
                assert not isinstance(answer, Rejected)
                assert [(one.id, one.status) for one in answer] == [("a", "ready"), ("b", "blocked")]
                assert not await exists(backend, "a")
            assert await admin.fetchval("select count(*) from mine") == 1
            assert await claim_ids(backend) == ["a"]
            await consistent(backend)

    @every_driver
    async def test_nothing_is_left_if_it_rolls_back(self, warm_url: str, user: User) -> None:
        """Neither items nor keys are stored, and no wake-up is sent."""
        async with opened(warm_url) as backend:
            recorder = WakeRecorder()
            await backend.subscribe(recorder)
            async with user(warm_url, False) as (tx, _):
                await backend.submit([Submission((item("a", key="k"),))], tx=tx)
            assert await statuses(backend, "a") == [None]
            await backend.publish(Wake(items=(("t", "afterwards"),)))
            await recorder.wait_for({("t", "afterwards")})
            assert not any(wake.ready for wake in recorder.wakes)
            assert not (await submit_one(backend, item("b", key="k"))).existing
            await consistent(backend)

    @every_driver
    async def test_a_refusal_leaves_the_transaction_usable(self, warm_url: str, user: User) -> None:
        """It raises the error, and the user's transaction continues."""
        async with opened(warm_url) as backend, connected(warm_url) as admin:
            await admin.execute("create table mine (id text)")
            await submit(backend, item("taken"))
            async with user(warm_url, True) as (tx, execute):
                await execute("insert into mine values ('a')")
                with pytest.raises(DuplicateIdError):
                    await backend.submit([Submission((item("a"), item("taken")))], tx=tx)
                with pytest.raises(CycleError):
                    await backend.submit(
                        [Submission((dependent("y", id="x"), dependent("x", id="y")))], tx=tx
                    )
                await backend.submit([Submission((item("b"),))], tx=tx)
            assert await admin.fetchval("select count(*) from mine") == 1
            assert await statuses(backend, "a", "x", "b") == [None, None, "ready"]

    async def test_the_wake_up_is_sent_with_the_commit(self, warm_url: str) -> None:
        """Not before, and not if the transaction rolls back."""
        async with opened(warm_url) as backend, opened(warm_url) as other:
            recorder = WakeRecorder()
            await other.subscribe(recorder)
            async with by_asyncpg(warm_url, False) as (tx, _):
                await backend.submit([Submission((item("never"),))], tx=tx)
            async with by_asyncpg(warm_url, True) as (tx, _):
                await backend.submit([Submission((item("a"),))], tx=tx)
                await other.publish(Wake(items=(("t", "before"),)))
                await recorder.wait_for({("t", "before")})
                assert not any(wake.ready for wake in recorder.wakes)
            await recorder.wait_until(lambda: any(wake.ready for wake in recorder.wakes))
            assert await claim_ids(other) == ["a"]

    @every_driver
    async def test_savepoints(self, warm_url: str, user: User) -> None:
        """After a rollback to a savepoint, the item does not exist, and its key is free."""
        async with opened(warm_url) as backend:
            async with user(warm_url, True) as (tx, execute):
                await backend.submit([Submission((item("a"),))], tx=tx)
                await execute("savepoint mine")
                await backend.submit([Submission((item("b", key="k"),))], tx=tx)
                await execute("rollback to savepoint mine")
                answer = only(await backend.submit([Submission((item("c", key="k"),))], tx=tx))
                assert not isinstance(answer, Rejected)
                assert [(one.id, one.existing) for one in answer] == [("c", False)]
            assert await statuses(backend, "a", "b", "c") == ["ready", None, "ready"]

    async def test_savepoints_of_the_driver(self, warm_url: str) -> None:
        """The same with nested transactions of asyncpg."""
        async with opened(warm_url) as backend, connected(warm_url) as connection:
            async with connection.transaction():
                await backend.submit([Submission((item("a"),))], tx=connection)
                with pytest.raises(Undo):
                    await self._undone(backend, connection)
            assert await statuses(backend, "a", "b") == ["ready", None]

    async def _undone(self, backend: PostgresBackend, connection: "asyncpg.Connection") -> None:
        async with connection.transaction():
            await backend.submit([Submission((item("b"),))], tx=connection)
            raise Undo

    async def test_keys_are_held_until_the_end(self, warm_url: str) -> None:
        """Another submit with the same key waits until the transaction has ended."""
        async with opened(warm_url) as backend:
            async with by_asyncpg(warm_url, True) as (tx, _):
                await backend.submit([Submission((item("a", key="k"),))], tx=tx)
                waiting = asyncio.create_task(submit_one(backend, item("b", key="k")))
                await asyncio.sleep(0.3)
                assert not waiting.done()
            answer = await waiting
            assert (answer.id, answer.existing) == ("a", True)

    async def test_a_new_dependent_blocks_only_its_prerequisite(self, warm_url: str) -> None:
        """An open transaction with a new dependent delays the settlement of its prerequisite, and no other
        settlement of the same call."""
        async with opened(warm_url) as backend:
            leases = await start(backend, *(item(f"a{n}") for n in range(8)))
            async with by_asyncpg(warm_url, True) as (tx, _):
                await backend.submit([Submission((dependent("a3", id="next"),))], tx=tx)
                settling = asyncio.create_task(backend.settle([succeed(lease) for lease in leases]))
                others = [f"a{n}" for n in range(8) if n != 3]
                async with asyncio.timeout(30):
                    while set(await statuses(backend, *others)) != {"success"}:  # noqa: ASYNC110  no event
                        await asyncio.sleep(0.05)
                assert await status(backend, "a3") == "running"
            settled = await settling
            assert {outcome.verb for outcome in settled.outcomes} == {"applied"}
            assert [released.id for released in settled.effects.released] == ["next"]

    async def test_several_submissions(self, warm_url: str) -> None:
        """They are answered in order."""
        async with opened(warm_url) as backend:
            async with by_asyncpg(warm_url, True) as (tx, _):
                answers = await backend.submit([Submission(tuple(items(50))), Submission(())], tx=tx)
                assert [len(answer) for answer in answers if not isinstance(answer, Rejected)] == [50, 0]
            assert len(await claim_ids(backend)) == 50

    @pytest.mark.parametrize("tx", [object(), 5, "connection"])
    async def test_other_objects_are_refused(self, warm_url: str, tx: object) -> None:
        """`InputError`: it is not a connection."""
        async with opened(warm_url) as backend:
            with pytest.raises(InputError):
                await backend.submit([Submission((item("a"),))], tx=tx)

    @pytest.mark.parametrize("of", AUTOCOMMIT.values(), ids=AUTOCOMMIT)
    async def test_a_connection_without_a_transaction_is_refused(
        self, warm_url: str, of: Callable[[str], AbstractAsyncContextManager[object]]
    ) -> None:
        """The item would be stored apart from the user's data."""
        async with opened(warm_url) as backend:
            async with of(warm_url) as tx:
                with pytest.raises(InputError, match="BEGIN one first"):
                    await backend.submit([Submission((item("a"),))], tx=tx)
            assert not await exists(backend, "a")

    async def test_a_transaction_of_a_connection_with_autocommit(self, warm_url: str) -> None:
        async with opened(warm_url) as backend:
            with psycopg.connect(warm_url, autocommit=True) as connection:
                with connection.transaction(force_rollback=True):
                    await backend.submit([Submission((item("a"),))], tx=connection)
                with connection.transaction():
                    await backend.submit([Submission((item("b"),))], tx=connection)
            assert not await exists(backend, "a")
            assert await status(backend, "b") == "ready"

    async def test_a_pool_is_refused(self, warm_url: str) -> None:
        async with opened(warm_url) as backend, asyncpg.create_pool(warm_url, min_size=1) as tx:
            with pytest.raises(InputError, match="acquired"):
                await backend.submit([Submission((item("a"),))], tx=tx)

    @pytest.mark.parametrize(
        "user", [by_asyncpg, by_psycopg, by_django], ids=["asyncpg", "psycopg", "django"]
    )
    async def test_a_connection_to_another_database_is_refused(self, warm_url: str, user: User) -> None:
        other = urlunsplit(urlsplit(warm_url)._replace(path="/template1"))
        async with opened(warm_url) as backend, user(other, False) as (tx, _):
            with pytest.raises(InputError, match="another database"):
                await backend.submit([Submission((item("a"),))], tx=tx)

    @pytest.mark.parametrize(
        "user",
        [by_asyncpg, by_psycopg, by_sqlalchemy, by_django],
        ids=["asyncpg", "psycopg", "sqlalchemy", "django"],
    )
    async def test_a_connection_to_the_database_of_another_app_is_refused(
        self, warm_url: str, prepared: Prepared, user: User
    ) -> None:
        """It is a copy: it has the tables of treadle, and the same key. The item was stored there."""
        with prepared.database() as other:
            async with opened(warm_url) as backend, opened(other) as elsewhere:
                async with user(other, True) as (tx, execute):
                    with pytest.raises(InputError, match="another database than the app's"):
                        await backend.submit([Submission((item("a"),))], tx=tx)
                    await execute("select 1")  # the transaction goes on
                assert not await exists(backend, "a")
                assert not await exists(elsewhere, "a")

    @pytest.mark.parametrize("connection", [sqlite3.connect, lambda _: FakeMySql()])
    async def test_a_connection_of_another_engine_is_refused(
        self, warm_url: str, connection: Callable[[str], object]
    ) -> None:
        async with opened(warm_url) as backend:
            with pytest.raises(InputError, match="and the items of this app are in PostgreSQL"):
                await backend.submit([Submission((item("a"),))], tx=connection(":memory:"))


class FakeMySql:
    __module__ = "pymysql.connections"


class TestTransaction:
    async def test_writes_and_settlement_commit_together(self, warm_url: str) -> None:
        """The item ends and its handler's writes are stored, both or neither."""
        async with opened(warm_url) as backend, connected(warm_url) as admin:
            await admin.execute("create table mine (id text)")
            lease = await start_one(backend, item("a"))
            async with backend.transaction() as transaction:
                await transaction.connection.execute("insert into mine values ('a')")
                settled = await transaction.settle([succeed(lease, item("child"))])
                assert settled.outcomes[0].verb == "applied"
                assert await status(backend, "a") == "running"
            assert await admin.fetchval("select count(*) from mine") == 1
            assert await statuses(backend, "a", "child") == ["success", "ready"]
            await consistent(backend)

    async def test_an_exception_rolls_everything_back(self, warm_url: str) -> None:
        """The user's error is raised unchanged, and the lease is still valid."""
        async with opened(warm_url) as backend, connected(warm_url) as admin:
            await admin.execute("create table mine (id text)")
            lease = await start_one(backend, item("a"))

            async def write_and_raise() -> None:
                async with backend.transaction() as transaction:
                    await transaction.connection.execute("insert into mine values ('a')")
                    await transaction.settle([contribute(lease, b"x")])
                    raise Undo

            with pytest.raises(Undo):
                await write_and_raise()
            assert await admin.fetchval("select count(*) from mine") == 0
            assert not (await group(backend, "a")).contributed
            await apply(backend, succeed(lease))

    async def test_a_stale_token_is_refused(self, warm_url: str) -> None:
        """The outcome says why, so that the caller can roll back."""
        async with opened(warm_url) as backend:
            lease = await start_one(backend, item("a"), "w1")
            await backend.remove_worker("w1")
            async with backend.transaction() as transaction:
                outcome = (await transaction.settle([succeed(lease)])).outcomes[0]
            assert (outcome.verb, outcome.loss) == ("stale", "taken")

    async def test_refused_children_leave_the_transaction_usable(self, warm_url: str) -> None:
        """The user may settle differently, in the same transaction."""
        async with opened(warm_url) as backend:
            await submit(backend, item("taken"))
            lease = await start_one(backend, item("a"))
            async with backend.transaction() as transaction:
                await transaction.connection.execute("create table mine (id text)")
                refused = (await transaction.settle([succeed(lease, item("taken"))])).outcomes[0]
                assert refused.verb == "rejected"
                settled = (await transaction.settle([succeed(lease, item("free"))])).outcomes[0]
                assert settled.verb == "applied"
            assert (await state(backend, "a")).status == "success"

    async def test_errors_of_the_users_statements_are_not_translated(self, warm_url: str) -> None:
        """Handlers expect their driver's errors."""
        async with opened(warm_url) as backend:

            async def fail() -> None:
                async with backend.transaction() as transaction:
                    await transaction.connection.execute("select 1 / 0")

            with pytest.raises(asyncpg.DivisionByZeroError):
                await fail()

    async def test_an_open_transaction_blocks_no_other_verb(self, warm_url: str) -> None:
        """An open transaction of a handler holds no lock that a heartbeat, a claim or a settle needs."""
        async with opened(warm_url) as backend:
            lease = await start_one(backend, item("a"))
            other = await start_one(backend, item("b"))
            async with backend.transaction() as transaction:
                await transaction.connection.execute("create table mine (id text)")
                async with asyncio.timeout(10):
                    await apply(backend, succeed(other))
                    assert await claim_ids(backend) == []
                await transaction.settle([succeed(lease)])


CHANGES = {
    "a setting": ("set app.tenant = 'alice'", "select coalesce(current_setting('app.tenant', true), '')", ""),
    "a temporary table": ("create temp table secret (n int)", "select to_regclass('pg_temp.secret')", None),
    "an advisory lock": (
        "select pg_advisory_lock(77)",
        "select count(*) from pg_locks join pg_database d on d.oid = database "
        "where locktype = 'advisory' and objid = 77 and datname = current_database()",
        0,
    ),
    "a role": ("set role pg_monitor", "select current_user = session_user", True),
    "read only": ("set default_transaction_read_only = on", "show default_transaction_read_only", "off"),
    "a timeout": ("set statement_timeout = '9s'", "show statement_timeout", "7s"),
    "a cursor": (
        "declare kept cursor with hold for select 1",
        "select count(*) from pg_cursors where name = 'kept'",
        0,
    ),
}


async def was_reset(admin: Connection, process: int) -> None:
    """Return when the connection of this server process is ready for its next use."""
    last = "select query from pg_stat_activity where pid = $1 and state = 'idle'"
    async with asyncio.timeout(10):
        while "discard temp" not in (await admin.fetchval(last, process) or ""):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class TestSessionOfHandlers:
    """The next handler, of any tenant, gets the same connection in its first state."""

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
    @pytest.mark.parametrize("raises", [False, True])
    async def test_what_a_handler_changes_ends_with_its_transaction(
        self, warm_url: str, change: tuple[str, str, object], raises: bool
    ) -> None:
        statement, question, expected = change
        async with (
            opened(warm_url, pool_size=3, reserved=1, statement_timeout=7.0) as backend,
            connected(warm_url) as admin,
        ):
            process = 0
            with suppress(ValueError):
                async with backend.transaction() as transaction:
                    process = await transaction.connection.fetchval("select pg_backend_pid()")
                    await transaction.connection.execute(statement)
                    if raises:
                        raise ValueError
            await was_reset(admin, process)
            async with backend.transaction() as transaction:
                assert await transaction.connection.fetchval(question) == expected
                assert await transaction.connection.fetchval("select pg_backend_pid()") == process

    async def test_prepared_statements_survive(self, warm_url: str) -> None:
        async with (
            opened(warm_url, pool_size=3, reserved=1) as backend,
            connected(warm_url) as admin,
        ):
            async with backend.transaction() as transaction:
                process = await transaction.connection.fetchval("select pg_backend_pid()")
                before = set(await transaction.connection.fetch("select name from pg_prepared_statements"))
            await was_reset(admin, process)
            async with backend.transaction() as transaction:
                after = set(await transaction.connection.fetch("select name from pg_prepared_statements"))
            assert len(before) > 1
            assert before <= after

    async def test_a_session_that_cannot_be_reset_is_ended(
        self, prepared_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pool, "RESET_SESSION", "select 1 / 0")
        async with opened(prepared_url) as backend, connected(prepared_url) as admin:
            async with backend.transaction() as transaction:
                process = await transaction.connection.fetchval("select pg_backend_pid()")
            async with asyncio.timeout(10):
                while await admin.fetchval("select true from pg_stat_activity where pid = $1", process):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert not await exists(backend, "nothing")


async def test_an_item_that_is_committed_during_a_claim_does_not_start_before_it_is_queued(
    postgres_url: str,
) -> None:
    """The claim reads the clock first, and then finds an item that was queued since."""
    async with opened(postgres_url) as backend, connected(postgres_url) as admin:
        await beat(backend)
        await submit(backend, item("a"), item("b", lane="other"))
        earlier = "select extract(epoch from clock_timestamp())::float8 - 0.5"
        await admin.execute(
            f"create or replace function treadle.clock() returns float8 language sql as $$ {earlier} $$"
        )
        for lease in await claim(backend):
            found = await state(backend, lease.id)
            assert found.started_at == found.queued_at
