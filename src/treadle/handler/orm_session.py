"""Sessions of SQLAlchemy in the transaction of a handler: `ctx.transaction(session=Session)`.

A session is made by the user's own `sessionmaker`, and bound to the connection that the backend has opened.
The driver of the sessionmaker's engine does not matter: on PostgreSQL that connection is asyncpg's.

    transaction of the handler           begun, and committed with the settlement, by the backend
      savepoint of the session           `session.commit()` and `session.rollback()` end it; a new one follows
        statements of the user

So a session cannot end the handler's transaction.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import JSON, Engine, NullPool, create_engine
from sqlalchemy.dialects import postgresql, registry
from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_connection, PGDialect_asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import greenlet_spawn

from treadle.errors import InputError
from treadle.store.user_transaction import engine_of

T = TypeVar("T")

Wait: TypeAlias = Callable[[Callable[[], Awaitable[Any]]], Any]
"""Makes a request on the worker's event loop, and blocks the calling thread until it is answered."""


# -- sessions ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def session_on(maker: Any, driver: Any) -> AsyncGenerator[Any]:
    """A session on the connection of a driver, for an async handler. At the end of the block it is flushed.
    Its objects stay readable."""
    if not _makes_async(maker, driver):
        if engine_of(driver) != "SQLite":
            raise InputError.of(
                "session", maker, "makes sessions that block: in an async handler, use async_sessionmaker"
            )
        with blocking_session_on(maker, driver) as blocking:
            yield blocking
        return
    with _lent_to_engine(driver):
        connection = await _async_engine(maker, driver).connect()
    try:
        joined = await connection.begin()
        session = _made(maker, connection)
        try:
            yield session
            session.sync_session.expire_on_commit = False
            await session.commit()
        except BaseException:
            with contextlib.suppress(Exception):  # all is rolled back, with the handler's transaction
                await session.close()
            raise
        await session.close()
        await joined.commit()
    finally:
        with contextlib.suppress(Exception):
            await connection.close()


@contextmanager
def blocking_session_on(maker: Any, driver: Any, wait: Wait | None = None) -> Generator[Any]:
    """The same for a handler that is a plain function. wait: how it calls a driver that is async."""
    if _makes_async(maker, driver):
        raise InputError.of(
            "session", maker, "makes async sessions: in a handler that is a plain function, use sessionmaker"
        )
    with _lent_to_engine(driver, wait):
        connection = _engine(maker, driver).connect()
    try:
        joined = connection.begin()
        session = _made(maker, connection)
        try:
            yield session
            session.expire_on_commit = False
            session.commit()
        except BaseException:
            with contextlib.suppress(Exception):
                session.close()
            raise
        session.close()
        joined.commit()
    finally:
        with contextlib.suppress(Exception):
            connection.close()


def _makes_async(maker: Any, driver: Any) -> bool:
    """Whether it makes async sessions. InputError if it makes none, or those of another database."""
    made: Any = getattr(maker, "class_", maker)
    given: object = maker
    is_maker = isinstance(given, async_sessionmaker | sessionmaker)
    if not is_maker and not (isinstance(made, type) and issubclass(made, AsyncSession | Session)):
        raise InputError.of("session", maker, "must be a sessionmaker or an async_sessionmaker of SQLAlchemy")
    ours, bind = engine_of(driver), _bind(maker)
    if ours is None:
        raise InputError.of("session", maker, "needs a database, and this transaction is only recorded")
    theirs = None if bind is None else engine_of(bind)
    if theirs not in (None, ours):
        raise InputError.of(
            "session", maker, f"makes sessions on {theirs}, and the items of this app are in {ours}"
        )
    return issubclass(made, AsyncSession)


def _bind(maker: Any) -> Any:
    bind = getattr(maker, "kw", {}).get("bind")
    return getattr(bind, "sync_engine", getattr(bind, "engine", bind))


def _made(maker: Any, connection: Any) -> Any:
    options: dict[str, Any] = {"bind": connection, "join_transaction_mode": "create_savepoint"}
    given = getattr(maker, "kw", {})
    if "binds" in given:
        options["binds"] = {}
    if "twophase" in given:
        options["twophase"] = False
    return maker(**options)


# -- engines -----------------------------------------------------------------------------------------------


class Lent(NamedTuple):
    """The connection that an engine is to use. wait: how a thread calls it."""

    driver: Any
    wait: Wait | None


_lent: ContextVar[Lent] = ContextVar("treadle_lent_connection")
_engines: Final[WeakKeyDictionary[Any, dict[str, Any]]] = WeakKeyDictionary()
"""By the user's maker of sessions, and by the URL of the engine. An engine asks its server for the version
when it connects first, so each is kept."""


