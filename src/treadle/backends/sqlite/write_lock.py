"""The write lock: how the writers of one file take it fairly.

SQLite's write lock has no queue: a process that commits and begins again at once, over and over, keeps it
from those that sleep between two attempts. So a writer that finds it taken shows that it waits: by a lock on
a file in the process directory, and by a count within this process. A writer that has just written pauses
briefly before its next transaction while another one waits.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from .errors import is_busy
from .process_directory import try_lock, unlock

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
