"""The store refuses settlements while handlers finish. Every item ends with its result."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from tests.backends.postgres_store import connected
from tests.engine.kit import PATIENCE, Barrier, Errors, MakeApp, failure, until
from treadle import Context, Result, Retry, StoreUnavailable, Treadle, work
from treadle.backends.postgres import PostgresBackend
from treadle.backends.sqlite import SqliteBackend
from treadle.engine import store_retry
from treadle.engine.run import settle
from treadle.errors import BackendError
from treadle.testing import Faults, FaultyBackend

COUNT = 30

Step = Callable[[], Awaitable[object]]


@pytest.fixture(autouse=True)
def impatient(brief_pauses: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tries in little time."""
    monkeypatch.setattr(settle, "BACKOFF", Retry(attempts=None, base=0.01, factor=1.5, max=0.05, jitter=0.5))
    monkeypatch.setattr(settle, "SPLIT_AFTER", 2)
    monkeypatch.setattr(store_retry, "CALLER_SECONDS", 0.3)


async def finish_during(app: Treadle, errors: Errors, begin: Step, end: Step) -> None:
    """Let handlers finish while the store refuses. Each adds its number to the value of their group."""
    barrier = Barrier()
    ran: list[int] = []

    @work(name="part")
    async def part(ctx: Context, n: int) -> Result[int, int]:
        ran.append(n)
        await barrier.wait()
        return ctx.result(n, append=lambda old: (old or 0) + n)

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue([part(n) for n in range(COUNT)])

    app.register(part, root)
    async with app:
        handle = await app.enqueue(root())
        await until(lambda: barrier.count == COUNT)
        await begin()
        barrier.go.set()
        await until(lambda: errors.phases().count("settle") > 3)
        await asyncio.sleep(0.2)  # it lasts: for several tries of each
        await end()
        assert await handle.group(PATIENCE) == sum(range(COUNT))
        parts = await app.list(type="part", limit=COUNT)
        assert {state.status for state in parts.items} == {"success"}
        assert sorted(str(state.result) for state in parts.items) == sorted(map(str, range(COUNT)))
    assert sorted(ran) == list(range(COUNT))


# ------------------------------------------------------------------------------------------------- PostgreSQL


@asynccontextmanager
async def restricted_role(url: str) -> AsyncGenerator[tuple[str, asyncpg.Connection]]:
    """The URL of a new role that may use the tables, and an administrator's connection."""
    role = f"treadle_{uuid.uuid4().hex[:12]}"
    async with connected(url) as admin:
        await admin.execute(f"create role {role} login; grant usage on schema treadle to {role}")
        for kind in ("tables", "sequences", "functions"):
            await admin.execute(f"grant all on all {kind} in schema treadle to {role}")
        try:
            yield urlunsplit(urlsplit(url)._replace(netloc=f"{role}@")), admin
        finally:
            await admin.execute(f"{ended(role)}; commit; drop owned by {role}; drop role {role}")


def ended(role: str) -> str:
    """A statement that ends the sessions of a role."""
    return f"select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = '{role}'"


@pytest.mark.parametrize("how", ["no logins", "no inserts"])
async def test_postgres_refuses_for_a_while(warm_url: str, how: str) -> None:
    """It accepts no login, as while credentials are rotated, or the role has no right to insert."""
    async with restricted_role(warm_url) as (url, admin):
        role = urlsplit(url).username or ""
        inserts = "insert on all tables in schema treadle"
        begin, end = {
            "no logins": (f"alter role {role} nologin; commit; {ended(role)}", f"alter role {role} login"),
            "no inserts": (f"revoke {inserts} from {role}", f"grant {inserts} to {role}"),
        }[how]
        errors = Errors()
        app = Treadle(PostgresBackend(url, apply_schema=False), on_error=errors, lease=30)
        await finish_during(app, errors, lambda: admin.execute(begin), lambda: admin.execute(end))


@work(name="echo")
async def echo(text: str) -> str:
    return text


@pytest.mark.parametrize("how", ["no logins", "no inserts"])
async def test_an_enqueue_that_postgres_refuses(warm_url: str, how: str) -> None:
    """The caller gets the reason, and can enqueue the same work again."""
    async with restricted_role(warm_url) as (url, admin):
        role = urlsplit(url).username or ""
        app = Treadle(PostgresBackend(url, apply_schema=False), work=[echo])
        await app.connect()
        begin, end, reason = {
            "no logins": (
                f"alter role {role} nologin; commit; {ended(role)}",
                f"alter role {role} login",
                "log in",
            ),
            "no inserts": (
                f"revoke insert on treadle.item from {role}",
                f"grant insert on treadle.item to {role}",
                "permission denied",
            ),
        }[how]
        await admin.execute(begin)
        unsent = echo("a")
        with pytest.raises(StoreUnavailable, match=reason):
            await app.enqueue(unsent)
        await admin.execute(end)
        assert (await (await app.enqueue(unsent)).state()).status == "ready"
        await app.close()


