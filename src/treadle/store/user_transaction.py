"""The user's own transaction, given as `tx=`: which objects are no connection, which database a connection is
to, and what happens after the commit.

Objects are recognised by the module and the name of their class, so that no driver has to be imported.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast
from weakref import WeakKeyDictionary

from treadle.errors import InputError
from treadle.logs.masking import masked

_ENTER = "is a context manager that was not entered: pass what `with ... as connection:` gives"
_TRANSACTION = "is a transaction: pass its connection"

_MISTAKES: Final[dict[tuple[str, str], str]] = {
    ("sqlalchemy", "Engine"): (
        "is an engine, which has no transaction: pass a connection, as in `with engine.begin() as "
        "connection:`"
    ),
    ("sqlalchemy", "AsyncEngine"): (
        "is an engine, which has no transaction: pass a connection, as in `async with engine.begin() as "
        "connection:`"
    ),
    ("sqlalchemy", "sessionmaker"): (
        "makes sessions: pass one of them, as in `with Session.begin() as session:`"
    ),
    ("sqlalchemy", "async_sessionmaker"): (
        "makes sessions: pass one of them, as in `async with Session.begin() as session:`"
    ),
    ("sqlalchemy", "Transaction"): _TRANSACTION,
    ("sqlalchemy", "AsyncTransaction"): _TRANSACTION,
    ("sqlalchemy", "SessionTransaction"): "is a transaction: pass its session",
    ("asyncpg", "Pool"): (
        "is a pool: pass a connection that you have acquired, as in `async with pool.acquire() as "
        "connection, connection.transaction():`"
    ),
    ("asyncpg", "PoolAcquireContext"): _ENTER,
    ("asyncpg", "Transaction"): _TRANSACTION,
    ("psycopg", "Transaction"): _TRANSACTION,
    ("psycopg", "AsyncTransaction"): _TRANSACTION,
    ("psycopg_pool", "BasePool"): (
        "is a pool: pass a connection of it, as in `with pool.connection() as connection:`"
    ),
    ("django", "Atomic"): "is a transaction: pass `django.db.connection`",
    ("django", "ConnectionHandler"): "has several connections: pass one, as in `connections['default']`",
    ("contextlib", "_GeneratorContextManager"): _ENTER,
    ("contextlib", "_AsyncGeneratorContextManager"): _ENTER,
}

_NEEDED = "must be a connection that is in a transaction"
_NO_OBJECTS = (str, bytes, int, float, dict, list, tuple, type)

_ENGINES: Final = {
    "sqlite3": "SQLite",
    "aiosqlite": "SQLite",
    "asyncpg": "PostgreSQL",
    "psycopg": "PostgreSQL",
    "psycopg2": "PostgreSQL",
    "pg8000": "PostgreSQL",
    "pymysql": "MySQL",
    "MySQLdb": "MySQL",
    "mysql": "MySQL",
    "aiomysql": "MySQL",
    "asyncmy": "MySQL",
    "oracledb": "Oracle",
    "pyodbc": "ODBC",
    "pymongo": "MongoDB",
    "redis": "Redis",
}
_NAMES: Final = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MySQL", "oracle": "Oracle"}
"""As SQLAlchemy and Django spell them."""


def check_tx(tx: Any, field: str) -> Any:
    """Return `tx`, or raise InputError if it cannot be a connection, with any backend."""
    if isinstance(tx, str):
        raise InputError.of(field, masked(tx), _NEEDED)
    if isinstance(tx, _NO_OBJECTS):
        raise InputError.of(field, cast("object", tx), _NEEDED)
    if inspect.iscoroutine(tx):
        tx.close()
        raise InputError.of(field, tx, "is a coroutine: await it first")
    for cls in type(tx).__mro__:
        problem = _MISTAKES.get((_root(cls), cls.__name__))
        if problem is not None:
            raise InputError.of(field, tx, problem)
        if cls.__name__.endswith("Cursor") and hasattr(tx, "connection"):
            raise InputError.of(field, tx, "is a cursor: pass its connection, `cursor.connection`")
    return tx


def engine_of(tx: Any) -> str | None:
    """Return the name of the database engine that a connection is to, as in "SQLite". None if it cannot be
    told."""
    cls: type[Any] = tx.__class__
    root = _root(cls)
    name: str | None = None
    with contextlib.suppress(Exception):  # of a session without an engine, for instance
        if root == "sqlalchemy":
            name = (tx.get_bind() if hasattr(tx, "get_bind") else tx).dialect.name
        elif root == "django":
            name = tx.vendor
    return _ENGINES.get(root) if name is None else _NAMES.get(name, name)


def _root(cls: type[Any]) -> str:
    return str(cls.__module__).partition(".")[0]


OnCommit: TypeAlias = Callable[[bool], None]
"""Called after the commit, in the thread that commits. True: what was written is stored. False: it was
written in a savepoint, which may have been rolled back."""


def call_on_commit(tx: Any, call: OnCommit) -> bool:
    """Call this once when the transaction that `tx` is in has committed, and not if it is rolled back. False:
    `tx` cannot tell. Only a session of SQLAlchemy can: connections do not say when they have committed,
    neither those of drivers nor SQLAlchemy's own. Its connection is in use."""
    session = _session_of(tx)
    if session is None:
        return False
    pending = _pending.get(session)
    if pending is None:
        pending = _pending[session] = PendingCommit(session)
    pending.add(session, call)
    return True


class PendingCommit:
    """What is to be called when a session commits.

    A session reports a commit too when it releases a savepoint, and when it leaves a transaction that it has
    joined and that may still be rolled back. So its connection is asked whether it is in a transaction.
    """

    def __init__(self, session: Any) -> None:
        from sqlalchemy import event

        self._calls: list[tuple[Any, bool, OnCommit]] = []
        event.listen(session, "after_commit", self._committed)
        event.listen(session, "after_transaction_end", self._ended)

    def add(self, session: Any, call: OnCommit) -> None:
        connection = session.connection()
        self._calls.append((connection, not connection.in_nested_transaction(), call))

    def _committed(self, session: Any) -> None:
        ended = [each for each in self._calls if not each[0].in_transaction()]
        self._calls = [each for each in self._calls if each not in ended]
        for _, certain, call in ended:
            call(certain)

    def _ended(self, session: Any, transaction: Any) -> None:
        """What is left was rolled back, or belongs to a transaction that the session has only joined."""
        if transaction.parent is None:
            self._calls.clear()


_pending: Final[WeakKeyDictionary[Any, PendingCommit]] = WeakKeyDictionary()


def _session_of(tx: Any) -> Any:
    """The session of SQLAlchemy that this is, or has. None if it is no session."""
    # A class of the user's own, or of SQLModel, may derive from a session.
    if not any(cls.__module__.startswith("sqlalchemy") for cls in type(tx).__mro__):
        return None
    if hasattr(tx, "registry") and callable(tx):  # a scoped session
        tx = tx()
    session = getattr(tx, "sync_session", tx)
    return session if hasattr(session, "in_nested_transaction") and hasattr(session, "flush") else None
