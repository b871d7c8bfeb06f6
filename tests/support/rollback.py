"""A store that goes back in time: what it holds is copied, and put back later, while others use it.

So does a failover to a replica that is behind, or a crash of a server that does not wait for its disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any, TypeAlias

from tests.support.valkey import Client

_PLAIN_COLUMNS = """
select table_name, column_name from information_schema.columns
where table_schema = 'treadle' and is_generated = 'NEVER' order by table_name, ordinal_position
"""
Restore: TypeAlias = Callable[[], Awaitable[None]]


async def copy_of(place: str) -> Restore:
    """Copy a store. The answer puts it back. `place`: the path of a SQLite file, or a URL."""
    if place.startswith("postgres"):
        return await _copy_postgres(place)
    return _copy_redis(place) if "://" in place else _copy_sqlite(place)


def _copy_sqlite(path: str) -> Restore:
    with closing(sqlite3.connect(path)) as connection:
        names = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        columns = {
            name: ", ".join(column for _, column, *_ in connection.execute(f"PRAGMA table_info({name})"))
            for name in names  # but for columns that follow from others
        }
        rows = {name: connection.execute(f"SELECT {columns[name]} FROM {name}").fetchall() for name in names}

    async def restore() -> None:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=5)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            for name, copied in rows.items():
                connection.execute(f"DELETE FROM {name}")
                for row in copied:
                    values = ", ".join("?" * len(row))
                    connection.execute(f"INSERT INTO {name} ({columns[name]}) VALUES ({values})", row)
            connection.execute("COMMIT")

    return restore


async def _copy_postgres(url: str) -> Restore:
    import asyncpg

    connection: Any = await asyncpg.connect(url)
    tables = [
        row["tablename"]
        for row in await connection.fetch("select tablename from pg_tables where schemaname = 'treadle'")
        if row["tablename"] not in ("meta", "audit")
    ]
    columns: dict[str, list[str]] = {}
    for row in await connection.fetch(_PLAIN_COLUMNS):
        columns.setdefault(row["table_name"], []).append(row["column_name"])
    async with connection.transaction(isolation="repeatable_read"):  # as of one instant
        rows = {
            name: [row["t"] for row in await connection.fetch(f"select x::text as t from treadle.{name} x")]
            for name in tables
        }
    tokens = await connection.fetchval("select last_value from treadle.token")
    await connection.close()

    async def restore() -> None:
        connection: Any = await asyncpg.connect(url)
        try:
            while not await put_back(connection):
                pass
        finally:
            await connection.close()

    async def put_back(connection: Any) -> bool:
        """False: others held some of the tables, and waited for more."""
        try:
            async with connection.transaction():
                await connection.execute(f"truncate {', '.join(f'treadle.{name}' for name in tables)}")
                for name, copied in rows.items():
                    fields = ", ".join(f"(x::treadle.{name}).{column}" for column in columns[name])
                    into = f"treadle.{name} ({', '.join(columns[name])})"
                    insert = f"insert into {into} select {fields} from unnest($1::text[]) x"
                    await connection.execute(insert, copied)
                await connection.execute(f"select setval('treadle.token', {tokens})")
        except asyncpg.DeadlockDetectedError:
            return False
        return True

    return restore


def _copy_redis(url: str) -> Restore:
    place, _, number = url.partition("?db=")
    with Client(place) as client:
        client.call("SELECT", number or 0)
        values = {key: client.call("DUMP", key) for key in client.call("KEYS", "*")}

    async def restore() -> None:
        with Client(place) as client:
            client.call("SELECT", number or 0)
            puts = [("RESTORE", key, 0, value) for key, value in values.items()]
            client.call_all([("MULTI",), ("FLUSHDB",), *puts, ("EXEC",)])

    return restore
