"""The stores of a soak, and what can be measured of them from outside."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import asyncpg

from tests.support import postgres
from tests.support.run import Run

MB = 2**20

SIZES = """
select pg_database_size(current_database()) as database,
  (select sum(size) from pg_ls_waldir()) as wal,
  (select count(*) from pg_stat_activity where application_name = 'treadle'
     and datname = current_database()) as connections,
  (select sum(pg_total_relation_size(relid)) from pg_stat_user_tables where schemaname = 'treadle') as tables,
  (select count(*) from treadle.item) as items,
  (select sum(n_dead_tup) from pg_stat_user_tables where schemaname = 'treadle') as dead
"""


class MeasuredStore(Protocol):
    url: str

    async def sizes(self) -> dict[str, float]:
        """Figures by the name of their series."""
        ...


class MeasuredSqlite:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"sqlite:///{path}"

    async def sizes(self) -> dict[str, float]:
        return await asyncio.to_thread(self._sizes)

    def _sizes(self) -> dict[str, float]:
        wal = Path(f"{self._path}-wal")
        connection = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)
        try:
            (items,) = connection.execute("SELECT count(*) FROM treadle_item").fetchone()
            (free,) = connection.execute("PRAGMA freelist_count").fetchone()
            (page,) = connection.execute("PRAGMA page_size").fetchone()
        finally:
            connection.close()
        size = self._path.stat().st_size
        return {
            "tables": (size - free * page) / MB,
            "database": size / MB,
            "write-ahead log": wal.stat().st_size / MB if wal.exists() else 0.0,
            "items in the store": items,
        }


class MeasuredPostgres:
    def __init__(self, url: str) -> None:
        self.url = url
        self._connection: Any = None

    async def sizes(self) -> dict[str, float]:
        if self._connection is None:
            self._connection = await asyncpg.connect(self.url)
        found = await self._connection.fetchrow(SIZES)
        return {
            "tables": float(found["tables"]) / MB,
            "database": float(found["database"]) / MB,
            "write-ahead log": float(found["wal"]) / MB,
            "connections": found["connections"],
            "items in the store": found["items"],
            "dead rows": float(found["dead"]),
        }


@contextmanager
def measured_store(on: str, directory: Path) -> Generator[MeasuredStore]:
    """A new store: a file, or a server that only this soak uses."""
    if on == "sqlite":
        yield MeasuredSqlite(directory / "soak.db")
        return
    run = Run.begin()
    try:
        yield MeasuredPostgres(postgres.start(run.directory, forgetful=False))
    finally:
        run.end()
