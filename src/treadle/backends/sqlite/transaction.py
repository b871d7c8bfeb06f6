"""The engine's transaction for a handler: the user's writes and the settlement commit together."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from treadle.clock import Clock
from treadle.errors import BackendError
from treadle.item import Heartbeat, HeartbeatReply, Settled, Settlement

from .connection import Durability, Identity, connect
from .failures import translated
from .settle import settle
from .turn import Turn
from .tx import Tx
from .worker import keep

T = TypeVar("T")

_OVER = "this transaction was ended by a statement of yours: leave COMMIT and ROLLBACK to its block"


class SqliteTransaction:
    """A connection inside a write transaction. Nobody else can write before it ends: keep it short."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock, run: Run) -> None:
        self._connection = connection
        self._clock = clock
        self._run = run

    @property
    def connection(self) -> sqlite3.Connection:
        """To be used from any one thread at a time."""
        return self._connection

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        return await self._run(lambda: self._settle(settlements))

    def _settle(self, settlements: Sequence[Settlement]) -> Settled:
        if not self._connection.in_transaction:
            raise BackendError(_OVER)
        self._connection.text_factory = str
        return settle(Tx(self._connection, self._clock.now()), settlements)


class Run:
    """Runs what blocks in a thread, and says what went wrong in treadle's words."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"treadle-tx-{path.name}")

    async def __call__(self, action: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        """The action is carried out even if nobody waits any more; then `undo` is called with its result."""
        doing = self._threads.submit(action)
        try:
            return await asyncio.shield(asyncio.wrap_future(doing))
        except asyncio.CancelledError:
            if undo is not None:
                doing.add_done_callback(lambda done: _undo(done, undo))
            raise
        except sqlite3.Error as error:
            raise translated(error, self._path) from error

    def close(self) -> None:
        # What waits for the lock goes on waiting, gets it, and lets go: nobody has to wait for that.
        self._threads.shutdown(wait=False)


def _undo(done: Future[T], undo: Callable[[T], None]) -> None:
    if done.exception() is None:
        undo(done.result())


class Transactions:
    """One at a time: SQLite has one writer, and whoever waits here waits in order."""

    def __init__(self, path: Path, clock: Clock, turn: Turn, durability: Durability, patience: float) -> None:
        self._path = path
        self._clock = clock
        self._turn = turn
        self._durability: Durability = durability
        self._patience = patience
        self._identity = Identity(path)
        self._run = Run(path)
        self._one = asyncio.Lock()
        self._beats: dict[str, Heartbeat] | None = None
        """Those that came while one is open, by worker; None: none is."""

    @asynccontextmanager
    async def begin(self) -> AsyncGenerator[SqliteTransaction]:
        async with self._one:
            connection = await self._run(self._begin, _discard)
            self._beats = {}
            try:
                yield SqliteTransaction(connection, self._clock, self._run)
            except BaseException:
                self._beats = None
                await self._run(lambda: _discard(connection))
                raise
            beats, self._beats = self._beats, None
            await self._run(lambda: self._commit(connection, beats))

    def beat(self, beat: Heartbeat) -> HeartbeatReply | None:
        """Put off a beat that cannot be written before the transaction that is open ends: it will be with its
        commit. Until then nobody else can write either, so nothing is lost. None: none is open."""
        if self._beats is None:
            return None
        self._beats[beat.worker] = beat
        return HeartbeatReply()

    def close(self) -> None:
        self._run.close()
        self._turn.close()

    def _begin(self) -> sqlite3.Connection:
        connection = connect(self._path, self._durability, check_same_thread=False)
        try:
            self._turn.begin(connection, self._patience)
            # Ending it is not the user's business: what was settled in it would be lost, or not fenced.
            connection.set_authorizer(_forbid_ending)
        except BaseException:
            connection.close()
            raise
        return connection

    def _commit(self, connection: sqlite3.Connection, beats: Mapping[str, Heartbeat]) -> None:
        try:
            if not connection.in_transaction:
                raise BackendError(_OVER)
            connection.set_authorizer(None)
            connection.text_factory, connection.row_factory = str, None
            for beat in beats.values():
                keep(Tx(connection, self._clock.now()), beat)
            connection.execute("COMMIT")
            self._identity.check()
        finally:
            _discard(connection)


def _discard(connection: sqlite3.Connection) -> None:
    connection.set_authorizer(None)
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    connection.close()


def _forbid_ending(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK
