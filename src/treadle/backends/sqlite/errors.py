"""SQLite's errors, translated to treadle's. No raw `sqlite3` error reaches a caller."""

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
