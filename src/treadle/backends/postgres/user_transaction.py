"""Our statements in the user's own transaction, with any driver.

A connection is recognised by the module of its class, so that no driver has to be imported: asyncpg's,
psycopg's (sync and async), SQLAlchemy's connections and sessions (sync and async) on top of those, Django's.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from weakref import WeakSet

from treadle.errors import InputError
from treadle.store.user_transaction import engine_of

from .connector import register_array_types
from .errors import MISSING
from .statements import statement

BEGIN: Final = statement("submit", "begin")
PIN: Final = statement("connection", "pin_search_path")
ARRAY_TYPES: Final = statement("connection", "array_types")
_IDLE: Final = 0
"""The status of a transaction that has not begun, in libpq."""
_PARAMETER = re.compile(r"\$(\d+)")
_learned: WeakSet[Any] = WeakSet()


async def row_in_transaction(tx: Any, sql: str, arguments: Sequence[object]) -> Mapping[str, Any]:
    """The one row that a statement answers, as part of the transaction that `tx` is in. If there is none, the
    connection is to another store."""
    if (engine := engine_of(tx)) not in (None, "PostgreSQL"):
        raise InputError.of(
            "tx", tx, f"is a connection to {engine}, and the items of this app are in PostgreSQL"
        )
    driver = await _driver(tx)
    if not hasattr(driver, "is_in_transaction" if _module(driver) == "asyncpg" else "cursor"):
        raise InputError.of(
            "tx",
            tx,
            "is not a connection to PostgreSQL that treadle knows: asyncpg, psycopg, SQLAlchemy or Django "
            "(of a pool: a connection that you have acquired)",
        )
    if not _is_in_transaction(driver):
        raise InputError("tx: the connection is not in a transaction: BEGIN one first", parameters=("tx",))
    try:
        row = await _row(driver, sql, arguments)
    except Exception as error:
        if _sqlstate(error) not in MISSING:
            raise
        raise InputError(
            "tx: the connection is to another database: the tables of treadle are not there",
            parameters=("tx",),
        ) from error
    if row is None:
        raise InputError(
            "tx: the connection is to another database than the app's: the items there are those of another "
            "app. Nothing was stored",
            parameters=("tx",),
        )
    return row


async def _row(driver: Any, sql: str, arguments: Sequence[object]) -> Mapping[str, Any] | None:
    kind = _module(driver)
    if kind == "asyncpg":
        await _learn_array_types(driver)
        row = await driver.fetchrow(sql, *arguments)
        return None if row is None else dict(row)
    text, ordered = _with_percent(sql, arguments)
    if kind == "psycopg" and inspect.iscoroutinefunction(driver.execute):
        async with driver.cursor() as cursor:
            await cursor.execute(text, ordered)
            return _named(cursor, await cursor.fetchone())
    # Synchronous drivers are called on the event loop: to hand a connection that the caller is using to
    # another thread would be worse than a millisecond on the loop.
    with driver.cursor() as cursor:
        cursor.execute(text, ordered)
        return _named(cursor, cursor.fetchone())


def _is_in_transaction(driver: Any) -> bool:
    """Whether what is executed on this connection waits for a commit."""
    if _module(driver) == "asyncpg":
        asyncio.get_running_loop()  # if there is none, that is the first thing to say: see app.sync
        return bool(driver.is_in_transaction())
    if _module(driver) == "django":
        return bool(driver.in_atomic_block or not driver.get_autocommit())
    # Without autocommit the driver begins one by itself.
    return not getattr(driver, "autocommit", False) or driver.info.transaction_status != _IDLE


def _sqlstate(error: BaseException) -> str:
    """Django has an error of its own for each of the driver's."""
    found = getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None)
    return str(found or "")


async def _learn_array_types(driver: Any) -> None:
    """As the backend's own connections do (see pool.py), once per connection. The savepoint gives the user's
    search path back."""
    connection = getattr(driver, "_con", driver)  # a pool wraps the connection, anew for each use
    if connection in _learned:
        return
    if not register_array_types(connection):
        savepoint = driver.transaction()
        await savepoint.start()
        await driver.execute(PIN)
        await driver.fetch(ARRAY_TYPES)
        await savepoint.rollback()
    _learned.add(connection)


async def _driver(tx: Any) -> Any:
    """The driver's own connection, in an open transaction."""
    if _module(tx) != "sqlalchemy":
        return tx
    if type(tx).__module__.startswith("sqlalchemy.ext.asyncio"):
        connection = await tx.connection() if hasattr(tx, "sync_session") else tx
        await connection.exec_driver_sql(BEGIN)
        return (await connection.get_raw_connection()).driver_connection
    connection = tx if hasattr(tx, "exec_driver_sql") else tx.connection()
    connection.exec_driver_sql(BEGIN)
    return connection.connection.driver_connection


def _module(connection: object) -> str:
    return type(connection).__module__.partition(".")[0]


def _with_percent(sql: str, arguments: Sequence[object]) -> tuple[str, list[object]]:
    """The statement with `%s` for each `$1`, and its arguments in that order."""
    ordered: list[object] = []

    def place(match: re.Match[str]) -> str:
        ordered.append(arguments[int(match[1]) - 1])
        return "%s"

    return _PARAMETER.sub(place, sql), ordered


def _named(cursor: Any, row: Sequence[Any] | None) -> Mapping[str, Any] | None:
    return None if row is None else dict(zip((column[0] for column in cursor.description), row, strict=True))