@contextmanager
def _lent_to_engine(driver: Any, wait: Wait | None = None) -> Generator[None]:
    token = _lent.set(Lent(driver, wait))
    try:
        yield
    finally:
        _lent.reset(token)


def _async_engine(maker: Any, driver: Any) -> AsyncEngine:
    if engine_of(driver) == "SQLite":
        return _kept(maker, "sqlite+aiosqlite://", create_async_engine, async_creator=_lent_to_aiosqlite)
    return _kept(maker, "postgresql+treadle://", create_async_engine, async_creator=_lent_to_asyncpg)


def _engine(maker: Any, driver: Any) -> Engine:
    if engine_of(driver) == "SQLite":
        return _kept(maker, "sqlite://", create_engine, creator=_lent_to_sqlite)
    return _kept(maker, "postgresql+treadle_blocking://", create_engine, creator=_lent_to_thread)


def _kept(maker: Any, url: str, create: Callable[..., T], **creator: Any) -> T:
    engines = _engines.setdefault(maker, {})
    if url not in engines:
        engines[url] = create(url, poolclass=NullPool, **creator, **_options_of(_bind(maker)))
    engine: T = engines[url]
    return engine


def _options_of(bind: Any) -> dict[str, Any]:
    """What the user's own engine does with statements and JSON, ours does too."""
    if bind is None:
        return {}
    found: dict[str, Any] = {"execution_options": dict(bind.get_execution_options())}
    for name in ("json_serializer", "json_deserializer"):
        if (function := getattr(bind.dialect, f"_{name}", None)) is not None:
            found[name] = function
    return found


async def _lent_to_asyncpg() -> Any:
    return LentAsyncpg(_lent.get().driver)


async def _lent_to_aiosqlite() -> Any:
    aiosqlite = importlib.import_module("aiosqlite")
    lent = LentSqlite(_lent.get().driver)
    return await aiosqlite.Connection(lambda: lent, 64)


def _lent_to_sqlite() -> Any:
    return LentSqlite(_lent.get().driver)


def _lent_to_thread() -> Any:
    driver, wait = _lent.get()
    assert wait is not None
    dialect: Any = LentDialect
    adapt: Any = AsyncAdapt_asyncpg_connection
    return BlockingCalls(adapt(dialect.import_dbapi(), LentAsyncpg(driver)), wait)


class LentDialect(PGDialect_asyncpg):
    """asyncpg, on a connection that is not ours to change: JSON is read here, without codecs of the
    connection."""

    supports_statement_cache = True
    driver = "treadle"

    def on_connect(self) -> Any:
        return None


def _json_reader(self: Any, dialect: Any, coltype: object) -> Any:
    read = dialect._json_deserializer or json.loads

    def process(value: Any) -> Any:
        return None if value is None else read(value)

    return process


class _LentJson(postgresql.JSON):  # pyright: ignore[reportMissingTypeArgument]
    result_processor = _json_reader


class _LentJsonb(postgresql.JSONB):  # pyright: ignore[reportMissingTypeArgument]
    result_processor = _json_reader


LentDialect.colspecs = {**PGDialect_asyncpg.colspecs, JSON: _LentJson, postgresql.JSONB: _LentJsonb}
registry.register("postgresql.treadle", __name__, "LentDialect")


class BlockingDialect(LentDialect):
    """The same for a thread without an event loop: see `BlockingCalls`."""

    supports_statement_cache = True
    driver = "treadle_blocking"
    is_async = False


registry.register("postgresql.treadle_blocking", __name__, "BlockingDialect")


# -- connections -------------------------------------------------------------------------------------------


class LentAsyncpg:
    """A connection of asyncpg that SQLAlchemy does not close. Transactions on it are savepoints."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def close(self, *, timeout: float | None = None) -> None: ...

    def terminate(self) -> None: ...


class LentSqlite:
    """A connection to SQLite that SQLAlchemy neither closes nor commits. Savepoints are statements."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


class BlockingCalls:
    """A connection, or a cursor, as SQLAlchemy adapts an async driver, for a thread without an event loop."""

    _calls = frozenset(
        ("commit", "execute", "executemany", "nextset", "ping", "rollback", "setinputsizes", "close")
    )

    def __init__(self, adapted: Any, wait: Wait) -> None:
        self._adapted = adapted
        self._wait = wait

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._adapted, name)
        if name not in self._calls:
            return found

        def call(*args: Any, **options: Any) -> Any:
            return self._wait(lambda: greenlet_spawn(found, *args, **options))

        return call

    def cursor(self, **options: Any) -> BlockingCalls:
        async def make() -> Any:
            return await greenlet_spawn(self._adapted.cursor, **options)

        return BlockingCalls(self._wait(make), self._wait)
