"""The reader: a thread with a connection of its own, so that reads do not queue behind writes.

It is also the one that looks for what nobody announced: submits inside of a user's own transaction.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from treadle.clock import Clock

from .calls import Call, Inbox
from .connection import Identity, connect_to_read, patiently
from .statements import Statements
from .tx import Tx

_SQL = Statements("signals")

LOOK_EVERY = 0.04


class Reader:
    """Carries out verbs that only read, each on one snapshot, in its own thread."""

    def __init__(self, path: Path, clock: Clock, *, patience: float) -> None:
        self._path = path
        self._clock = clock
        self._patience = patience
        self._inbox = Inbox()
        self._stopping: Call | None = None
        self._watch: Callable[[], None] | None = None

    def start(self) -> Call:
        """Begin. Awaiting the answer tells when the connection is open, or why it cannot be."""
        opening = Call(lambda _: None)
        name = f"treadle-read-{self._path.name}"
        threading.Thread(target=self._run, args=(opening,), name=name, daemon=True).start()
        return opening

    def call(self, call: Call) -> Call:
        return self._inbox.put(call)

    def watch(self, seen: Callable[[], None] | None) -> None:
        """Call `seen`, in this thread, whenever somebody's own transaction has submitted; None: no more."""
        self._watch = seen
        # It may be sleeping without end.
        self._inbox.nudge()

    def stop(self) -> Call:
        """Finish what was called, then end. Awaiting the answer tells when it has."""
        self._stopping = Call(lambda _: None)
        self._inbox.close()
        return self._stopping

    def _run(self, opening: Call) -> None:
        try:
            connection = patiently(lambda: connect_to_read(self._path), self._path, self._patience)
            look = patiently(lambda: _Look(connection), self._path, self._patience)
            self._identity = Identity(self._path)
        except BaseException as error:  # noqa: BLE001  whatever it is, the opener has to hear of it
            opening.fail(error)
            Call.answer([opening])
            return
        Call.answer([opening])
        try:
            while (call := self._next(look)) is not None:
                self._carry_out(connection, call)
        finally:
            connection.close()
            if self._stopping is not None:
                Call.answer([self._stopping])

    def _next(self, look: _Look) -> Call | None:
        while True:
            try:
                return self._inbox.get(None if self._watch is None else LOOK_EVERY)
            except TimeoutError:
                if look.changed() and self._watch is not None:
                    self._watch()

    def _carry_out(self, connection: sqlite3.Connection, call: Call) -> None:
        try:
            call.succeed(patiently(lambda: self._read(connection, call), self._path, self._patience))
        except BaseException as error:  # noqa: BLE001  a refusal, or a bug: its caller has to hear of it
            call.fail(error)
        Call.answer([call])

    def _read(self, connection: sqlite3.Connection, call: Call) -> object:
        connection.execute("BEGIN")
        try:
            found = call.verb(Tx(connection, self._clock.now()))
            self._identity.check()
            return found
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


class _Look:
    """Whether something was submitted from outside since the last look. Asking costs next to nothing while
    nobody writes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._version = self._data_version()
        self._outside = self._outside_count()

    def changed(self) -> bool:
        try:
            version = self._data_version()
            if version == self._version:
                return False
            self._version = version
            outside, self._outside = self._outside, self._outside_count()
        except sqlite3.Error:
            # Locked, or worse: the verbs will say so.
            return False
        return outside != self._outside

    def _data_version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchall()[0][0])

    def _outside_count(self) -> int:
        return int(self._connection.execute(_SQL["outside"]).fetchall()[0][0])
