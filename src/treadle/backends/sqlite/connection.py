"""Connections: the checks before the file is opened, and how each connection is set up."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from treadle.errors import (
    BackendError,
    InputError,
    StoreFull,
    StoreUnavailable,
    TenantElsewhere,
    TreadleError,
)

from .marks import mark_behind, refusal
from .records import add_functions
from .statements import statements

_SQL = statements("connection")

T = TypeVar("T")

Durability: TypeAlias = Literal["full", "normal"]

LOG_LIMIT = 64 * 2**20
"""The write-ahead log is truncated when it is larger than this and the writer is idle."""
_SETTINGS = ("checkpoint_pages", "log_limit", "cache_size", "temporary_data", "deleted_rows", "foreign_keys")

ELSEWHERE = "treadle: the tenant is elsewhere"
"""What the triggers of tenant_moves.sql say."""

_creating = threading.Lock()


def usable_path(path: str | Path) -> Path:
    """The absolute path of the file. Raises an error that says why a path cannot be used."""
    if str(path) in ("", ":memory:"):
        raise InputError.of("path", str(path), "must name a file: use the memory backend for work in memory")
    try:
        absolute = Path(path).expanduser().resolve()
        is_directory, parent_exists = _is_directory(absolute), _is_directory(absolute.parent)
    except (OSError, ValueError, RuntimeError) as error:  # it has a NUL, is too long, or links to itself
        raise InputError.of("path", str(path), "is not a path that this system can use") from error
    if is_directory:
        raise BackendError(f"{absolute} is a directory: name a file in it")
    if not parent_exists:
        raise BackendError(f"the directory {absolute.parent} does not exist: check the path, or create it")
    return absolute


def _is_directory(path: Path) -> bool:
    """Whether there is a directory. OSError if the system takes no such path, which `is_dir` does not say."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False


def create_file(path: Path) -> None:
    """Create the file, if there is none, for its owner only. SQLite gives its mode to the log."""
    # One at a time: to close a file releases the locks that SQLite, in this process, has on it.
    with _creating, contextlib.suppress(OSError):  # if it cannot be created, SQLite says why
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def connect(path: Path, durability: Durability) -> sqlite3.Connection:
    """Open a connection that writes. It does not wait for locks: its user does (see `retry_while_locked`)."""
    return _connect(path, ("use_write_ahead_log", f"durability_{durability}", *_SETTINGS))


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a connection that only reads."""
    return _connect(path, ["only_read"])


def _connect(path: Path, settings: Iterable[str]) -> sqlite3.Connection:
    # Each is used by one thread at a time. A forked process closes those that it inherits in another one.
    connection = sqlite3.connect(
        path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=512
    )
    try:
        add_functions(connection)
        for name in settings:
            answer = connection.execute(_SQL[name]).fetchall()
            if name == "use_write_ahead_log" and answer != [("wal",)]:
                why = f"no write-ahead log here ({answer[0][0]}): is it on a network file system?"
                raise BackendError(f"{path}: {why}")
    except BaseException:
        connection.close()
        raise
    return connection


def check_integrity(connection: sqlite3.Connection, path: Path) -> None:
    found = connection.execute(_SQL["check_integrity"]).fetchall()[0][0]
    if found != "ok":
        raise BackendError(f"{path} is damaged ({found}): restore it from a backup")


def connected_file(connection: sqlite3.Connection) -> str:
    """The path of the file that a connection has open; empty for a database in memory."""
    cursor = connection.cursor()
    cursor.row_factory = None
    files: dict[str, str] = {name: path for _, name, path in cursor.execute(_SQL["files"]).fetchall()}
    return files.get("main", "")


def retry_while_locked(action: Callable[[], T], path: Path, patience: float) -> T:
    """Call `action` until the file is not locked, for at most `patience` seconds. Blocks its thread."""
    end = time.monotonic() + patience
    while True:
        try:
            return action()
        except sqlite3.Error as error:
            if not is_busy(error) or time.monotonic() >= end:
                raise translated(error, path) from error
        time.sleep(random.uniform(0.0005, 0.003))


# -- errors --------------------------------------------------------------------------------------------
#
# SQLite's errors are translated to treadle's: no raw `sqlite3` error reaches a caller.


_BUSY = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))
_BROKEN = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))
_FATAL = {
    sqlite3.SQLITE_READONLY: "cannot be written to: check the permissions of the file and of its directory",
    sqlite3.SQLITE_PERM: "cannot be opened: check the permissions of the file and of its directory",
    sqlite3.SQLITE_AUTH: "cannot be opened: access was denied",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: check that its directory exists and can be written to",
}


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection has the lock."""
    return _code(error) in _BUSY


def is_denied(error: sqlite3.Error) -> bool:
    """Whether the authorizer of the connection has refused a statement."""
    return _code(error) == sqlite3.SQLITE_AUTH


def breaks_connection(error: sqlite3.Error) -> bool:
    """Whether a new connection is needed after this error."""
    code = _code(error)
    return code in _BROKEN or code in _FATAL or code == sqlite3.SQLITE_IOERR


def translated(error: sqlite3.Error, path: Path) -> TreadleError:
    """The error to raise instead, with the original as its cause."""
    code = _code(error)
    if ELSEWHERE in str(error):
        return TenantElsewhere(str(path))
    mark = mark_behind(error, path)
    if mark is not None:
        return refusal(mark)
    if code in _BUSY:
        return StoreUnavailable(
            f"{path} stayed locked by another writer: another program, or a transaction that was left open. "
            "It may be one of this process: then pass its connection as tx="
        )
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(f"the disk of {path} is full: free some space, then running items are settled")
    if code in _BROKEN:
        return BackendError(f"{path} is damaged or is no SQLite database ({error}): restore it from a backup")
    if code in _FATAL:
        return BackendError(f"{path} {_FATAL[code]} ({error})")
    if code == sqlite3.SQLITE_IOERR:
        return StoreUnavailable(f"{path} cannot be read or written ({error}): check the disk")
    return BackendError(f"{path}: {type(error).__name__}: {error}")


def _code(error: sqlite3.Error) -> int:
    """The primary result code; 0 if the error did not come from SQLite itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
