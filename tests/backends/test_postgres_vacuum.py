"""PostgreSQL: entries of items that have left the queue do not pile up where the next claim looks."""

import asyncio
import uuid
from typing import Any

import pytest

from tests.backends.postgres_store import READY, connected, opened
from treadle.backends.postgres import PostgresBackend, health
from treadle.testing.contract.build import apply, beat, claim, succeed
from treadle.testing.contract.wakeups import PATIENCE

FEW = 500
SESSIONS = 3
LOCK = 7
WAITING = f"""
select count(*) from pg_locks l join pg_database d on d.oid = l.database
where d.datname = current_database() and l.locktype = 'advisory' and l.objid = {LOCK} and not l.granted
"""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "EVERY", FEW)
    monkeypatch.setattr(health, "DEAD", FEW)


async def run(backend: PostgresBackend, admin: Any, count: int) -> None:
    """Claim and settle this number of items, and let the server's statistics know: each session says what it
    has changed. None of them is asked twice, because all wait until all were asked."""
    for _ in range(count // 250):
        await apply(backend, *map(succeed, await claim(backend, 250)))
    await vacuumed(backend)
    flush = f"select pg_stat_force_next_flush() from pg_advisory_xact_lock_shared({LOCK})"
    await admin.execute(f"select pg_advisory_lock({LOCK})")
    told = asyncio.gather(*(backend._calls.value(flush, vital=True) for _ in range(SESSIONS)))
    async with asyncio.timeout(PATIENCE):
        while await admin.fetchval(WAITING) < SESSIONS:  # noqa: ASYNC110  no event
            await asyncio.sleep(0.01)
    await admin.execute(f"select pg_advisory_unlock({LOCK})")
    await told


async def dead_rows(backend: PostgresBackend) -> int:
    return await backend._calls.value("select pg_stat_get_dead_tuples('treadle.open_item'::regclass)")


async def vacuums(backend: PostgresBackend) -> int:
    return await backend._calls.value("select pg_stat_get_vacuum_count('treadle.open_item'::regclass)")


async def vacuumed(backend: PostgresBackend) -> None:
    if backend._vacuum._task is not None:
        await backend._vacuum._task


async def test_a_worker_vacuums_after_many_claims(fresh_url: str) -> None:
    async with opened(fresh_url, pool_size=SESSIONS) as backend, connected(fresh_url) as admin:
        await beat(backend)
        await admin.execute(READY, 3 * FEW)
        await run(backend, admin, FEW)
        await run(backend, admin, FEW)
        assert await vacuums(backend) > 0
        await backend._vacuum.run_once()
        assert await dead_rows(backend) < FEW


async def test_rows_that_a_transaction_still_sees_are_tried_less_often(fresh_url: str) -> None:
    async with opened(fresh_url, pool_size=SESSIONS) as backend, connected(fresh_url) as admin:
        await beat(backend)
        await admin.execute(READY, 4 * FEW)
        async with connected(fresh_url) as reader, reader.transaction(isolation="repeatable_read"):
            await reader.fetchval("select count(*) from treadle.item")
            await run(backend, admin, 2 * FEW)
            await backend._vacuum.run_once()
            assert backend._vacuum._every > FEW
        await run(backend, admin, FEW)
        await backend._vacuum.run_once()
        assert backend._vacuum._every == FEW
        assert await dead_rows(backend) < FEW


async def test_a_role_without_the_right_leaves_it_to_the_server(fresh_url: str) -> None:
    async with opened(fresh_url) as backend, connected(fresh_url) as admin:
        role = f"treadle_{uuid.uuid4().hex[:12]}"
        await admin.execute(f"create role {role}; grant usage on schema treadle to {role}")
        try:
            await admin.execute(f"set role {role}")
            await admin.execute(backend._calls.sql(health.VACUUM))  # a warning, no error
        finally:
            await admin.execute(f"reset role; drop owned by {role}; drop role {role}")
