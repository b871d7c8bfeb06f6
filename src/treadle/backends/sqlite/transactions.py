"""Transactions with the user's writes in them: the engine's for a handler, the user's own for a submit."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from treadle.base.loop_mark import LoopMark
from treadle.base.timing import Clock
from treadle.errors import BackendError, InputError, StoreUnavailable
from treadle.item import (
    Heartbeat,
    HeartbeatReply,
    ItemState,
    Loss,
    Record,
    Rejected,
    Settled,
    Settlement,
    Signal,
    Signalled,
    Submission,
    Submitted,
)
from treadle.store.rules.records import NotedChange
from treadle.store.rules.submission import rejection_error
from treadle.store.user_transaction import engine_of

from .connection import Durability, connect, connected_file, is_busy, is_denied, translated
from .limits import claim_key
from .read import get
from .schema import is_current
from .settle import record, settle
from .statements import Tx, statements
from .steps import signal
from .submit import submit
from .threads import FileIdentity, WriteLock
from .workers import renew_lease

_SQL = statements("wakeups")
_MODE = statements("connection")["journal_mode"]

T = TypeVar("T")
P = ParamSpec("P")

_log = logging.getLogger("treadle")

_BEGIN = "treadle_begin"
"""A savepoint at the beginning of a transaction: heartbeats are written also if the rest is undone."""
_ENDED_BY_USER = "a statement of yours would end this transaction: leave COMMIT and ROLLBACK to its block"

# -- of the engine -------------------------------------------------------------------------------------


class SqliteTransaction:
    """A connection inside a write transaction. No other process can write before it ends: keep it short."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, clock: Clock, thread: TransactionThread
    ) -> None:
        self._connection = connection
        self._path = path
        self._clock = clock
        self._thread = thread

    @property
    def connection(self) -> sqlite3.Connection:
        """May be used from any thread, but only from one at a time."""
        return self._connection

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        return await self._thread.run(lambda: self._settle(settlements))

    def _settle(self, settlements: Sequence[Settlement]) -> Settled:
        if not self._connection.in_transaction:
            raise BackendError(_ENDED_BY_USER)
        self._connection.text_factory, self._connection.row_factory = str, None
        return settle(Tx(self._connection.cursor(), self._clock.now()), settlements)

    async def record(self, records: Sequence[Record]) -> list[Loss | None]:
        return await self._thread.run(lambda: self._verb(record, records))

    async def submit(self, submissions: Sequence[Submission]) -> list[tuple[Submitted, ...]]:
        now = self._clock.now()
        return await self._thread.run(lambda: submit_within(self._connection, submissions, self._path, now))

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        return await self._thread.run(lambda: self._verb(get, ids, tenant))

    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        return await self._thread.run(lambda: self._verb(claim_key, key, owner, ttl, tenant))

    def _verb(self, verb: Callable[Concatenate[Tx, P], T], *arguments: P.args, **options: P.kwargs) -> T:
        if not self._connection.in_transaction:
            raise BackendError(_ENDED_BY_USER)
        with _plain_rows(self._connection), _savepoint(self._connection):
            return verb(Tx(self._connection.cursor(), self._clock.now()), *arguments, **options)


