"""Opening the file: what is checked before, and how each connection is set up."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from treadle.errors import BackendError, InputError, StoreUnavailable

from .failures import is_busy, translated

T = TypeVar("T")

Durability: TypeAlias = Literal["full", "normal"]

# A commit that finds this many pages (16 MB) in the write-ahead log moves them into the file.
CHECKPOINT_PAGES = 4000
LOG_LIMIT = 64 * 2**20
"""The write-ahead log is cut back to nothing when it is larger than this and nothing else is going on."""
_CACHE_KIB = 32 * 1024


def usable_path(path: str | Path) -> Path:
    """The absolute path of the file; a clear error for what cannot be one."""
    if str(path) in ("", ":memory:"):
        raise InputError.of("path", str(path), "must name a file: use the memory backend for work in memory")
    absolute = Path(path).expanduser().resolve()
    if absolute.is_dir():
        raise BackendError(f"{absolute} is a directory: name a file in it")
    if not absolute.parent.is_dir():
        raise BackendError(f"the directory {absolute.parent} does not exist: create it first")
    return absolute


class Identity:
    """Which file it is. SQLite goes on writing into one that was deleted: nothing of that may be called
    durable."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found = self._look()

    def check(self) -> None:
        if self._found is None or self._look() != self._found:
            raise StoreUnavailable(
                f"{self._path} was deleted or replaced while in use: close it, open it again"
            )

    def _look(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)  # noqa: PTH116  called for every commit: no detour
        except OSError:
            return None
        return found.st_dev, found.st_ino


def connect(path: Path, durability: Durability, *, check_same_thread: bool = True) -> sqlite3.Connection:
    """A connection that writes. It does not wait for locks: whoever uses it does (see `patiently`)."""
    connection = _connect(path, check_same_thread)
    try:
        found = connection.execute("PRAGMA journal_mode = WAL").fetchall()[0][0]
        if found != "wal":
            raise BackendError(f"{path}: no write-ahead log here ({found}): is it on a network file system?")
        _set_up(connection, durability)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection that only reads."""
    connection = _connect(path, check_same_thread=True)
    try:
        connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path, check_same_thread: bool) -> sqlite3.Connection:
    return sqlite3.connect(
        path, timeout=0, isolation_level=None, check_same_thread=check_same_thread, cached_statements=512
    )


def _set_up(connection: sqlite3.Connection, durability: Durability) -> None:
    connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'full' else 'NORMAL'}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT}")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    # Savepoints keep what they may have to put back: in memory, not in a file.
    connection.execute("PRAGMA temp_store = MEMORY")
    # Some builds overwrite deleted rows with zeros: as much writing again as the deleting itself.
    connection.execute("PRAGMA secure_delete = OFF")
    connection.execute("PRAGMA foreign_keys = OFF")


def patiently(action: Callable[[], T], path: Path, patience: float) -> T:
    """Do it, again and again while the file is locked, for at most so many seconds. Blocks: threads only."""
    end = time.monotonic() + patience
    while True:
        try:
            return action()
        except sqlite3.Error as error:
            if not is_busy(error) or time.monotonic() >= end:
                raise translated(error, path) from error
        time.sleep(random.uniform(0.0005, 0.003))
