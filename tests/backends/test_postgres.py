"""PostgreSQL: the whole contract, and what only a server can go through."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.support.databases import Postgres
from treadle.backends.postgres import PostgresBackend
from treadle.testing.contract import BackendContract

MOVABLE_CLOCK = """
create table treadle.shift (seconds float8 not null);
insert into treadle.shift values (0);
create or replace function treadle.clock() returns float8 language sql volatile as
  $$ select extract(epoch from clock_timestamp())::float8 + (select seconds from treadle.shift) $$;
"""


class PostgresSubject:
    """A store whose clock can be moved: it is a function in the database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "PostgresSubject":
        self.backend = await self.another()
        self._admin = await asyncpg.connect(self._url)
        self._stack.push_async_callback(self._admin.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def advance(self, seconds: float) -> None:
        await self._admin.execute("update treadle.shift set seconds = seconds + $1", seconds)

    async def another(self) -> PostgresBackend:
        backend = PostgresBackend(self._url)
        await backend.open()
        self._stack.push_async_callback(backend.close)
        return backend


@pytest.fixture(scope="session")
def template(postgres: Postgres) -> Iterator[str]:
    """The name of a database with everything in it, to be copied."""
    with postgres.database() as url:
        asyncio.run(_prepare(url))
        yield urlsplit(url).path.lstrip("/")


async def _prepare(url: str) -> None:
    backend = PostgresBackend(url)
    await backend.open()
    await backend.close()
    connection = await asyncpg.connect(url)
    await connection.execute(MOVABLE_CLOCK)
    await connection.close()


class TestPostgresContract(BackendContract):
    @pytest.fixture
    async def subject(self, postgres: Postgres, template: str) -> AsyncIterator[PostgresSubject]:
        with postgres.database(template) as url:
            async with PostgresSubject(url) as subject:
                yield subject
