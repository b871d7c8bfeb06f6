"""SqliteBackend: the user's own transactions, and the engine's for a handler."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.support.sqlite import (
    LONG,
    item,
    start,
    status,
    submit,
    succeed,
)
from treadle.backends.sqlite import SqliteBackend
from treadle.errors import CycleError, DuplicateIdError, InputError, StoreUnavailable
from treadle.item import Demand, Heartbeat, Rejected, Submission, Wake
from treadle.testing import ManualClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.db"


@pytest.fixture
async def backend(path: Path) -> AsyncIterator[SqliteBackend]:
    backend = SqliteBackend(path, busy_timeout=10)
    await backend.open()
    yield backend
    await backend.close()


# -- the user's own transactions ------------------------------------------------------------------------


@pytest.fixture
def own(backend: SqliteBackend, path: Path) -> Iterator[sqlite3.Connection]:
    """The user's own connection, with the user's own table."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id TEXT)")
        yield connection


async def test_a_submit_is_part_of_the_users_transaction(
    backend: SqliteBackend, own: sqlite3.Connection
) -> None:
    for id, commits in (("a", True), ("b", False)):
        own.execute("INSERT INTO orders VALUES (?)", (id,))
        (answer,) = await backend.submit([Submission((item(id),))], tx=own)
        assert not isinstance(answer, Rejected)
        assert answer[0].status == "ready"
        assert await status(backend, id) is None
        if commits:
            own.commit()
        else:
            own.rollback()
    assert [await status(backend, id) for id in ("a", "b")] == ["ready", None]
    assert own.execute("SELECT id FROM orders").fetchall() == [("a",)]


async def test_the_factories_of_the_users_connection_do_not_matter(
    backend: SqliteBackend, own: sqlite3.Connection
) -> None:
    own.row_factory = sqlite3.Row
    own.text_factory = bytes
    await submit(backend, "p", key="k")
    own.execute("INSERT INTO orders VALUES ('x')")
    new = item("b", after=("p",), need=1), item("c", key="k")
    (answer,) = await backend.submit([Submission(new)], tx=own)
    own.commit()
    assert not isinstance(answer, Rejected)
    assert [(one.id, one.existing) for one in answer] == [("b", False), ("p", True)]
    assert await status(backend, "b") == "blocked"
    assert own.text_factory is bytes


async def test_a_refusal_within_a_transaction_is_raised(
    backend: SqliteBackend, own: sqlite3.Connection
) -> None:
    await submit(backend, "taken")
    own.execute("INSERT INTO orders VALUES ('x')")
    with pytest.raises(DuplicateIdError):
        await backend.submit([Submission((item("a"),)), Submission((item("taken"),))], tx=own)
    with pytest.raises(CycleError):
        await backend.submit([Submission((item("me", after=("me",), need=1),))], tx=own)
    own.commit()
    assert await status(backend, "a") is None
    assert own.execute("SELECT count(*) FROM orders").fetchone() == (1,)


async def test_nothing_is_leased_before_it_is_committed(
    backend: SqliteBackend, own: sqlite3.Connection
) -> None:
    await backend.beat(Heartbeat(worker="w", lease=LONG))
    own.execute("INSERT INTO orders VALUES ('x')")
    (answer,) = await backend.submit([Submission((item("a", lease_to="w"),))], tx=own)
    assert not isinstance(answer, Rejected)
    assert answer[0].lease is None
    own.commit()
    assert await status(backend, "a") == "ready"