class TransactionThread:
    """Runs blocking actions in a thread, and translates SQLite's errors."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"treadle-tx-{path.name}")

    async def run(self, action: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        """The action runs to its end even if its caller is cancelled. Then `undo` gets its result."""
        running = self._executor.submit(action)
        try:
            return await asyncio.shield(asyncio.wrap_future(running))
        except asyncio.CancelledError:
            if undo is not None:
                running.add_done_callback(lambda done: _undo(done, undo))
            raise
        except sqlite3.Error as error:
            raise translated(error, self._path) from error

    def start(self, action: Callable[[], object]) -> None:
        """Run an action that no caller waits for."""
        self._executor.submit(action)

    def close(self) -> None:
        # An action that still waits for the write lock gets it later and releases it at once.
        self._executor.shutdown(wait=False)


def _undo(done: Future[T], undo: Callable[[T], None]) -> None:
    if done.exception() is None:
        undo(done.result())


class SqliteTransactions:
    """Opens transactions one at a time, in the order of the requests: SQLite has one writer."""

    def __init__(
        self, path: Path, clock: Clock, lock: WriteLock, durability: Durability, patience: float
    ) -> None:
        self._path = path
        self._clock = clock
        self._lock = lock
        self._durability: Durability = durability
        self._patience = patience
        self._identity = FileIdentity(path)
        self._thread = TransactionThread(path)
        self._one_at_a_time = asyncio.Lock()
        self._mark: LoopMark | None = None
        """Where the last transaction was begun."""
        self._open: sqlite3.Connection | None = None
        """The connection of the transaction that is open."""
        self._heartbeats: dict[str, Heartbeat] | None = None
        """Those that came while a transaction is open, by worker; None: no transaction is open."""

    @asynccontextmanager
    async def begin(self) -> AsyncGenerator[SqliteTransaction]:
        async with self._one_at_a_time:
            self._mark = LoopMark()
            connection = self._open = await self._thread.run(self._begin, _discard)
            self._heartbeats = {}
            try:
                yield SqliteTransaction(connection, self._path, self._clock, self._thread)
            except BaseException as error:
                if self._open is connection:  # else it was discarded by `close`
                    heartbeats, self._heartbeats, self._open = self._heartbeats, None, None
                    await self._thread.run(lambda: self._roll_back(connection, heartbeats))
                if isinstance(error, sqlite3.Error) and is_denied(error):
                    raise BackendError(_ENDED_BY_USER) from error
                raise
            heartbeats, self._heartbeats, self._open = self._heartbeats, None, None
            await self._thread.run(lambda: self._commit(connection, heartbeats))

    def postpone(self, beat: Heartbeat) -> HeartbeatReply | None:
        """Keep a heartbeat for the end of the open transaction: it cannot be written before. Until then no
        other process can write either, so the lease cannot be taken away. None: no transaction is open."""
        heartbeats = self._heartbeats  # once: another thread may call this
        if heartbeats is None:
            return None
        heartbeats[beat.worker] = beat
        return HeartbeatReply()

    @property
    def busy(self) -> bool:
        """Whether a transaction is open, or about to be."""
        return self._one_at_a_time.locked()

    def abandon(self) -> None:
        """Roll back what a closed event loop has left open."""
        if self._mark is None or not self._mark.is_gone:
            return
        self._mark, self._one_at_a_time = None, asyncio.Lock()
        self._discard_open()

    def close(self) -> None:
        """A transaction that is still open is rolled back: no other process could write before this one
        ends."""
        self._discard_open()
        self._thread.close()
        self._lock.close()

    def _discard_open(self) -> None:
        connection, self._open, self._heartbeats = self._open, None, None
        if connection is not None:
            self._thread.start(lambda: _discard(connection))

    def _begin(self) -> sqlite3.Connection:
        connection = connect(self._path, self._durability)
        try:
            self._lock.begin(connection, time.monotonic() + self._patience)
            connection.execute(f"SAVEPOINT {_BEGIN}")
            # The user must not end the transaction: its settlements would be lost, or not fenced.
            connection.set_authorizer(_forbid_ending)
        except BaseException:
            connection.close()
            raise
        return connection

    def _commit(self, connection: sqlite3.Connection, heartbeats: Mapping[str, Heartbeat]) -> None:
        try:
            if not connection.in_transaction:
                raise BackendError(_ENDED_BY_USER)
            self._commit_with(connection, heartbeats)
            self._identity.check()
        finally:
            _discard(connection)

    def _roll_back(self, connection: sqlite3.Connection, heartbeats: Mapping[str, Heartbeat]) -> None:
        """Undo what the handler wrote, and renew the leases before another writer can take them away."""
        try:
            connection.set_authorizer(None)
            if heartbeats and connection.in_transaction:
                connection.execute(f"ROLLBACK TO {_BEGIN}")
                self._commit_with(connection, heartbeats)
        except sqlite3.Error as error:
            _log.warning("treadle: cannot renew leases after a transaction on %s: %s", self._path, error)
        finally:
            _discard(connection)

    def _commit_with(self, connection: sqlite3.Connection, heartbeats: Mapping[str, Heartbeat]) -> None:
        connection.set_authorizer(None)
        connection.text_factory, connection.row_factory = str, None
        for beat in tuple(heartbeats.values()):
            renew_lease(Tx(connection.cursor(), self._clock.now()), beat)
        connection.execute("COMMIT")


def _discard(connection: sqlite3.Connection) -> None:
    connection.set_authorizer(None)
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    connection.close()


def _forbid_ending(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


# -- of the user ---------------------------------------------------------------------------------------


def submit_within(
    given: object, submissions: Sequence[Submission], path: Path, now: float
) -> list[tuple[Submitted, ...]]:
    """Submit as a part of the transaction that is open on the user's own connection. Blocks its thread."""
    return _within(given, path, now, lambda tx: _submit_within(tx, submissions))


