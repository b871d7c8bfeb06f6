"""The first call of a process is a submit in a transaction of its own, which has SQLite's write lock."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from treadle import InputError, Treadle, work
from treadle.backends.sqlite import SqliteBackend, schema_sql


@work(name="step")
async def step(n: int) -> int:
    return n


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.db"


@pytest.fixture
def own(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.row_factory, connection.text_factory = lambda _cursor, row: {"row": row}, bytes
        yield connection


def _client(path: Path) -> Treadle:
    return Treadle(SqliteBackend(path, busy_timeout=1), work=[step])


def _prepare(path: Path) -> None:
    async def prepare() -> None:
        async with _client(path):
            pass

    asyncio.run(prepare())


def _enqueue(how: Literal["sync", "async", "many"], client: Treadle, tx: sqlite3.Connection) -> None:
    async def submit() -> None:
        try:
            if how == "many":
                await client.enqueue_many([step(1)], tx=tx)
            else:
                await client.enqueue(step(1), tx=tx)
        finally:
            await client.close()

    if how == "sync":
        try:
            client.sync.enqueue(step(1), tx=tx)
        finally:
            client.sync.stop()
    else:
        asyncio.run(submit())


def _items(own: sqlite3.Connection) -> int:
    cursor = own.cursor()
    cursor.row_factory = None
    return int(cursor.execute("SELECT count(*) FROM treadle_item").fetchall()[0][0])


@pytest.mark.parametrize("how", ["sync", "async", "many"])
def test_a_prepared_file_is_opened_without_the_write_lock(
    path: Path, own: sqlite3.Connection, how: Literal["sync", "async", "many"]
) -> None:
    _prepare(path)
    own.execute("BEGIN IMMEDIATE")
    _enqueue(how, _client(path), own)
    own.execute("COMMIT")
    assert _items(own) == 1


@pytest.mark.parametrize("how", ["sync", "async", "many"])
@pytest.mark.parametrize("state", ["new", "old", "no log"])
def test_a_file_that_would_have_to_be_written_first_is_refused_at_once(
    path: Path, own: sqlite3.Connection, how: Literal["sync", "async", "many"], state: str
) -> None:
    if state != "new":
        own.executescript(schema_sql())
    if state == "old":
        own.execute("PRAGMA journal_mode = WAL")
        own.execute("UPDATE treadle_meta SET value = 0 WHERE name = 'schema'")
    own.execute("BEGIN IMMEDIATE")
    with pytest.raises(InputError, match=r"await app.connect\(\)"):
        _enqueue(how, _client(path), own)
    assert own.in_transaction


def test_a_connection_that_cannot_be_used_is_refused_before_the_file_is_opened(
    path: Path, own: sqlite3.Connection
) -> None:
    with pytest.raises(InputError, match="BEGIN one first"):
        _enqueue("async", _client(path), own)
