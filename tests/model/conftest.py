"""Servers whose clocks move only when a test sets them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from tests.backends.redis_audit import audit
from tests.backends.test_postgres import DELETE_ALL_ROWS, EMPTY
from tests.support.databases import Postgres
from tests.support.valkey import Client
from treadle.backends.postgres import PostgresBackend
from treadle.backends.redis import RedisBackend
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


class ManualClockRedis:
    def __init__(self, url: str) -> None:
        self._url = url
        self._backend: RedisBackend | None = None

    async def open(self, clock: ManualClock) -> RedisBackend:
        self._backend = backend = RedisBackend(self._url, test_clock=True)
        await backend.open()
        await backend._link.command(b"FLUSHDB")
        await self.set(clock.now())
        return backend

    async def set(self, now: float) -> None:
        assert self._backend is not None
        link = self._backend._link
        await link.command(b"SET", link.key("shift"), f"={now!r}")

    async def close(self, backend: Any) -> None:
        await backend.close()
        place, _, number = self._url.partition("?db=")
        with Client(place) as client:
            client.call("SELECT", number or 0)
            assert audit(client, "treadle") == []


@pytest.fixture
def clocked_redis(valkey_url: str) -> ManualClockRedis:
    return ManualClockRedis(valkey_url)


async def _prepare(url: str) -> None:
    backend = PostgresBackend(url)
    await backend.open()
    await backend.close()
    connection = await asyncpg.connect(url)
    await connection.execute(MANUAL_CLOCK)
    await connection.execute(DELETE_ALL_ROWS)
    await connection.close()
