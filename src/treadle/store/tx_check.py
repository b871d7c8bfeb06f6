"""What is given as `tx=`: the objects that are not a connection, and the database that a connection is to.

Objects are recognised by the module and the name of their class, so that no driver has to be imported.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any, Final, cast

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