async def test_a_connection_that_cannot_be_used_is_refused(
    backend: SqliteBackend, path: Path, own: sqlite3.Connection
) -> None:
    work = [Submission((item("a"),))]
    with pytest.raises(InputError, match="not in a transaction"):
        await backend.submit(work, tx=own)
    with pytest.raises(InputError, match=r"sqlite3\.Connection"):
        await backend.submit(work, tx="connection")
    for elsewhere in (":memory:", path.with_name("other.db")):
        with closing(sqlite3.connect(elsewhere, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            with pytest.raises(InputError, match="not to"):
                await backend.submit(work, tx=connection)


async def test_a_locked_file_is_reported_to_the_users_transaction(backend: SqliteBackend, path: Path) -> None:
    with (
        closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as first,
        closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as second,
    ):
        first.execute("BEGIN IMMEDIATE")
        second.execute("BEGIN")
        with pytest.raises(StoreUnavailable, match="BEGIN IMMEDIATE"):
            await backend.submit([Submission((item("a"),))], tx=second)


async def test_a_submit_that_a_user_commits_wakes_subscribers(
    backend: SqliteBackend, own: sqlite3.Connection
) -> None:
    """The reader polls for it: no process announces it."""
    came = asyncio.Event()
    wakes: list[Wake] = []

    def receive(wake: Wake) -> None:
        wakes.append(wake)
        came.set()

    await backend.subscribe(receive)
    own.execute("INSERT INTO orders VALUES ('x')")
    await backend.submit([Submission((item("a"),))], tx=own)
    await asyncio.sleep(0.1)
    assert wakes == [], "not before it is committed"
    own.commit()
    async with asyncio.timeout(20):
        await came.wait()
    assert (wakes[0].ready, wakes[0].everything) == (True, True)


async def test_treadles_own_commits_are_not_reported_as_user_submits(
    backend: SqliteBackend, path: Path
) -> None:
    other = SqliteBackend(path)
    await other.open()
    wakes: list[Wake] = []
    await backend.subscribe(wakes.append)
    for n in range(5):
        await submit(other, f"i{n}")
        await asyncio.sleep(0.05)
    assert wakes == []
    await other.close()


# -- the engine's transactions --------------------------------------------------------------------------


async def test_writes_and_settlement_commit_together(backend: SqliteBackend, own: sqlite3.Connection) -> None:
    lease = await start(backend, "a")
    async with backend.transaction() as tx:
        connection = tx.connection
        assert isinstance(connection, sqlite3.Connection)
        connection.execute("INSERT INTO orders VALUES ('x')")
        settled = await tx.settle([succeed(lease)])
        assert [outcome.verb for outcome in settled.outcomes] == ["applied"]
        assert await status(backend, "a") == "running"
    assert await status(backend, "a") == "success"
    assert own.execute("SELECT id FROM orders").fetchall() == [("x",)]


async def test_an_error_in_the_block_undoes_both(backend: SqliteBackend, own: sqlite3.Connection) -> None:
    lease = await start(backend, "a")

    async def fail() -> None:
        async with backend.transaction() as tx:
            tx.connection.execute("INSERT INTO orders VALUES ('x')")  # type: ignore[attr-defined]
            await tx.settle([succeed(lease)])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert await status(backend, "a") == "running"
    assert own.execute("SELECT id FROM orders").fetchall() == []
    await backend.settle([succeed(lease)])
    assert await status(backend, "a") == "success"


async def test_a_stale_lease_is_reported_within_the_transaction(backend: SqliteBackend) -> None:
    lease = await start(backend, "a")
    await backend.cancel(["a"])
    async with backend.transaction() as tx:
        (outcome,) = (await tx.settle([succeed(lease)])).outcomes
    assert (outcome.verb, outcome.loss) == ("stale", "cancelled")


@pytest.mark.parametrize("raises", [False, True])
async def test_a_long_transaction_keeps_its_worker_alive(path: Path, raises: bool) -> None:
    """Heartbeats are answered at once and written with its end, so the lease never lapses."""
    clock = ManualClock()
    backend, other = SqliteBackend(path, clock=clock), SqliteBackend(path, clock=clock)
    for each in (backend, other):
        await each.open()
    lease = await start(backend, "a")
    beat = Heartbeat(worker="w", lease=10)
    await backend.beat(beat)
    with suppress(ZeroDivisionError):
        async with backend.transaction() as tx:
            await clock.advance(25)
            assert (await asyncio.wait_for(backend.beat(beat), 2)).lost == {}
            await tx.submit([Submission((item("b"),))])
            if raises:
                raise ZeroDivisionError
    assert await status(backend, "b") == (None if raises else "ready")
    await other.beat(Heartbeat(worker="other", lease=10))
    await other.claim(Demand(worker="other", limit=1))  # a claim removes workers whose lease has lapsed
    (outcome,) = (await backend.settle([succeed(lease)])).outcomes
    assert outcome.verb == "applied"
    for each in (backend, other):
        await each.close()


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "BEGIN"])
async def test_a_statement_cannot_end_the_transaction(backend: SqliteBackend, statement: str) -> None:
    lease = await start(backend, "a")
    async with backend.transaction() as tx:
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            tx.connection.execute(statement)  # type: ignore[attr-defined]
        await tx.settle([succeed(lease)])
    assert await status(backend, "a") == "success"


async def test_transactions_wait_for_each_other(backend: SqliteBackend, own: sqlite3.Connection) -> None:
    async def insert(n: int) -> None:
        async with backend.transaction() as tx:
            tx.connection.execute("INSERT INTO orders VALUES (?)", (str(n),))  # type: ignore[attr-defined]
            await asyncio.sleep(0)

    writes = [submit(backend, f"i{n}") for n in range(10)]
    await asyncio.gather(*(insert(n) for n in range(10)), *writes)
    assert own.execute("SELECT count(*) FROM orders").fetchone() == (10,)


async def test_a_cancelled_begin_releases_the_lock(backend: SqliteBackend, path: Path) -> None:
    async def begin() -> None:
        async with backend.transaction():
            raise AssertionError("the lock was taken")

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        beginning = asyncio.create_task(begin())
        await asyncio.sleep(0.05)
        beginning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beginning
        other.execute("ROLLBACK")
    await submit(backend, "a")
    async with backend.transaction():
        pass
