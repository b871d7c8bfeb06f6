"""`ctx.sync`: what a handler that is a plain function asks of the store (SPEC §18)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from typing import Any

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, MakeApp, failure, until
from treadle import Context, Retry, Treadle, WorkFailed, work
from treadle.errors import InputError

ONCE = Retry(attempts=1)


@work(name="value")
async def value(n: int) -> int:
    return n


@work(name="bad", retry=ONCE)
async def bad() -> None:
    raise ValueError("bad")


async def test_a_plain_handler_reads_states_and_results(make_app: MakeApp) -> None:
    @work(name="look")
    def look(ctx: Context, dead: str) -> list[Any]:
        states = ctx.sync.states([*ctx.dependencies, "missing"])
        found = ctx.sync.results([*ctx.dependencies, dead], return_exceptions=True)
        try:
            ctx.sync.results([dead])
        except WorkFailed as error:
            found.append(error)
        return [
            sum(ctx.sync.results(ctx.dependencies)),
            [None if state is None else state.status for state in states],
            [type(each).__name__ for each in found],
        ]

    async with make_app(value, bad, look) as app:
        dead = await app.enqueue(bad())
        await failure(dead.result(PATIENCE))
        works = [value(3), value(4)]
        last = await app.enqueue(look(dead.id), after=works)
        await app.enqueue_many(works)
        assert await last.result(PATIENCE) == [
            7,
            ["success", "success", None],
            ["int", "int", "WorkFailed", "WorkFailed"],
        ]


async def test_a_plain_handler_reads_results_by_type(make_app: MakeApp) -> None:
    @work(name="look")
    def look(ctx: Context) -> list[object]:
        with pytest.raises(InputError, match=r"ctx\.results\(value\)"):
            ctx.sync.result_of(value)
        failed = ctx.sync.results(bad, return_exceptions=True)
        return [ctx.sync.results(value), ctx.sync.result_of(name), [type(each).__name__ for each in failed]]

    @work(name="name")
    async def name() -> str:
        return "x"

    async with make_app(value, bad, name, look) as app:
        works = [value(3), name(), bad(), value(4)]
        last = await app.enqueue(look(), after=works, when="all_done")
        for each in works:
            await app.enqueue(each)
        assert await last.result(PATIENCE) == [[3, 4], "x", ["WorkFailed"]]


async def test_a_plain_handler_claims_keys(make_app: MakeApp) -> None:
    @work(name="once", retry=AT_ONCE)
    def once(ctx: Context) -> bool:
        held = ctx.sync.claim("daily", ttl=60)
        if ctx.attempt == 1:
            raise ValueError("again")
        return held

    async with make_app(once) as app:
        assert await app.enqueue(once()).result(PATIENCE)
        assert not await app.enqueue(once()).result(PATIENCE)


@pytest.mark.parametrize("store", ["memory"], indirect=True)
@pytest.mark.parametrize("run_in", ["async", "loop"])
@pytest.mark.parametrize("method", ["claim", "states", "results", "transaction"])
async def test_ctx_sync_on_the_event_loop_is_refused(make_app: MakeApp, method: str, run_in: str) -> None:
    def ask(ctx: Context) -> None:
        args = {"claim": ("key",), "states": ([ctx.id],), "results": ([ctx.id],), "transaction": ()}[method]
        getattr(ctx.sync, method)(*args)

    if run_in == "async":

        @work(name="asks", retry=ONCE)
        async def asks(ctx: Context) -> None:
            ask(ctx)
    else:

        @work(name="asks", retry=ONCE, run_in="loop")
        def asks(ctx: Context) -> None:
            ask(ctx)

    async with make_app(asks) as app:
        died = await failure(app.enqueue(asks()).result(PATIENCE))
        assert f"ctx.sync.{method}() would block the event loop that runs in this thread: use `a" in str(died)


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_an_event_loop_of_the_handlers_own_is_refused(make_app: MakeApp) -> None:
    """The connections of the store belong to the worker's event loop."""

    @work(name="nested", retry=ONCE)
    def nested(ctx: Context) -> None:
        asyncio.run(ctx_results(ctx))

    async def ctx_results(ctx: Context) -> None:
        assert await asyncio.to_thread(ctx.sync.states, ["missing"]) == [None]
        await ctx.results([ctx.id])

    async with make_app(nested) as app:
        died = await failure(app.enqueue(nested()).result(PATIENCE))
        assert "this is not the worker's event loop" in str(died)


