"""PostgreSQL: the whole backend contract."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack

import asyncpg
import psycopg
import pytest

from tests.support.databases import Postgres
from tests.support.sessions import RETURNED
from tests.support.traps import lay_traps
from treadle.backends.postgres import PostgresBackend
from treadle.testing.contract import BackendContract

MOVABLE_CLOCK = """
create table treadle.shift (seconds float8 not null);
insert into treadle.shift values (0);
create or replace function treadle.clock() returns float8 language sql volatile as
  $$ select extract(epoch from pg_catalog.clock_timestamp())::float8 + (select seconds from treadle.shift) $$;
"""


class PostgresSubject:
    """A store whose clock can be moved: it is a function in the database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stack = AsyncExitStack()
        self._admin: asyncpg.Connection | None = None

    async def __aenter__(self) -> "PostgresSubject":
        try:
            self.backend = await self.another()
        except BaseException:
            await self._stack.aclose()  # what was started before, such as a PgBouncer
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def advance(self, seconds: float) -> None:
        if self._admin is None:
            self._admin = await asyncpg.connect(self._url)
            self._stack.push_async_callback(self._admin.close)
        await self._admin.execute("update treadle.shift set seconds = seconds + $1", seconds)

    async def set_back(self, seconds: float) -> None:
        await self.advance(-seconds)

    async def another(self) -> PostgresBackend:
        backend = PostgresBackend(self._url)
        await backend.open()
        self._stack.push_async_callback(backend.close)
        return backend


DELETE_ALL_ROWS = """
set search_path to pg_catalog;
do $$
begin
  execute format(
    'create function public.delete_all_rows() returns void language plpgsql as %L',
    (select 'begin ' || string_agg(format('delete from treadle.%I;', tablename), ' ') || ' end'
     from pg_tables where schemaname = 'treadle' and tablename not in ('meta', 'shift')));
end $$
"""
"""A function that keeps the plans of its statements. To plan them takes 20 times as long as to run them."""

EMPTY = f"""
do $$
begin
  perform pg_terminate_backend(pid, 60000) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
      and query not like '{RETURNED}%';
  if to_regnamespace('treadle_parked') is not null then  -- a case has marked the store
    drop schema treadle cascade;
    alter schema treadle_parked rename to treadle;
  end if;
  perform public.delete_all_rows();
  delete from treadle.meta m where m.name = 'owned';
  drop function if exists treadle.elsewhere() cascade;
  drop table if exists treadle.arriving;
  update treadle.shift set seconds = 0;
end $$
"""


@pytest.fixture(scope="session")
def shared_database(postgres: Postgres) -> "Iterator[tuple[str, psycopg.Connection]]":
    """A database with the schema and a clock that can be moved, and a connection that empties it. To empty it
    takes a fraction of the time to create it, and the contract has hundreds of cases. It is full of traps: no
    call may find a function or an operator by the search path of its connection."""
    with postgres.database() as url:
        asyncio.run(prepare(url))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("set search_path to pg_catalog")
            yield url, connection


@pytest.fixture
def shared_url(shared_database: "tuple[str, psycopg.Connection]", kept_sessions: Callable[[str], str]) -> str:
    """Its URL; it is empty. Sessions are kept for the next case: to plan the statements anew is half of the
    server's work."""
    url, connection = shared_database
    connection.execute(EMPTY)
    return kept_sessions(url)


async def prepare(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(lay_traps())
    backend = PostgresBackend(url)
    await backend.open()
    await backend.close()
    await connection.execute(MOVABLE_CLOCK)
    await connection.execute(DELETE_ALL_ROWS)
    await connection.close()


class TestPostgresContract(BackendContract):
    @pytest.fixture
    async def subject(self, shared_url: str) -> AsyncIterator[PostgresSubject]:
        async with PostgresSubject(shared_url) as subject:
            yield subject
