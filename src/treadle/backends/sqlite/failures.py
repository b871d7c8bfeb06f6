"""What SQLite reports, in treadle's words. No raw `sqlite3` error reaches a caller."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from treadle.errors import BackendError, StoreFull, StoreUnavailable, TreadleError

_BUSY = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))
_BROKEN = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))
_FATAL = {
    sqlite3.SQLITE_READONLY: "cannot be written to: check the permissions of the file and of its directory",
    sqlite3.SQLITE_PERM: "cannot be opened: check the permissions of the file and of its directory",
    sqlite3.SQLITE_AUTH: "cannot be opened: access was denied",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: check that its directory exists and can be written to",
}


def code(error: sqlite3.Error) -> int:
    """The primary result code; 0 if SQLite was not even asked."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    return code(error) in _BUSY


def breaks_connection(error: sqlite3.Error) -> bool:
    """Whether it is better to go on with a new connection."""
    return code(error) in _BROKEN or code(error) in _FATAL or code(error) == sqlite3.SQLITE_IOERR


def translated(error: sqlite3.Error, path: Path) -> TreadleError:
    """The error to raise instead; the original is its cause."""
    found = code(error)
    if found in _BUSY:
        return StoreUnavailable(
            f"{path} stayed locked by another writer: another program, or a transaction that was left open"
        )
    if found == sqlite3.SQLITE_FULL:
        return StoreFull(f"the disk of {path} is full: make room, work in hand is settled then")
    if found in _BROKEN:
        return BackendError(f"{path} is damaged or is no SQLite database ({error}): restore it from a backup")
    if found in _FATAL:
        return BackendError(f"{path} {_FATAL[found]} ({error})")
    if found == sqlite3.SQLITE_IOERR:
        return StoreUnavailable(f"{path} cannot be read or written ({error}): check the disk")
    return BackendError(f"{path}: {type(error).__name__}: {error}")
