"""The pytest plugin: its fixtures and its marker, with pytest-asyncio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from treadle import Context, MemoryBackend, Retry, Treadle, WorkFailed, work
from treadle.errors import InputError
from treadle.testing import (
    Fault,
    Faults,
    ManualClock,
    RecordingBackend,
    Statement,
    assert_enqueued,
    crash_at,
    drain,
    enqueued,
)
from treadle.testing.made_app import make_app

RAN: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


@pytest.fixture(scope="session")
def treadle_postgres_url(postgres: Any) -> Any:
    with postgres.database() as url:
        yield url


@work(name="send")
async def send(to: str, subject: str = "hello") -> str:
    RAN.append(to)
    return f"sent to {to}"


@work(name="signup")
async def signup(ctx: Context, to: str) -> Any:
    return ctx.queue(send(to))


@pytest.fixture
def treadle_settings() -> dict[str, Any]:
    return {"work": [send, signup]}


STORES = ["memory", "sqlite", "postgres"]


def on(url: str) -> Any:
    return pytest.param(url, marks=pytest.mark.treadle(url=url))


@pytest.mark.parametrize("url", [on(url) for url in STORES])
async def test_a_marker_names_the_store(treadle_app: Treadle, url: str) -> None:
    assert await treadle_app.enqueue(send("ada")).result() == "sent to ada"
    assert url in type(treadle_app.backend).__name__.lower()


async def test_the_schema_is_dropped_if_the_test_has_stopped_the_app(treadle_postgres_url: str) -> None:
    """As the lifespan of a web app does at its end."""
    made = make_app({"url": treadle_postgres_url, "prefix": "test_stopped", "drop": True})
    await made.start()
    await made.app.stop()
    await made.stop()
    async with await psycopg.AsyncConnection.connect(treadle_postgres_url) as connection:
        found = await connection.execute("select to_regnamespace('test_stopped')")
        assert await found.fetchone() == (None,)


@pytest.mark.parametrize("url", [on(url) for url in STORES])
async def test_the_clock_moves_the_store(treadle_app: Treadle, treadle_clock: ManualClock, url: str) -> None:
    """PostgreSQL too, whose own clock is replaced."""
    handle = await treadle_app.enqueue(send("ada"), delay=3600)
    await drain(treadle_app)
    assert (await handle.state()).status == "scheduled"
    assert (await handle.state()).due_at == treadle_clock.now() + 3600
    await treadle_clock.advance(3600)
    assert await handle.result() == "sent to ada"
    assert (await handle.state()).ended_at == treadle_clock.now()


@pytest.mark.treadle(worker=False)
async def test_an_app_without_a_worker_only_submits(treadle_app: Treadle) -> None:
    await treadle_app.enqueue(send("ada"))
    assert (await assert_enqueued(treadle_app, send)).status == "ready"
    assert not treadle_app.worker.running


@pytest.mark.treadle(retry=Retry(attempts=1), worker=False)
class TestMarkers:
    @pytest.mark.treadle(worker=True)
    async def test_the_closest_marker_wins(self, treadle_app: Treadle) -> None:
        async def fail(to: str, subject: str = "hello") -> str:
            raise ConnectionError(to)

        treadle_app.replace(send, fail)
        with pytest.raises(WorkFailed):
            await treadle_app.enqueue(send("ada")).result()


def test_a_test_that_is_not_async_uses_sync(treadle_app: Treadle) -> None:
    assert treadle_app.sync.enqueue(send("ada")).result() == "sent to ada"
    treadle_app.sync.call(assert_enqueued(treadle_app, send, to="ada"))


@pytest.mark.asyncio(loop_scope="module")
async def test_the_app_runs_on_the_loop_of_the_test(treadle_app: Treadle) -> None:
    assert await treadle_app.enqueue(send("ada")).result() == "sent to ada"


async def test_app_is_the_same(app: Treadle, treadle_app: Treadle) -> None:
    assert app is treadle_app


# -- what was enqueued -------------------------------------------------------------------------------------


async def test_enqueued_finds_items_by_type_and_arguments(treadle_app: Treadle) -> None:
    await treadle_app.enqueue(signup("ada"))
    await treadle_app.enqueue(send("bob", subject="bye"))
    await drain(treadle_app)
    assert [state.type for state in await enqueued(treadle_app)] == ["signup", "send", "send"]
    assert len(await enqueued(treadle_app, send)) == 2
    assert len(await enqueued(treadle_app, "send", to="bob")) == 1
    assert len(await enqueued(treadle_app, send("bob", subject="bye"))) == 1
    assert len(await enqueued(treadle_app, send("ada"))) == 1
    assert await enqueued(treadle_app, send("bob")) == []
    assert (await assert_enqueued(treadle_app, send, to="ada")).status == "success"


async def test_a_default_is_an_argument_too(treadle_app: Treadle) -> None:
    await treadle_app.enqueue(send("ada"))
    assert await enqueued(treadle_app, send, subject="hello") != []


async def test_a_failed_assertion_shows_what_there_is(treadle_app: Treadle) -> None:
    with pytest.raises(AssertionError, match="nothing was enqueued"):
        await assert_enqueued(treadle_app, send, to="ada")
    await treadle_app.enqueue_many([send(f"user {n}") for n in range(12)])
    with pytest.raises(AssertionError) as failed:
        await assert_enqueued(treadle_app, send, to="ada")
    first, _, *lines = str(failed.value).splitlines()
    assert first == "not enqueued: send(to='ada')"
    assert lines[0].strip() == "send(subject='hello', to='user 0')"
    assert lines[-1].strip() == "and 2 more"


async def test_items_of_an_unregistered_type_are_found() -> None:
    async with Treadle() as app:
        await app.enqueue(send("ada"), delay=60)
        assert await enqueued(app, send, to="ada") != []
        assert await enqueued(app, send, to="bob") == []


# -- crashes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", [on(url) for url in STORES])
@pytest.mark.parametrize(("point", "runs"), [("claimed", 1), ("returned", 2), ("settled", 1)])
async def test_a_crash_repeats_what_was_not_stored(
    treadle_app: Treadle, treadle_crash_at: Callable[..., Fault], point: str, runs: int, url: str
) -> None:
    crash = treadle_crash_at(point)
    assert await treadle_app.enqueue(send("ada")).result(timeout=60) == "sent to ada"
    assert (len(RAN), crash.hits) == (runs, 1)
    assert await treadle_app.enqueue(send("bob")).result(timeout=60) == "sent to bob"


async def test_a_crash_may_be_of_one_type(
    treadle_app: Treadle, treadle_crash_at: Callable[..., Fault]
) -> None:
    crash = treadle_crash_at("returned", signup)
    assert await treadle_app.enqueue(send("ada")).result() == "sent to ada"
    assert crash.hits == 0
    assert await treadle_app.enqueue(signup("bob")).group() == "sent to bob"
    assert crash.hits == 1
    assert RAN == ["ada", "bob"]


@pytest.mark.treadle(url="sqlite")
async def test_a_crash_undoes_the_transaction_of_a_handler(
    treadle_app: Treadle, treadle_crash_at: Callable[..., Fault]
) -> None:
    @work(name="note")
    async def note(ctx: Context) -> int:
        async with ctx.transaction() as tx:
            tx.execute("CREATE TABLE IF NOT EXISTS note (attempt INTEGER)")
            tx.execute("INSERT INTO note VALUES (?)", (ctx.attempt,))
            rows = tx.execute("SELECT attempt FROM note").fetchall()
        return len(rows)

    treadle_app.register(note)
    crash = treadle_crash_at("returned", note)
    handle = await treadle_app.enqueue(note())
    assert await handle.result(timeout=60) == 1
    assert ((await handle.state()).attempt, crash.hits) == (2, 1)


@pytest.mark.parametrize("url", [on(url) for url in STORES[1:]])
async def test_a_crash_after_the_commit_of_a_handler_repeats_nothing(
    treadle_app: Treadle, treadle_crash_at: Callable[..., Fault], url: str
) -> None:
    @work(name="note")
    async def note(ctx: Context) -> int:
        RAN.append("note")
        async with ctx.transaction():
            return ctx.attempt

    treadle_app.register(note)
    other, crash = treadle_crash_at("settled", send), treadle_crash_at("settled", note)
    handle = await treadle_app.enqueue(note())
    assert await handle.result(timeout=60) == 1
    assert (RAN, crash.hits, other.hits) == (["note"], 1, 0)
    assert await treadle_app.enqueue(send("bob")).result(timeout=60) == "sent to bob"
    assert other.hits == 1
    assert (await handle.state()).attempt == 1


async def test_crash_at_needs_a_backend_with_faults() -> None:
    with pytest.raises(InputError, match="FaultyBackend"):
        crash_at(Treadle(MemoryBackend()), "returned")


async def test_crash_at_refuses_an_unknown_point(treadle_crash_at: Callable[..., Fault]) -> None:
    with pytest.raises(InputError, match="claimed, returned, settled"):
        treadle_crash_at("settle")


async def test_the_store_fails_as_the_faults_say(treadle_app: Treadle, treadle_faults: Faults) -> None:
    lost = treadle_faults.fail("settle", when="after")
    assert await treadle_app.enqueue(send("ada")).result() == "sent to ada"
    assert lost.hits == 1


# -- recorded transactions ---------------------------------------------------------------------------------


@work(name="bill", retry=Retry(attempts=2, base=0, jitter=0))
async def bill(ctx: Context, order: int, fails: bool = False) -> str:
    async with ctx.transaction() as tx:
        assert await ctx.claim(f"bill {order}")
        await tx.execute("INSERT INTO billed VALUES ($1)", order)
        await TX_APP[0].enqueue(send(f"order {order}"))
        rows = await tx.fetch("SELECT id FROM billed")
    if fails and ctx.attempt == 1:
        raise ConnectionError
    return f"{len(rows)} billed"


TX_APP: list[Treadle] = []


async def test_transactions_on_memory_are_recorded(
    treadle_app: Treadle, treadle_transactions: RecordingBackend
) -> None:
    TX_APP[:] = [treadle_app]
    treadle_transactions.answer = lambda statement: [(1,)] if statement.method == "fetch" else []
    treadle_app.register(bill)
    assert await treadle_app.enqueue(bill(7)).result() == "1 billed"
    await drain(treadle_app)
    insert = Statement("execute", ("INSERT INTO billed VALUES ($1)", 7))
    assert treadle_transactions.committed == [insert, Statement("fetch", ("SELECT id FROM billed",))]
    assert RAN == ["order 7"]


async def test_a_recorded_transaction_is_rolled_back(
    treadle_app: Treadle, treadle_transactions: RecordingBackend
) -> None:
    """The key is free again, and what it enqueued never was."""
    TX_APP[:] = [treadle_app]
    treadle_app.register(bill)
    assert await treadle_app.enqueue(bill(7, fails=True)).result() == "0 billed"
    await drain(treadle_app)
    assert (len(treadle_transactions.rolled_back), len(treadle_transactions.committed)) == (2, 2)
    assert RAN == ["order 7"]


async def test_enqueue_with_a_connection_is_stored_at_once(
    treadle_app: Treadle, treadle_transactions: RecordingBackend
) -> None:
    assert await treadle_app.enqueue(send("ada"), tx=object()).result() == "sent to ada"


def test_enqueue_with_a_connection_and_without_a_loop(
    treadle_app: Treadle, treadle_transactions: RecordingBackend
) -> None:
    assert treadle_app.sync.enqueue(send("ada"), tx=object()).result() == "sent to ada"


def test_a_plain_function_has_recorded_transactions_too(
    treadle_app: Treadle, treadle_transactions: RecordingBackend
) -> None:
    @work(name="plain")
    def plain(ctx: Context) -> list[tuple[int]]:
        with ctx.sync.transaction() as tx:
            return list(tx.execute("SELECT 1").fetchall())

    treadle_transactions.answer = lambda statement: [(1,)]
    treadle_app.register(plain)
    assert treadle_app.sync.enqueue(plain()).result() == [(1,)]
