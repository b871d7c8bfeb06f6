"""The queries of a session to the store."""

from __future__ import annotations

import asyncio
import sqlite3

from benchmarks.peers.shared import URL
from benchmarks.valkey import command

PAUSE = 0.002


async def none_left(count: str) -> None:
    """Wait until the SQL, or the command of Valkey, counts nothing. Only what is written counts."""
    if URL.startswith("sqlite"):
        connection = sqlite3.connect(URL.removeprefix("sqlite:///"), isolation_level=None)
        while connection.execute(count).fetchone()[0]:  # noqa: ASYNC110 - the store has no event to wait for
            await asyncio.sleep(PAUSE)
        connection.close()
    elif URL.startswith("postgres"):
        import asyncpg

        asking = await asyncpg.connect(URL)
        while await asking.fetchval(count):  # noqa: ASYNC110 - the store has no event to wait for
            await asyncio.sleep(PAUSE)
        await asking.close()
    elif URL.startswith("redis"):
        while command(URL, *count.split()):  # noqa: ASYNC110 - the store has no event to wait for
            await asyncio.sleep(PAUSE)


async def tidied() -> None:
    """Do at once what PostgreSQL does after a minute: gather statistics and remove dead rows."""
    if URL.startswith("postgres"):
        import asyncpg

        connection = await asyncpg.connect(URL)
        await connection.execute("vacuum analyze")
        await connection.close()
