"""A PostgreSQL database whose clock moves only when a test sets it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from tests.backends.test_postgres import EMPTY
from tests.support.databases import Postgres
from treadle.backends.postgres import PostgresBackend
from treadle.testing import ManualClock

MANUAL_CLOCK = """
create table treadle.shift (seconds float8 not null);
insert into treadle.shift values (0);
create or replace function treadle.clock() returns float8 language sql volatile as
  $$ select seconds from treadle.shift $$;
"""


class ManualClockPostgres:
    def __init__(self, url: str) -> None:
        self.url = url
        self._admin: Any = None

    async def open(self, clock: ManualClock) -> PostgresBackend:
        self._admin = await asyncpg.connect(self.url)
        await self._admin.execute(EMPTY)
        await self.set(clock.now())
        backend = PostgresBackend(self.url)
        await backend.open()
        return backend

    async def set(self, now: float) -> None:
        await self._admin.execute("update treadle.shift set seconds = $1", now)

    async def close(self, backend: Any) -> None:
        await backend.close()
        await self._admin.close()


@pytest.fixture
def clocked_postgres(postgres: Postgres) -> Iterator[ManualClockPostgres]:
    with postgres.database() as url:
        asyncio.run(_prepare(url))
        yield ManualClockPostgres(url)


async def _prepare(url: str) -> None:
    backend = PostgresBackend(url)
    await backend.open()
    await backend.close()
    connection = await asyncpg.connect(url)
    await connection.execute(MANUAL_CLOCK)
    await connection.close()