def signal_within(
    given: object,
    signals: Sequence[Signal],
    tenant: str | None,
    change: NotedChange | None,
    path: Path,
    now: float,
) -> list[Signalled]:
    """Send signals as a part of that transaction."""

    def send(tx: Tx) -> list[Signalled]:
        answers = signal(tx, signals, tenant, change)
        tx.run(_SQL["count_user_submit"])
        return answers

    return _within(given, path, now, send)


def _within(given: object, path: Path, now: float, verb: Callable[[Tx], T]) -> T:
    connection = _checked_type(given, path)
    try:
        with _plain_rows(connection):
            _check_connection(connection, path)
            with _savepoint(connection):
                return verb(Tx(connection.cursor(), now))
    except sqlite3.Error as error:
        if is_busy(error):
            raise StoreUnavailable(
                f"{path} is locked by another writer: begin the transaction with BEGIN IMMEDIATE"
            ) from error
        raise translated(error, path) from error


def check_is_prepared(connection: object, path: Path) -> None:
    """Refuse the user's transaction if the file would have to be written to be opened: the transaction has
    the write lock."""
    if is_async(connection):
        return  # it belongs to another thread
    checked = _checked_type(connection_of(connection), path)
    try:
        with _plain_rows(checked):
            _check_connection(checked, path)
            cursor = checked.cursor()
            cursor.row_factory = None
            if cursor.execute(_MODE).fetchall() == [("wal",)] and is_current(cursor):
                return
    except sqlite3.Error as error:
        raise translated(error, path) from error
    raise InputError(
        f"tx: {path} has no tables of treadle yet (or old ones), and your transaction keeps others from "
        "writing: call `await app.connect()`, or `app.sync.connect()`, before you begin it",
        parameters=("tx",),
    )


def _checked_type(connection: object, path: Path) -> sqlite3.Connection:
    if isinstance(connection, sqlite3.Connection):
        return connection
    engine = engine_of(connection)
    if engine not in (None, "SQLite"):
        problem = f"is a connection to {engine}, and the items of this app are in {path}"
    elif engine is not None:
        problem = (
            "wraps a connection to SQLite: pass the sqlite3.Connection itself, which Django has as "
            "`connection.connection`"
        )
    else:
        problem = "must be a sqlite3.Connection to the same file"
    raise InputError.of("tx", connection, problem)


@contextmanager
def _plain_rows(connection: sqlite3.Connection) -> Generator[None]:
    """Read rows as tuples, and text as str, for the moment: the user's connection may read them otherwise."""
    text, row = connection.text_factory, connection.row_factory
    connection.text_factory, connection.row_factory = str, None
    try:
        yield
    finally:
        connection.text_factory, connection.row_factory = text, row


