"""PostgreSQL: the whole contract, and what only a server can go through."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import asyncpg
import pytest

from treadle.backends.postgres import PostgresBackend
from treadle.testing.contract import BackendContract

MOVABLE_CLOCK = """
create table if not exists treadle.shift (seconds float8 not null);
insert into treadle.shift select 0 where not exists (select 1 from treadle.shift);
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
        await self._admin.execute(MOVABLE_CLOCK)
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


class TestPostgresContract(BackendContract):
    @pytest.fixture
    async def subject(self, postgres_url: str) -> AsyncIterator[PostgresSubject]:
        async with PostgresSubject(postgres_url) as subject:
            yield subject