# ----------------------------------------------------------------------------------------------------- SQLite


@pytest.mark.parametrize("how", ["locked", "refused"])
async def test_sqlite_refuses_for_a_while(tmp_path: Path, how: str) -> None:
    """Another program keeps the file locked, or the tables refuse to end items."""
    errors, path = Errors(), tmp_path / "work.db"
    app = Treadle(SqliteBackend(path, busy_timeout=0.01), on_error=errors, lease=30)
    refuse = "create trigger refuse before insert on treadle_done begin select raise(abort, 'no'); end"
    begin, end = ("begin immediate", "commit") if how == "locked" else (refuse, "drop trigger refuse")
    with closing(
        sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
    ) as other:
        execute = functools.partial(asyncio.to_thread, other.execute)
        await finish_during(app, errors, lambda: execute(begin), lambda: execute(end))


# ----------------------------------------------------------------------------------- the outcome is the cause


REFUSE_SQLITE = """
create trigger refuse before insert on treadle_done when instr(new.result, 'poison')
begin select raise(abort, 'poison'); end
"""
REFUSE_POSTGRES = """
create function treadle.refuse() returns trigger language plpgsql as $$ begin
  if position('poison'::bytea in new.result) > 0 then
    raise exception 'poison' using errcode = '22000';
  end if;
  return new;
end $$;
create trigger refuse before insert on treadle.ended_item for each row execute function treadle.refuse();
"""


@pytest.mark.parametrize("where", ["sqlite", "postgres"])
async def test_a_result_that_the_tables_refuse(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Only its own item is dead: the store accepts the end of the item without the result."""
    if where == "postgres":
        url = request.getfixturevalue("warm_url")
        async with connected(url) as admin:
            await admin.execute(REFUSE_POSTGRES)
    else:
        url = f"sqlite:///{tmp_path / 'work.db'}"
        async with Treadle(url):
            pass
        with closing(sqlite3.connect(tmp_path / "work.db")) as connection:
            connection.executescript(REFUSE_SQLITE)
    async with Treadle(url, work=[echo]) as app:
        handles = await app.enqueue_many([echo(text) for text in ("a", "poison", "b")])
        assert (await failure(handles[1].result(PATIENCE))).reason == "undecodable"
        assert [await handles[n].result(PATIENCE) for n in (0, 2)] == ["a", "b"]


@pytest.mark.every_store
async def test_a_store_that_refuses_everything_for_a_while(make_faulty: MakeApp, faults: Faults) -> None:
    """It refuses every outcome, and cannot try the end of an item without it either: no item is dead."""
    refused = [
        faults.fail(verb, times=None, error=lambda: BackendError("no")) for verb in ("settle", "begin")
    ]
    async with make_faulty(echo) as app:
        if not isinstance(app.backend, FaultyBackend) or "transactions" not in app.backend.capabilities:
            pytest.skip("the store has no transactions, so its refusal is believed")
        handle = await app.enqueue(echo("a"))
        await until(lambda: refused[1].hits > 3 * settle.PROOFS)
        for fault in refused:
            fault.end()
        assert await asyncio.wait_for(handle.result(), PATIENCE) == "a"


@pytest.mark.parametrize("drain", [0, PATIENCE])
async def test_stop_waits_for_a_settlement_that_the_store_refuses_for_a_moment(
    make_faulty: MakeApp, faults: Faults, drain: float
) -> None:
    """The result of a handler that has ended is not discarded."""
    errors = Errors()
    app = make_faulty(echo, on_error=errors)
    await app.start()
    refused = faults.fail("settle", error=lambda: BackendError("not now"), times=2)
    handle = await app.enqueue(echo("done"))
    await errors.until("settle")
    await app.stop(drain=drain)
    state = await handle.state()
    assert (state.status, state.losses, refused.hits) == ("success", 0, 2)


async def test_stop_does_not_wait_for_ever_for_a_settlement_that_the_store_refuses(
    make_faulty: MakeApp, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The item runs again elsewhere."""
    monkeypatch.setattr(store_retry, "STOP_TIMEOUT", 0.05)
    errors = Errors()
    app = make_faulty(echo, on_error=errors)
    await app.start()
    refused = faults.fail("settle", error=lambda: StoreUnavailable("not now"), times=None)
    handle = await app.enqueue(echo("done"))
    await errors.until("settle")
    async with asyncio.timeout(PATIENCE):
        await app.stop(drain=0.1)
    refused.end()
    async with make_faulty(echo) as other:
        assert await other.handle(handle.id).result(PATIENCE) == "done"
