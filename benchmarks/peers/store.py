"""What a session asks the store itself."""

from __future__ import annotations

import asyncio
import sqlite3

from benchmarks.peers.shared import URL

PAUSE = 0.002


async def none_left(count: str) -> None:
    """Until the SQL counts nothing: what is written is what counts."""
    if URL.startswith("sqlite"):
        connection = sqlite3.connect(URL.removeprefix("sqlite:///"), isolation_level=None)
        while connection.execute(count).fetchone()[0]:  # noqa: ASYNC110 - it cannot tell
            await asyncio.sleep(PAUSE)
        connection.close()
    elif URL.startswith("postgres"):
        import asyncpg

        asking = await asyncpg.connect(URL)
        while await asking.fetchval(count):  # noqa: ASYNC110 - it cannot tell
            await asyncio.sleep(PAUSE)
        await asking.close()


async def tidied() -> None:
    """PostgreSQL gathers statistics and removes what is dead by itself, but only after a minute."""
    if URL.startswith("postgres"):
        import asyncpg

        connection = await asyncpg.connect(URL)
        await connection.execute("vacuum analyze")
        await connection.close()
