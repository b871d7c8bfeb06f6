"""The reader: a thread with its own connection, so that reads do not wait behind writes.

It also polls for submits inside users' own transactions, which no process can announce.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import ClassVar, TypeVar

from treadle.base.clock import Clock

from .connection import FileIdentity, connect_to_read, retry_while_locked
from .statements import Tx, statements
from .threads import NUDGE, DatabaseCall, DatabaseThread, answer

_SQL = statements("wakeups")

T = TypeVar("T")

POLL_EVERY = 0.04


class ReaderThread(DatabaseThread):
    """Executes verbs that only read, each on one snapshot."""

    purpose: ClassVar[str] = "read"

    def __init__(self, path: Path, clock: Clock, patience: float) -> None:
        super().__init__(path, clock, patience)
        self._on_user_submit: Callable[[], None] | None = None

    def watch_user_submits(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` in this thread when a user's own transaction has submitted. None: stop polling."""
        self._on_user_submit = callback
        # The thread may be waiting without a timeout.
        self._queue.put(NUDGE)

    def _open(self) -> None:
        self._connection = self._retry(lambda: connect_to_read(self._path))
        self._user_submits = self._retry(lambda: _UserSubmits(self._connection))
        self._identity = FileIdentity(self._path)

    def _serve(self) -> None:
        while True:
            try:
                call = self._queue.get(timeout=None if self._on_user_submit is None else POLL_EVERY)
            except Empty:
                call = NUDGE
            if call is None:
                return
            with self._between_calls:
                if isinstance(call, DatabaseCall):
                    self._answer(call)
                elif self._user_submits.changed() and self._on_user_submit is not None:
                    self._on_user_submit()

    def _close(self) -> None:
        self._connection.close()

    def close_inherited(self) -> None:
        self._connection.close()

    def _answer(self, call: DatabaseCall) -> None:
        try:
            call.result = self._retry(lambda: self._read(call))
        except BaseException as error:  # noqa: BLE001  the caller gets every error
            call.error = error
        answer([call])

    def _read(self, call: DatabaseCall) -> object:
        connection = self._connection
        connection.execute("BEGIN")
        try:
            found = call.verb(Tx(connection, self._clock.now()), *call.arguments, **call.options)
            self._identity.check()
            return found
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _retry(self, action: Callable[[], T]) -> T:
        return retry_while_locked(action, self._path, self._patience)


class _UserSubmits:
    """Whether users' own transactions have submitted since the last look. Looking is cheap while no process
    writes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._version = self._number("data_version")
        self._count = self._number("user_submits")

    def changed(self) -> bool:
        try:
            version = self._number("data_version")
            if version == self._version:
                return False
            self._version = version
            before, self._count = self._count, self._number("user_submits")
        except sqlite3.Error:
            # Locked or broken: the next read reports it.
            return False
        return before != self._count

    def _number(self, name: str) -> int:
        return int(self._connection.execute(_SQL[name]).fetchall()[0][0])
