"""The stores of a chaos run: a user's own table, and the faults that can be caused from outside."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from pathlib import Path
from typing import Any, Protocol

import asyncpg

from tests.backends.redis_audit import audit
from tests.support import postgres
from tests.support.valkey import Client as ValkeyClient
from tests.support.valkey import ValkeyServer

CUT = """
select count(pg_terminate_backend(pid)) from (
  select pid from pg_stat_activity
  where datname = current_database() and application_name = 'treadle' order by random() limit $1) x
"""


class DurableStore(Protocol):
    """A store that survives its processes."""

    url: str
    restarts: bool
    """Whether there is a server that can be restarted."""

    transactions: bool
    """Whether the user's own table is written in the transaction that settles."""

    async def prepare(self) -> None:
        """Create the user's own table, without a unique key, so that a second row is seen and not refused."""

    async def effects(self) -> list[str]:
        """The ids in the user's own table."""
        ...

    async def cut(self, rng: random.Random) -> int:
        """Break some connections. Return how many."""
        ...

    async def restart(self, *, crash: bool) -> None:
        """Restart the server."""

    async def recount(self) -> dict[str, list[Any]]:
        """The counters in the tables that are wrong."""
        ...


class SqliteStore:
    """A file: there is no connection to cut and no server to restart."""

    restarts = False
    transactions = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"sqlite:///{path}"

    async def prepare(self) -> None:
        with sqlite3.connect(self._path) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS effects (id TEXT NOT NULL)")
        connection.close()

    async def effects(self) -> list[str]:
        connection = sqlite3.connect(self._path)
        rows: list[Any] = connection.execute("SELECT id FROM effects").fetchall()
        connection.close()
        return [row[0] for row in rows]

    async def cut(self, rng: random.Random) -> int:
        return 0

    async def restart(self, *, crash: bool) -> None:
        raise NotImplementedError

    async def recount(self) -> dict[str, list[Any]]:
        return {}


class PostgresStore:
    """A server that only this run uses, in the directory `home`."""

    restarts = True
    transactions = True

    def __init__(self, url: str, home: Path) -> None:
        self.url = url
        self._home = home

    async def prepare(self) -> None:
        connection = await asyncpg.connect(self.url)
        await connection.execute("create table if not exists effects (id text not null)")
        await connection.close()

    async def effects(self) -> list[str]:
        return [row["id"] for row in await self._fetch("select id from effects")]

    async def cut(self, rng: random.Random) -> int:
        (row,) = await self._fetch(CUT, rng.randint(1, 12))
        return row["count"]

    async def restart(self, *, crash: bool) -> None:
        await asyncio.to_thread(postgres.restart, self._home, crash=crash)

    async def recount(self) -> dict[str, list[Any]]:
        from tests.backends.postgres_store import WRONG

        found = {wrong: await self._fetch(query) for wrong, query in WRONG.items()}
        return {wrong: rows[:5] for wrong, rows in found.items() if rows}

    async def _fetch(self, query: str, *arguments: object) -> list[Any]:
        connection = await asyncpg.connect(self.url)
        try:
            return await connection.fetch(query, *arguments)
        finally:
            await connection.close()


class RedisStore:
    """A namespace of a server. If only this run uses the server, it can be restarted."""

    transactions = False

    def __init__(self, url: str, server: ValkeyServer | None = None) -> None:
        self.url = url
        self.restarts = server is not None
        self._server = server

    async def prepare(self) -> None:
        """There is no table of the user: no transaction settles together with it."""

    async def effects(self) -> list[str]:
        return []

    async def cut(self, rng: random.Random) -> int:
        def kill() -> int:
            with ValkeyClient(self.url.partition("?")[0]) as client:
                killed: int = client.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            return killed

        return await asyncio.to_thread(kill)

    async def restart(self, *, crash: bool) -> None:
        assert self._server is not None
        await asyncio.to_thread(self._server.kill if crash else self._server.stop)
        await asyncio.to_thread(self._server.start)

    async def recount(self) -> dict[str, list[Any]]:
        place, _, number = self.url.partition("?db=")
        with ValkeyClient(place) as client:
            client.call("SELECT", number or 0)
            problems = audit(client, "treadle")
        return {"audit": problems[:5]} if problems else {}
