"""The writer: one thread per backend through which all writing goes.

Group commit: verbs that wait at the same time share a transaction, each in a savepoint of its own, and are
answered after the commit. A commit costs a flush of the disk, and this way many verbs pay for one.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from treadle.clock import Clock

from .calls import Call, Inbox
from .connection import LOG_LIMIT, Identity
from .failures import breaks_connection, translated
from .turn import Turn
from .tx import Tx

_log = logging.getLogger("treadle")

MOST_VERBS = 64
"""The most verbs in one transaction."""
LONGEST = 0.02
"""How long a transaction goes on taking in what came meanwhile: others wait for the lock."""


class Writer:
    """Carries out verbs in its own thread, on its own connection."""

    def __init__(self, path: Path, clock: Clock, *, patience: float) -> None:
        self._path = path
        self._clock = clock
        self.turn = Turn(path, None)
        self._patience = patience
        self._inbox = Inbox()
        self._connection: sqlite3.Connection | None = None
        self._stopping: Call | None = None

    def start(self, opened: Callable[[], sqlite3.Connection]) -> Call:
        """Begin. Awaiting the answer tells when the connection is open, or why it cannot be."""
        opening = Call(lambda _: None)
        name = f"treadle-write-{self._path.name}"
        threading.Thread(target=self._run, args=(opened, opening), name=name, daemon=True).start()
        return opening

    def call(self, call: Call) -> Call:
        return self._inbox.put(call)

    def stop(self) -> Call:
        """Finish what was called, then end. Awaiting the answer tells when it has."""
        self._stopping = Call(lambda _: None)
        self._inbox.close()
        return self._stopping

    def _run(self, opened: Callable[[], sqlite3.Connection], opening: Call) -> None:
        self._opened = opened
        try:
            self._connection = opened()
            self._identity = Identity(self._path)
        except BaseException as error:  # noqa: BLE001  whatever it is, the opener has to hear of it
            opening.fail(error)
            Call.answer([opening])
            return
        Call.answer([opening])
        try:
            while (call := self._inbox.get()) is not None:
                self._commit([call, *self._inbox.waiting(MOST_VERBS)])
                if self._inbox.empty():
                    self._rest()
        finally:
            self._disconnect()
            self.turn.close()
            if self._stopping is not None:
                Call.answer([self._stopping])

    # -- one transaction -------------------------------------------------------------------------------

    def _commit(self, calls: list[Call]) -> None:
        """Carry out these calls, and those that come meanwhile, in one transaction, and answer them."""
        try:
            connection = self._connect()
            waited = self.turn.begin(connection, self._patience)
        except BaseException as error:  # noqa: BLE001  whatever it is, the callers have to hear of it
            self._fail(calls, error)
            return
        try:
            self._carry_out(connection, calls, waited)
            connection.execute("COMMIT")
            self._identity.check()
        except BaseException as error:  # noqa: BLE001  the same
            self._roll_back()
            if isinstance(error, sqlite3.Error) and len(calls) > 1:
                # Something is wrong with one of them, or with all: each on its own finds out.
                for call in calls:
                    self._commit([call])
                return
            self._fail(calls, error)
            return
        Call.answer(calls)

    def _fail(self, calls: list[Call], error: BaseException) -> None:
        failure = error
        if isinstance(error, sqlite3.Error):
            failure = translated(error, self._path)
            failure.__cause__ = error
            if breaks_connection(error):
                self._disconnect()
        for call in calls:
            call.fail(failure)
        Call.answer(calls)

    def _connect(self) -> sqlite3.Connection:
        """The connection; a new one if the last one broke. Never to another file than the first."""
        if self._connection is None:
            self._identity.check()
            self._connection = self._opened()
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _roll_back(self) -> None:
        try:
            # Some errors have rolled back already.
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()

    def _carry_out(self, connection: sqlite3.Connection, calls: list[Call], waited: float) -> None:
        if len(calls) == 1 and self._inbox.empty():
            # Alone: the transaction itself is what its refusal undoes.
            calls[0].succeed(calls[0].verb(Tx(connection, self._clock.now(), waited)))
            return
        end = time.monotonic() + LONGEST
        done = 0
        while done < len(calls):
            _in_savepoint(connection, calls[done], Tx(connection, self._clock.now(), waited))
            done += 1
            if done == len(calls) < MOST_VERBS and time.monotonic() < end:
                calls += self._inbox.waiting(MOST_VERBS - done)

    def _rest(self) -> None:
        self.turn.idle()
        try:
            if self._connection is not None and Path(f"{self._path}-wal").stat().st_size > LOG_LIMIT:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except (OSError, sqlite3.Error) as error:
            # Somebody reads, or the disk is full: the next time, or the next process, will do it.
            _log.debug("treadle: cannot cut the log of %s: %s", self._path, error)


def _in_savepoint(connection: sqlite3.Connection, call: Call, tx: Tx) -> None:
    connection.execute("SAVEPOINT verb")
    try:
        call.succeed(call.verb(tx))
    except sqlite3.Error:
        raise
    except BaseException as error:  # noqa: BLE001  this verb's own; its neighbours go on
        connection.execute("ROLLBACK TO verb")
        call.fail(error)
    connection.execute("RELEASE verb")