def _check_connection(connection: sqlite3.Connection, path: Path) -> None:
    if not connection.in_transaction:
        raise InputError("tx: the connection is not in a transaction: BEGIN one first", parameters=("tx",))
    file = connected_file(connection)
    if not file or not Path(file).exists() or not path.samefile(file):
        raise InputError(f"tx: the connection is to {file or 'memory'}, not to {path}", parameters=("tx",))


@contextmanager
def _savepoint(connection: sqlite3.Connection) -> Generator[None]:
    """A refusal undoes the submit, and leaves the user's transaction as it was."""
    connection.execute("SAVEPOINT treadle_submit")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK TO treadle_submit")
            connection.execute("RELEASE treadle_submit")
        raise
    connection.execute("RELEASE treadle_submit")


def _submit_within(tx: Tx, submissions: Sequence[Submission]) -> list[tuple[Submitted, ...]]:
    answers = [_accepted(answer) for answer in submit(tx, [_without_leases(one) for one in submissions])]
    # Wake-ups cannot be sent before the user commits. Other processes poll for this count.
    tx.run(_SQL["count_user_submit"])
    return answers


def _without_leases(submission: Submission) -> Submission:
    """A worker could not run an item that is not committed yet."""
    return replace(submission, items=tuple(replace(item, lease_to=None) for item in submission.items))


def _accepted(answer: tuple[Submitted, ...] | Rejected) -> tuple[Submitted, ...]:
    if isinstance(answer, Rejected):
        raise rejection_error(answer)
    return answer


# -- the user's own connection -------------------------------------------------------------------------
#
# That of sqlite3 or aiosqlite, or a connection or a session of SQLAlchemy on top of those. They are
# recognised by the modules of their classes, so that neither library has to be imported.


async def call_with_connection(given: Any, call: Callable[[object], T]) -> T:
    """Call this with the `sqlite3.Connection` of what the user has given, or with what was given if it has
    none. In the thread that the connection belongs to: the caller's, or that of aiosqlite."""
    if is_async(given) and _root(given) != "aiosqlite":
        session = given() if hasattr(given, "registry") else given
        connection = await session.connection() if hasattr(session, "sync_session") else session
        given = (await connection.get_raw_connection()).driver_connection
        return await _in_thread_of(given, lambda: call(_begun(given._conn)))
    if _root(given) == "aiosqlite":
        return await _in_thread_of(given, lambda: call(given._conn))
    return call(connection_of(given))


def connection_of(given: Any) -> object:
    """The `sqlite3.Connection`, in a transaction, of a connection or a session of SQLAlchemy. Anything else,
    also what is async, is returned as it is."""
    if engine_of(given) != "SQLite" or is_async(given) or not _is_of(given, "sqlalchemy."):
        return given
    try:
        connection = given if hasattr(given, "exec_driver_sql") else given.connection()
        return _begun(connection.connection.driver_connection)
    except AttributeError:
        return given


def is_async(given: object) -> bool:
    """Whether this is a connection to SQLite in another thread."""
    return engine_of(given) == "SQLite" and (
        _root(given) == "aiosqlite" or _is_of(given, "sqlalchemy.ext.asyncio")
    )


def _begun(driver: Any) -> object:
    """SQLAlchemy leaves it to sqlite3 to begin a transaction, and that waits for the first change."""
    if isinstance(driver, sqlite3.Connection) and not driver.in_transaction:
        driver.execute("BEGIN IMMEDIATE")
    return driver


async def _in_thread_of(connection: Any, call: Callable[[], T]) -> T:
    running: Awaitable[T] = connection._execute(call)
    return await running


def _root(given: object) -> str:
    return type(given).__module__.partition(".")[0]


def _is_of(given: object, module: str) -> bool:
    """Whether its class, or a class that it derives from, is of this module: SQLModel has sessions too."""
    return any(cls.__module__.startswith(module) for cls in type(given).__mro__)
