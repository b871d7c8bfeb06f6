"""The writer: one thread per backend that executes all verbs that write.

Group commit: verbs that wait at the same time share a transaction, each in its own savepoint, and are
answered after the commit. A commit costs a flush of the disk. This way many verbs pay for one flush.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from threading import Lock
from typing import ClassVar

from treadle.base.clock import Clock

from .connection import LOG_LIMIT, FileIdentity, breaks_connection, is_busy, translated
from .process_directory import try_lock, unlock
from .statements import Tx, statements
from .threads import DatabaseCall, DatabaseThread, answer

_SQL = statements("connection")

_log = logging.getLogger("treadle")

MOST_CALLS = 64
"""The most verbs in one transaction."""
LONGEST = 0.02
"""Seconds in which a transaction accepts more verbs. Other processes wait for the lock meanwhile."""
IDLE_AFTER = 0.25
"""Seconds without a call after which the writer looks at the size of the log. After each commit, that would
take longer than a statement."""


class WriterThread(DatabaseThread):
    """Executes verbs that write."""

    purpose: ClassVar[str] = "write"

    def __init__(
        self,
        path: Path,
        clock: Clock,
        patience: float,
        connect: Callable[[], sqlite3.Connection],
        lock: WriteLock,
    ) -> None:
        super().__init__(path, clock, patience)
        self._connect = connect
        self._lock = lock
        self._connection: sqlite3.Connection | None = None

    def _open(self) -> None:
        self._connection = self._connect()
        self._identity = FileIdentity(self._path)

    def _serve(self) -> None:
        while isinstance(call := self._next_call(), DatabaseCall):
            with self._between_calls:
                self._commit([call] if self._queue.empty() else [call, *self._waiting(MOST_CALLS)])
                if self._queue.empty():
                    self._lock.wrote = False

    def _next_call(self) -> DatabaseCall | str | None:
        """Wait for the next call. When none has come for a while, truncate the log."""
        try:
            return self._queue.get(timeout=IDLE_AFTER)
        except Empty:
            with self._between_calls:
                self._truncate_log()
            return self._queue.get()

    def _close(self) -> None:
        self._disconnect()
        self._lock.close()

    def close_inherited(self) -> None:
        self._disconnect()

    def _waiting(self, most: int) -> list[DatabaseCall]:
        """The calls that wait now, urgent ones first. The end of the queue stays in it."""
        found: list[DatabaseCall] = []
        while len(found) < most:
            try:
                call = self._queue.get_nowait()
            except Empty:
                break
            if not isinstance(call, DatabaseCall):
                self._queue.put(call)
                break
            found.append(call)
        found.sort(key=lambda call: not call.urgent)
        return found

    # -- one transaction -------------------------------------------------------------------------------

    def _commit(self, calls: list[DatabaseCall]) -> None:
        """Execute these calls, and those that come meanwhile, in one transaction. Then answer them."""
        try:
            connection = self._connection or self._connected()
            waited = self._begin(connection, calls)
        except BaseException as error:  # noqa: BLE001  the callers get every error
            self._fail(calls, error)
            return
        try:
            self._execute(connection, calls, waited)
            connection.execute("COMMIT")
            self._identity.check()
        except BaseException as error:  # noqa: BLE001  the callers get every error
            self._roll_back()
            if isinstance(error, sqlite3.Error) and len(calls) > 1:
                # One of the calls may have caused the error, or all: commit each on its own.
                for call in calls:
                    self._commit([call])
                return
            self._fail(calls, error)
            return
        answer(calls)

    def _begin(self, connection: sqlite3.Connection, calls: list[DatabaseCall]) -> float:
        """Begin a transaction for these calls, and for those that came while others wrote, heartbeats first:
        a claim would remove workers whose heartbeats wait behind it. Return the seconds that it took.

        Each call waits for `busy_timeout` at most, also behind others. Those whose time is over fail and
        leave `calls`. If all are, the error is raised."""
        while True:
            try:
                asked = calls[0].asked if len(calls) == 1 else min([call.asked for call in calls])
                waited = self._lock.begin(connection, asked + self._patience)
                break
            except sqlite3.Error as error:
                now = time.monotonic()
                late = [call for call in calls if call.asked + self._patience <= now]
                if not is_busy(error) or len(late) == len(calls):
                    raise
                self._fail(late, error)
                calls[:] = [call for call in calls if call not in late]
        if not self._queue.empty():
            calls += self._waiting(MOST_CALLS - len(calls))
            calls.sort(key=lambda call: not call.urgent)
        return waited

    def _execute(self, connection: sqlite3.Connection, calls: list[DatabaseCall], waited: float) -> None:
        if len(calls) == 1 and self._queue.empty():
            # The only verb needs no savepoint: if it raises, the whole transaction is rolled back.
            call = calls[0]
            tx = Tx(connection, self._clock.now(), waited)
            call.result, call.error = call.verb(tx, *call.arguments, **call.options), None
            return
        end = time.monotonic() + LONGEST
        done = 0
        while done < len(calls):
            _execute_in_savepoint(connection, calls[done], Tx(connection, self._clock.now(), waited))
            done += 1
            if done == len(calls) < MOST_CALLS and time.monotonic() < end:
                calls += self._waiting(MOST_CALLS - done)

    def _fail(self, calls: list[DatabaseCall], error: BaseException) -> None:
        failure = error
        if isinstance(error, sqlite3.Error):
            failure = translated(error, self._path)
            failure.__cause__ = error
            if breaks_connection(error):
                self._disconnect()
        for call in calls:
            call.error = failure
        answer(calls)

    def _connected(self) -> sqlite3.Connection:
        """The connection; a new one if the last one broke. Only ever to the file that was opened first."""
        if self._connection is None:
            self._identity.check()
            self._connection = self._connect()
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _roll_back(self) -> None:
        try:
            # After some errors SQLite has rolled back by itself.
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()

    def _truncate_log(self) -> None:
        try:
            if self._connection is not None and Path(f"{self._path}-wal").stat().st_size > LOG_LIMIT:
                self._connection.execute(_SQL["cut_log"]).fetchall()
        except (OSError, sqlite3.Error) as error:
            # A reader is in the way, or the disk is full. A later call truncates the log.
            _log.debug("treadle: cannot truncate the write-ahead log of %s: %s", self._path, error)


def _execute_in_savepoint(connection: sqlite3.Connection, call: DatabaseCall, tx: Tx) -> None:
    connection.execute("SAVEPOINT verb")
    try:
        call.result, call.error = call.verb(tx, *call.arguments, **call.options), None
    except sqlite3.Error:
        raise
    except BaseException as error:  # noqa: BLE001  only this call fails: the others go on
        connection.execute("ROLLBACK TO verb")
        call.error = error
    connection.execute("RELEASE verb")


# -- the write lock ------------------------------------------------------------------------------------
#
# SQLite's write lock has no queue: a process that commits and begins again at once, over and over, keeps it
# from those that sleep between two attempts. So a writer that finds it taken shows that it waits: by a lock
# on a file in the process directory, and by a count within this process. A writer that has just written
# pauses briefly before its next transaction while another one waits.


LONGEST_PAUSE = 0.005
"""Seconds that a writer pauses at most for others."""
_FIRST_IN_LINE = 0.0002
_BEHIND = (0.0005, 0.003)

_waiting: Counter[str] = Counter()
_waiting_guard = Lock()


def forget_waiting() -> None:
    """In a forked process no thread waits."""
    _waiting.clear()


class WriteLock:
    """One writer's access to the write lock of a file."""

    def __init__(self, path: Path, open_waiting_file: Callable[[], int | None]) -> None:
        self._path = str(path)
        self._open_waiting_file = open_waiting_file
        self._opened = False
        self._file: int | None = None
        """It is opened when it is first needed."""
        self.wrote = False
        """This writer wrote last, and has not been idle since. Then it pauses for others that wait."""
        self._began: float | None = None
        """Since when it tries to get the lock, also if it has given up meanwhile."""

    def begin(self, connection: sqlite3.Connection, until: float) -> float:
        """Begin a write transaction. Return the seconds that it took to get the lock, earlier calls that
        failed included. Raises SQLite's own error if the lock is still taken at `until`, by the monotonic
        clock."""
        if self.wrote and self._others_wait():
            self._pause()
        now = time.monotonic()
        if self._began is None:
            self._began = now
        if not _try_begin(connection):
            self._wait(connection, until)
        self.wrote = True
        began, self._began = self._began, None
        return time.monotonic() - began

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _pause(self) -> None:
        end = time.monotonic() + LONGEST_PAUSE
        while time.monotonic() < end and self._others_wait():
            time.sleep(_FIRST_IN_LINE)

    def _others_wait(self) -> bool:
        if _waiting[self._path] > 0:
            return True
        if not self._lock_file():
            return self._file is not None
        self._unlock_file()
        return False

    def _wait(self, connection: sqlite3.Connection, end: float) -> None:
        with _waiting_guard:
            _waiting[self._path] += 1
        first = False
        try:
            while True:
                first = first or self._lock_file()
                time.sleep(_FIRST_IN_LINE if first else random.uniform(*_BEHIND))
                if _try_begin(connection, last=time.monotonic() >= end):
                    return
        finally:
            with _waiting_guard:
                _waiting[self._path] -= 1
            if first:
                self._unlock_file()

    def _lock_file(self) -> bool:
        if not self._opened:
            self._opened, self._file = True, self._open_waiting_file()
        return self._file is not None and try_lock(self._file)

    def _unlock_file(self) -> None:
        if self._file is not None:
            unlock(self._file)


def _try_begin(connection: sqlite3.Connection, *, last: bool = False) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        if last or not is_busy(error):
            raise
        return False
    return True