# -- transactions ------------------------------------------------------------------------------------------

with_transactions = pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)


async def prepare(app: Treadle) -> None:
    async with app.backend.transaction() as transaction:
        await maybe(transaction.connection.execute("CREATE TABLE notes (note TEXT)"))


async def notes(app: Treadle) -> list[str]:
    async with app.backend.transaction() as transaction:
        connection: Any = transaction.connection
        if isinstance(connection, sqlite3.Connection):
            return [row[0] for row in connection.execute("SELECT note FROM notes ORDER BY note")]
        return [row[0] for row in await connection.fetch("SELECT note FROM notes ORDER BY note")]


async def maybe(answer: Any) -> Any:
    return await answer if asyncio.iscoroutine(answer) else answer


@with_transactions
async def test_the_writes_of_a_plain_handler_commit_with_its_outcome(make_app: MakeApp) -> None:
    @work(name="write", retry=AT_ONCE)
    def write(ctx: Context, how: str) -> str:
        with ctx.sync.transaction() as tx:
            tx.execute(f"INSERT INTO notes VALUES ('{how} {ctx.attempt}')")
            assert ctx.sync.claim(how)
            handle = app.sync.enqueue(value(5), tx=tx)
            assert app.sync.get(handle.id)[0] is not None, "it is a part of the transaction"
            if how == "inside":
                raise ValueError("inside")
        if how == "after" and ctx.attempt == 1:
            raise ValueError("after")
        return handle.id

    async with make_app(write, value) as app:
        await prepare(app)
        good = await app.enqueue(write("good")).result(PATIENCE)
        assert await app.handle(good).result(PATIENCE) == 5
        await app.enqueue(write("after")).result(PATIENCE)
        died = await failure(app.enqueue(write("inside"), retry=ONCE).result(PATIENCE))
        assert "inside" in str(died)
        assert await notes(app) == ["after 2", "good 1"]
        assert len((await app.list(type="value")).items) == 2


@with_transactions
async def test_a_plain_handler_reads_in_its_transaction(make_app: MakeApp) -> None:
    @work(name="read")
    def read(ctx: Context) -> list[str]:
        with ctx.sync.transaction() as tx:
            if isinstance(tx, sqlite3.Connection):
                tx.executemany("INSERT INTO notes VALUES (?)", [("a",), ("b",)])
                return [row[0] for row in tx.execute("SELECT note FROM notes ORDER BY note")]
            tx.executemany("INSERT INTO notes VALUES ($1)", [("a",), ("b",)])
            assert tx.fetchval("SELECT count(*) FROM notes") == 2
            assert tx.fetchrow("SELECT note FROM notes WHERE note = $1", "b")["note"] == "b"
            return [row["note"] for row in tx.fetch("SELECT note FROM notes ORDER BY note")]

    async with make_app(read) as app:
        await prepare(app)
        assert await app.enqueue(read()).result(PATIENCE) == ["a", "b"]
        assert await notes(app) == ["a", "b"]


@with_transactions
async def test_a_second_transaction_of_a_plain_handler_is_refused(make_app: MakeApp) -> None:
    @work(name="twice", retry=ONCE)
    def twice(ctx: Context) -> str:
        with ctx.sync.transaction():
            pass
        with pytest.raises(InputError, match="can be used once"), ctx.sync.transaction():
            pass
        with pytest.raises(InputError, match="cannot be used in a handler after"):
            app.sync.cancel(ctx.id)
        return "refused"

    async with make_app(twice) as app:
        assert await app.enqueue(twice()).result(PATIENCE) == "refused"


@with_transactions
async def test_a_plain_handler_that_is_too_late_writes_nothing(make_app: MakeApp) -> None:
    """A thread cannot be stopped: its block ends after its attempt has timed out."""
    go = threading.Event()
    seen: list[str] = []

    @work(name="slow", timeout=0.1, retry=ONCE)
    def slow(ctx: Context) -> None:
        try:
            with ctx.sync.transaction() as tx:
                tx.execute("INSERT INTO notes VALUES ('late')")
                go.wait(PATIENCE)
        except Exception as error:
            seen.append(type(error).__name__)
            raise

    async with make_app(slow) as app:
        await prepare(app)
        handle = await app.enqueue(slow())
        asyncio.get_running_loop().call_later(0.5, go.set)
        died = await failure(handle.result(PATIENCE))
        assert "longer than its timeout" in str(died)
        await until(lambda: seen)
        assert seen == ["LeaseLost"]
        assert await notes(app) == []
