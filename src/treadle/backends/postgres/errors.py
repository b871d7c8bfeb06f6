"""Errors: what PostgreSQL and its driver report, as treadle's errors, and which calls are worth repeating."""

from __future__ import annotations

import asyncio
from typing import Final

import asyncpg

from treadle.errors import (
    AccessDenied,
    BackendError,
    SchemaError,
    StoreFull,
    StoreTooSlow,
    StoreUnavailable,
    TenantElsewhere,
    TreadleError,
)

from .schema import VERSION

CONFLICTS: Final = frozenset(
    {
        "40001",  # serialization failure; our functions raise it too, when items changed meanwhile
        "40P01",  # deadlock
        "55P03",  # lock not available: another transaction ends or removes what this call waits for
    }
)
"""The transaction was rolled back: the same call may succeed."""

_AWAY: Final = frozenset(
    {
        "57P01",  # the server is shutting down
        "57P02",  # it crashed
        "57P03",  # it is starting
        "57P05",  # idle for too long
        "53300",  # too many connections
        "25006",  # read-only: a standby, or about to become one
        "25P03",  # idle in a transaction for too long
    }
)
_LOST: Final = "08"
"""Class of errors of a connection, also of those that the driver makes itself."""
_BUSY: Final = {
    "25006": "is read-only here: a standby, or a role with default_transaction_read_only",
    "53300": "has no connection left for this role",
}
_LOCKED: Final = "55P03"
_STOPPED: Final = "57014"
"""The statement took longer than `statement_timeout`, or an operator stopped it."""
ELSEWHERE: Final = "TM001"
"""Raised by the trigger of tenant_moves.sql."""
_FULL: Final = "53100"
MISSING: Final = frozenset({"3F000", "42P01", "42883", "42703", "42704"})
"""A schema, a table, a function, a column or a type is not there."""
_DENIED: Final = "42501"
_LOGIN: Final = {"28": "refuses the login", "3D": "has no such database"}
"""Classes of errors of a login: the role or its password; the database."""
_LIMITS: Final = "54"
_REFUSALS: Final = ("21", "22", "23")
"""Classes of errors that the values of a request cause: limits of one request; cardinality, data, integrity.
All other errors may be gone a moment later, as one of the login, of the rights or of the disk: no list of
those is complete."""

_SPOILT: Final = {
    "25P01": "a statement of yours has ended this transaction: leave COMMIT and ROLLBACK to its block",
    "25P02": (
        "a statement of yours has failed in this transaction, so it can only be rolled back: let the error "
        "leave the block, or execute what may fail in a savepoint (`async with tx.transaction()`)"
    ),
}
"""Only a handler can bring its transaction into such a state."""
_UNPREPARED: Final = frozenset({"26000", "42P05"})
"""A prepared statement is missing, or is there although it should not be."""
POOLER_HINT: Final = " (behind a pooler in transaction mode, PostgresBackend needs prepare=False)"
STATEMENT_MODE_HINT: Final = " (treadle needs a pooler in transaction mode or in session mode)"

CONNECTION_ERRORS = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
)
"""What the driver raises when the server does not answer, or when it has lost track of a connection."""


class NothingSent(Exception):
    """There was no connection, so nothing was sent to the server."""


def is_conflict(error: BaseException | None) -> bool:
    return isinstance(error, asyncpg.PostgresError) and _sqlstate(error) in CONFLICTS


def is_locked(error: BaseException | None) -> bool:
    """Whether another transaction holds what this call needs, for longer than a call waits."""
    return isinstance(error, asyncpg.PostgresError) and _sqlstate(error) == _LOCKED


def is_missing(error: BaseException) -> bool:
    """Whether something of the schema is not there."""
    return _sqlstate(error) in MISSING


def is_away(error: BaseException) -> bool:
    """Whether the server did not answer, or cannot at the moment: the outcome is unknown."""
    if isinstance(error, asyncpg.PostgresError):
        found = _sqlstate(error)
        return found in _AWAY or found.startswith(_LOST)
    if isinstance(error, asyncpg.DataError | asyncpg.UnsupportedClientFeatureError):
        return False
    return isinstance(error, CONNECTION_ERRORS) and not _is_bad_argument(error)


def is_for_caller(error: BaseException) -> bool:
    """Whether the verb that made the call handles this error: one of our functions raised it, or an id is
    taken."""
    if isinstance(error, asyncpg.UniqueViolationError):
        return True
    return isinstance(error, asyncpg.PostgresError) and _sqlstate(error).startswith("TR")


def cause_of(error: BaseException) -> BaseException:
    """The error of the driver."""
    return error.__cause__ if isinstance(error, NothingSent) and error.__cause__ else error


def translated(error: BaseException) -> TreadleError:
    """The error to raise instead; the original is its cause."""
    found = _sqlstate(error)
    if found == ELSEWHERE:
        return TenantElsewhere("this PostgreSQL store")
    if found in _BUSY:
        return StoreUnavailable(f"PostgreSQL {_BUSY[found]}: {brief(error)}")
    if is_away(error) or is_conflict(error):
        what = "did not answer" if not found or found.startswith(_LOST) else "cannot do this now"
        hint = STATEMENT_MODE_HINT if "statement pooling mode" in str(error) else ""
        return StoreUnavailable(f"PostgreSQL {what}: {brief(error)}{hint}")
    if found in _SPOILT:
        return BackendError(_SPOILT[found])
    if found == _STOPPED:
        return StoreTooSlow(f"PostgreSQL took too long: {brief(error)}")
    if found == _FULL:
        return StoreFull(f"PostgreSQL has no room: {brief(error)}")
    if found in MISSING:
        return SchemaError(None, VERSION)
    if found.startswith(_LIMITS):
        return BackendError(
            f"PostgreSQL cannot take so much at once: {brief(error)}: submit or return less in one step"
        )
    if not found or found.startswith(_REFUSALS):
        return BackendError(f"PostgreSQL refused: {brief(error)}")
    if found == _DENIED:
        return AccessDenied(
            f"the role lacks a right: {brief(error)}: SECURITY.md has the grants that it needs"
        )
    if found in _UNPREPARED:
        # Without the driver's own hint, which is for those who call it themselves.
        return StoreUnavailable(
            f"PostgreSQL cannot do this now: {str(error).partition(chr(10))[0]}{POOLER_HINT}"
        )
    return StoreUnavailable(f"PostgreSQL {_LOGIN.get(found[:2], 'cannot do this now')}: {brief(error)}")


def _sqlstate(error: BaseException) -> str:
    """Empty if the error did not come from the server."""
    return getattr(error, "sqlstate", None) or ""


def _is_bad_argument(error: BaseException) -> bool:
    return isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)


def brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
