"""StoreFile: the open file, its threads, and what lies beside it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

from treadle.clock import Clock
from treadle.errors import BackendError, NotStarted, SchemaError, StoreFull
from treadle.item import Heartbeat, HeartbeatReply, Wake

from .beside import Beside
from .calls import Call
from .connection import Durability, connect, patiently, usable_path
from .reader import Reader
from .schema import apply_schema, check_schema, wanted_version
from .signals import Signals
from .transaction import SqliteTransaction, Transactions
from .turn import Turn
from .tx import Tx
from .writer import Writer

T = TypeVar("T")

_LOOK_AT_ROOM_EVERY = 1.0
# Checking the whole file takes time in proportion to it: up to this size, no more than a moment.
_SMALL = 16 * 2**20


class _Open(NamedTuple):
    """All that exists only while the file is open."""

    pid: int
    path: Path
    beside: Beside
    writer: Writer
    reader: Reader
    signals: Signals
    transactions: Transactions


class StoreFile:
    """One file, opened by one process."""

    def __init__(
        self,
        path: str | Path,
        clock: Clock,
        *,
        durability: Durability,
        apply_schema: bool,
        patience: float,
        reserve: int,
    ) -> None:
        self._given_path = path
        self._clock = clock
        self._durability: Durability = durability
        self._apply_schema = apply_schema
        self._patience = patience
        self._reserve = reserve
        self._opening = asyncio.Lock()
        self._open: _Open | None = None
        self._room_until = 0.0

    # -- opening and closing ---------------------------------------------------------------------------

    async def open(self) -> None:
        async with self._opening:
            if self._open is None:
                self._open = await self._opened()

    async def _opened(self) -> _Open:
        path = usable_path(self._given_path)
        if not self._apply_schema and not path.exists():
            raise SchemaError(None, wanted_version())
        writer = Writer(path, self._clock, patience=self._patience)
        reader = Reader(path, self._clock, patience=self._patience)
        try:
            await writer.start(lambda: self._connect(path))
            await reader.start()
        except BaseException:
            writer.stop()
            reader.stop()
            raise
        beside = Beside(path)
        beside.open()
        writer.turn = Turn(path, beside.sign)
        transactions = Transactions(
            path, self._clock, Turn(path, beside.sign), self._durability, self._patience
        )
        return _Open(os.getpid(), path, beside, writer, reader, Signals(beside, reader), transactions)

    async def close(self) -> None:
        async with self._opening:
            opened, self._open = self._open, None
            if opened is None or opened.pid != os.getpid():
                return
            opened.signals.close()
            # One after the other, the writer last: whoever closes last moves the log into the file.
            opened.transactions.close()
            await opened.reader.stop()
            await opened.writer.stop()
            opened.beside.close()

    def _connect(self, path: Path) -> sqlite3.Connection:
        connection = patiently(lambda: connect(path, self._durability), path, self._patience)
        try:
            patiently(lambda: self._prepare(connection, path), path, self._patience)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection, path: Path) -> None:
        if path.stat().st_size <= _SMALL:
            _check_sound(connection, path)
        if not self._apply_schema:
            check_schema(connection)
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            apply_schema(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    # -- using -----------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        return self._using().path

    @property
    def beside(self) -> Beside:
        return self._using().beside

    async def write(self, verb: Callable[[Tx], T], *, urgent: bool = False) -> T:
        return cast(T, await self._using().writer.call(Call(verb, urgent=urgent)))

    async def read(self, verb: Callable[[Tx], T]) -> T:
        return cast(T, await self._using().reader.call(Call(verb)))

    def transaction(self) -> AbstractAsyncContextManager[SqliteTransaction]:
        return self._using().transactions.begin()

    def beat_within(self, beat: Heartbeat) -> HeartbeatReply | None:
        """See `Transactions.beat`."""
        return self._using().transactions.beat(beat)

    def publish(self, wake: Wake) -> None:
        if self._open is not None and self._open.pid == os.getpid():
            self._open.signals.publish(wake)

    def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        return self._using().signals.subscribe(receive)

    def check_room(self) -> None:
        """`StoreFull` if the disk is nearly full: settling needs room too."""
        now = time.monotonic()
        if now < self._room_until:
            return
        path = self.path
        free = shutil.disk_usage(path.parent).free
        if free < self._reserve:
            raise StoreFull(f"the disk of {path} has {free} bytes left: new work is refused, make room")
        self._room_until = now + _LOOK_AT_ROOM_EVERY

    def _using(self) -> _Open:
        if self._open is None:
            raise NotStarted("the SQLite backend")
        if self._open.pid != os.getpid():
            raise BackendError(
                f"{self._open.path} was opened before this process was forked: open a backend of its own here"
            )
        return self._open


def _check_sound(connection: sqlite3.Connection, path: Path) -> None:
    found = connection.execute("PRAGMA quick_check(1)").fetchall()[0][0]
    if found != "ok":
        raise BackendError(f"{path} is damaged ({found}): restore it from a backup")
