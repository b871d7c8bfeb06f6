"""What the tests of the PostgreSQL backend share."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from treadle.backends.postgres import PostgresBackend

READY = """
with n as (select nextval('treadle.number') as no from generate_series(1, $1::int)),
i as (
  insert into treadle.item (no, queued, due, keep, priority, attempts, need, id, tenant, type, queue, lane,
      input, options)
    select no, 0, 0, 86400, 0, 3, 0, 'x' || no, 'default', 'work', 'default', 'l' || (no % 10), '', '' from n
)
insert into treadle.job (no, seq, due, since, status, priority, budget, queue, tenant, lane, type)
  select no, no, 0, 0, 2, 0, 3, 'default', 'default', 'l' || (no % 10), 'work' from n
"""
"""So many ready items, in ten lanes, quicker than by `submit`."""


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncGenerator[PostgresBackend]:
    """An open backend."""
    backend = PostgresBackend(url, **options)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


@asynccontextmanager
async def connected(url: str) -> "AsyncGenerator[asyncpg.Connection]":
    """A connection that is not the backend's."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()
