"""What PostgreSQL and its driver report, in treadle's words; and which of it is worth another try."""

from __future__ import annotations

import asyncio
from typing import Final

import asyncpg

from treadle.errors import BackendError, SchemaError, StoreFull, StoreUnavailable, TreadleError

from .schema import VERSION

CONFLICTS: Final = frozenset(
    {
        "40001",  # serialization failure; also how our functions say that things moved meanwhile
        "40P01",  # deadlock
        "55P03",  # lock not available: somebody ends or removes what this call wants to wait for
    }
)
"""The transaction was rolled back: the same call may well succeed."""

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
_TOO_LONG: Final = "57014"
"""`statement_timeout`: nothing of it happened."""
_FULL: Final = frozenset({"53100", "54000"})
_MISSING: Final = frozenset({"3F000", "42P01", "42883", "42703"})

LOST = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
)
"""What the driver raises when the server does not answer, or when it has lost track of a connection."""


def state(error: BaseException | None) -> str:
    """The SQLSTATE; empty if it did not come from the server."""
    return getattr(error, "sqlstate", None) or ""


def is_conflict(error: BaseException | None) -> bool:
    return isinstance(error, asyncpg.PostgresError) and state(error) in CONFLICTS


def is_away(error: BaseException) -> bool:
    """Whether the store did not answer, or cannot at the moment: the outcome is unknown."""
    if isinstance(error, asyncpg.PostgresError):
        found = state(error)
        return found in _AWAY or found.startswith("08")
    if isinstance(error, asyncpg.DataError | asyncpg.UnsupportedClientFeatureError):
        return False
    return isinstance(error, LOST) and not _is_bad_argument(error)


def translated(error: BaseException) -> TreadleError:
    """The error to raise instead; the original is its cause."""
    found = state(error)
    if is_away(error) or is_conflict(error) or found == _TOO_LONG:
        return StoreUnavailable(f"PostgreSQL did not answer: {_brief(error)}")
    if found in _FULL:
        return StoreFull(f"PostgreSQL has no room: {_brief(error)}")
    if found in _MISSING:
        return SchemaError(None, VERSION)
    return BackendError(f"PostgreSQL refused: {_brief(error)}")


def _is_bad_argument(error: BaseException) -> bool:
    return isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
