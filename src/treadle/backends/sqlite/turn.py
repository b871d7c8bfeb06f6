"""Whose turn it is to write.

SQLite's write lock has no queue: a process that commits and begins again at once, over and over, keeps it
from those that sleep between two tries. So whoever finds it taken shows that it wants it (by a lock on a file
beside the database, and by a count within this process), and whoever has just written gives way for a moment
when somebody wants it.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections import Counter
from pathlib import Path
from threading import Lock

from . import locks
from .failures import is_busy

GIVE_WAY = 0.005
"""The longest that a writer gives way."""
_FIRST_IN_LINE = 0.0002
_BEHIND = (0.0005, 0.003)

_wanting: Counter[str] = Counter()
_wanting_guard = Lock()


class Turn:
    """One writer's place among all that write to a file."""

    def __init__(self, path: Path, sign: Path | None) -> None:
        self._path = str(path)
        self._sign = None if sign is None else _open(sign)
        self._wrote = False

    def begin(self, connection: sqlite3.Connection, patience: float) -> float:
        """Begin a write transaction; the seconds that it took to get the lock. Raises SQLite's own error if
        it is still taken after `patience` seconds."""
        if self._wrote and self._wanted():
            self._give_way()
        began = time.monotonic()
        if not _try_begin(connection):
            self._queue_up(connection, began + patience)
        self._wrote = True
        return time.monotonic() - began

    def idle(self) -> None:
        """Nothing more to write for now: the next time, there is nobody to give way to."""
        self._wrote = False

    def close(self) -> None:
        if self._sign is not None:
            os.close(self._sign)
            self._sign = None

    def _queue_up(self, connection: sqlite3.Connection, end: float) -> None:
        with _wanting_guard:
            _wanting[self._path] += 1
        first = False
        try:
            while True:
                first = first or self._show()
                time.sleep(_FIRST_IN_LINE if first else random.uniform(*_BEHIND))
                if _try_begin(connection, last=time.monotonic() >= end):
                    return
        finally:
            with _wanting_guard:
                _wanting[self._path] -= 1
            if first:
                self._hide()

    def _give_way(self) -> None:
        end = time.monotonic() + GIVE_WAY
        while time.monotonic() < end and self._wanted():
            time.sleep(_FIRST_IN_LINE)

    def _wanted(self) -> bool:
        if _wanting[self._path] > 0:
            return True
        if not self._show():
            return self._sign is not None
        self._hide()
        return False

    def _show(self) -> bool:
        return self._sign is not None and locks.try_lock(self._sign)

    def _hide(self) -> None:
        if self._sign is not None:
            locks.unlock(self._sign)


def _open(sign: Path) -> int | None:
    try:
        return os.open(sign, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None


def _try_begin(connection: sqlite3.Connection, *, last: bool = False) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        if last or not is_busy(error):
            raise
        return False
    return True
