"""The user's own connection to SQLite: sqlite3's, aiosqlite's, or a connection or a session of SQLAlchemy on
top of those.

They are recognised by the modules of their classes, so that neither library has to be imported.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from treadle.store.tx_check import engine_of

T = TypeVar("T")


async def call_with_connection(given: Any, call: Callable[[object], T]) -> T:
    """Call this with the `sqlite3.Connection` of what the user has given, or with what was given if it has
    none. In the thread that the connection belongs to: the caller's, or that of aiosqlite."""
    if is_async(given) and _root(given) != "aiosqlite":
        session = given() if hasattr(given, "registry") else given
        connection = await session.connection() if hasattr(session, "sync_session") else session
        given = (await connection.get_raw_connection()).driver_connection
        return await _in_thread_of(given, lambda: call(_begun(given._conn)))
    if _root(given) == "aiosqlite":
        return await _in_thread_of(given, lambda: call(given._conn))
    return call(connection_of(given))


def connection_of(given: Any) -> object:
    """The `sqlite3.Connection`, in a transaction, of a connection or a session of SQLAlchemy. Anything else,
    also what is async, is returned as it is."""
    if engine_of(given) != "SQLite" or is_async(given) or not _is_of(given, "sqlalchemy."):
        return given
    try:
        connection = given if hasattr(given, "exec_driver_sql") else given.connection()
        return _begun(connection.connection.driver_connection)
    except AttributeError:
        return given


def is_async(given: object) -> bool:
    """Whether this is a connection to SQLite in another thread."""
    return engine_of(given) == "SQLite" and (
        _root(given) == "aiosqlite" or _is_of(given, "sqlalchemy.ext.asyncio")
    )


def _begun(driver: Any) -> object:
    """SQLAlchemy leaves it to sqlite3 to begin a transaction, and that waits for the first change."""
    if isinstance(driver, sqlite3.Connection) and not driver.in_transaction:
        driver.execute("BEGIN IMMEDIATE")
    return driver


async def _in_thread_of(connection: Any, call: Callable[[], T]) -> T:
    running: Awaitable[T] = connection._execute(call)
    return await running


def _root(given: object) -> str:
    return type(given).__module__.partition(".")[0]


def _is_of(given: object, module: str) -> bool:
    """Whether its class, or a class that it derives from, is of this module: SQLModel has sessions too."""
    return any(cls.__module__.startswith(module) for cls in type(given).__mro__)
