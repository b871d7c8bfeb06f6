"""The database file: how it is opened and closed, and the parts that exist while it is open."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import weakref
from pathlib import Path
from typing import Final, NamedTuple

from treadle.base.loop_mark import keep_for_ever
from treadle.base.timing import Clock, SystemClock
from treadle.errors import BackendError, InputError, SchemaError

from .connection import (
    Durability,
    check_integrity,
    connect,
    create_file,
    retry_while_locked,
    usable_path,
)
from .marks import check_unmarked
from .process_directory import ProcessDirectory
from .schema import apply_schema, check_schema, is_current, wanted_version
from .threads import CountingThread, DatabaseThread, ReaderThread, WriteLock, WriterThread, forget_waiting
from .transactions import SqliteTransactions, check_is_prepared
from .wakeups import SqliteWakeups

FORK_PATIENCE = 5.0
"""Seconds that a fork waits for the threads of a database."""
# A check of the whole file takes time in proportion to its size: up to this size it is quick.
_SMALL = 16 * 2**20


class OpenDatabase(NamedTuple):
    """The parts that exist only while the file is open."""

    pid: int
    path: Path
    directory: ProcessDirectory
    writer: WriterThread
    reader: ReaderThread
    counter: CountingThread
    wakeups: SqliteWakeups
    transactions: SqliteTransactions


class SqliteDatabase:
    """Base of the backend: one file, opened by one process."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        durability: Durability = "full",
        apply_schema: bool = True,
        busy_timeout: float = 30.0,
        reserve: int = 16 * 2**20,
    ) -> None:
        if durability not in ("full", "normal"):
            raise InputError.of("durability", durability, "must be 'full' or 'normal'")
        self._path = path
        self._clock = SystemClock() if clock is None else clock
        self._durability: Durability = durability
        self.apply_schema = apply_schema
        self._patience = busy_timeout
        self._reserve = reserve
        self._opening = asyncio.Lock()
        self._open: OpenDatabase | None = None
        self._paused: list[DatabaseThread] = []
        """The threads that wait for the end of a fork."""
        self._forked_too_early = False
        self._room_until = 0.0
        self._claimed = 0
        """How many items the last claim has brought."""

    # -- opening and closing ---------------------------------------------------------------------------

    async def open(self) -> None:
        async with self._opening:
            if self._forked_too_early:
                raise BackendError(
                    f"{self._path} was being written while this process was forked: fork while no "
                    "transaction is open, or open a backend in the new process only"
                )
            if self._open is None:
                self._open = await self._opened()
                _opened_databases.add(self)

    def check_unopened(self, tx: object) -> None:
        """Refuse a transaction that would keep the file from being opened."""
        if self._open is None and self.apply_schema:
            check_is_prepared(tx, usable_path(self._path))

    async def _opened(self) -> OpenDatabase:
        path = usable_path(self._path)
        if not self.apply_schema and not path.exists():
            raise SchemaError(None, wanted_version(), str(path))
        create_file(path)
        directory = ProcessDirectory(path)
        directory.open()
        waiting, clock, patience = directory.open_waiting_file, self._clock, self._patience
        lock = WriteLock(path, waiting)
        writer = WriterThread(path, clock, patience, lambda: self._connect(path), lock)
        reader, counter = ReaderThread(path, clock, patience), CountingThread(path, clock, patience)
        try:
            for thread in (writer, reader, counter):
                await thread.start()
        except BaseException:
            for thread in (writer, reader, counter):
                thread.stop()
            directory.close()
            raise
        wakeups = SqliteWakeups(directory, reader)
        lock = WriteLock(path, waiting)
        transactions = SqliteTransactions(path, clock, lock, self._durability, patience)
        return OpenDatabase(os.getpid(), path, directory, writer, reader, counter, wakeups, transactions)

    async def close(self) -> None:
        async with self._opening:
            opened, self._open = self._open, None
            if opened is None or opened.pid != os.getpid():
                return
            opened.wakeups.close()
            # One after the other, the writer last: the last connection to close moves the log into the file.
            opened.transactions.close()
            for thread in (opened.counter, opened.reader, opened.writer):
                await thread.stop()
            opened.directory.close()

    def abandon(self) -> None:
        """Its threads belong to no event loop, and go on."""
        self._opening = asyncio.Lock()
        if self._open is not None and self._open.pid == os.getpid():
            self._open.wakeups.abandon()
            self._open.transactions.abandon()

    # -- forks -----------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Wait until no thread is inside SQLite: a forked process could not go on in its place."""
        if self._open is not None:
            threads = (self._open.writer, self._open.reader, self._open.counter)
            self._paused = [thread for thread in threads if thread.pause(FORK_PATIENCE)]

    def forked_in_parent(self) -> None:
        paused, self._paused = self._paused, []
        for thread in paused:
            thread.resume()

    def forked_in_child(self) -> None:
        """Close the connections, here only: the parent's locks and files are its own. SQLite counts the locks
        of a file for the whole process. A connection that is opened here beside inherited ones would take
        none, and the parent would remove the log of a file that is in use."""
        opened, self._open = self._open, None
        paused, self._paused = self._paused, []
        if opened is None:
            return
        keep_for_ever(opened)
        if len(paused) < 3 or opened.transactions.busy:
            self._forked_too_early = True
            return
        for thread in paused:
            thread.close_inherited()

    def _connect(self, path: Path) -> sqlite3.Connection:
        connection = retry_while_locked(lambda: connect(path, self._durability), path, self._patience)
        try:
            retry_while_locked(lambda: self._prepare(connection, path), path, self._patience)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection, path: Path) -> None:
        if path.stat().st_size <= _SMALL:
            check_integrity(connection, path)
        check_unmarked(connection)
        if not self.apply_schema:
            check_schema(connection)
            return
        if is_current(connection):
            return  # without the write lock: a transaction of this process may have it
        connection.execute("BEGIN IMMEDIATE")
        try:
            check_unmarked(connection)
            apply_schema(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


_opened_databases: Final[weakref.WeakSet[SqliteDatabase]] = weakref.WeakSet()


def _before_fork() -> None:
    for database in list(_opened_databases):
        database.before_fork()


def _forked_in_parent() -> None:
    for database in list(_opened_databases):
        database.forked_in_parent()


def _forked_in_child() -> None:
    forget_waiting()
    for database in list(_opened_databases):
        database.forked_in_child()
    _opened_databases.clear()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(
        before=_before_fork, after_in_parent=_forked_in_parent, after_in_child=_forked_in_child
    )
