"""SyncContext: `ctx.sync`, the requests of a Context for handlers that are plain functions.

A handler in a thread blocks until the worker's event loop has answered. A handler in a process asks the
worker's process.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

from treadle.base.callables import check_may_block
from treadle.base.timing import Duration
from treadle.define.work import WorkTypeBase
from treadle.errors import TreadleError
from treadle.item import ItemState

if TYPE_CHECKING:
    from .context import Context

T = TypeVar("T")


class SyncServices(Protocol):
    """What `ctx.sync` asks of the engine."""

    def wait(self, request: Callable[[], Awaitable[T]]) -> T:
        """Make a request of a Context where it can be awaited, and block this thread until it is answered."""
        ...

    def sync_transaction(self, ctx: Context, session: Any = None) -> AbstractContextManager[Any]:
        """As `Context.transaction`, for a handler in a thread."""
        ...


class SyncContext:
    """The requests of a Context, for a handler that is a plain function. Each blocks until it is answered."""

    __slots__ = ("_ctx", "_services")

    def __init__(self, ctx: Context, services: SyncServices) -> None:
        self._ctx = ctx
        self._services = services

    def states(self, ids: Sequence[str]) -> list[ItemState | None]:
        """As `Context.states`."""
        answer: list[ItemState | None] = self._ask("states", ids)
        return answer

    @overload
    def results(
        self, work_type: WorkTypeBase[T], /, *, return_exceptions: Literal[False] = False
    ) -> list[T]: ...
    @overload
    def results(
        self, work_type: WorkTypeBase[T], /, *, return_exceptions: bool
    ) -> list[T | TreadleError]: ...
    @overload
    def results(self, ids: Sequence[str], *, return_exceptions: bool = False) -> list[Any]: ...
    def results(self, ids: Sequence[str] | WorkTypeBase, *, return_exceptions: bool = False) -> list[Any]:
        """As `Context.results`."""
        answer: list[Any] = self._ask("results", ids, return_exceptions=return_exceptions)
        return answer

    def result_of(self, work_type: WorkTypeBase[T]) -> T:
        """As `Context.result_of`."""
        answer: T = self._ask("result_of", work_type)
        return answer

    def claim(self, key: str, ttl: Duration | None = None) -> bool:
        """As `Context.claim`."""
        answer: bool = self._ask("claim", key, ttl)
        return answer

    def extend(self, seconds: Duration) -> datetime | None:
        """As `await Context.extend`: the new end of this attempt."""
        until: datetime | None = self._ask("extend", seconds)
        return until

    @overload
    def transaction(self) -> AbstractContextManager[Any]: ...
    @overload
    def transaction(self, *, session: Callable[..., T]) -> AbstractContextManager[T]: ...
    def transaction(self, *, session: Callable[..., Any] | None = None) -> AbstractContextManager[Any]:
        """As `Context.transaction`: `with ctx.sync.transaction() as tx: tx.execute(...)`.

        On SQLite `tx` is the `sqlite3.Connection`. On PostgreSQL it is a `BlockingConnection`. With a
        `sessionmaker` of SQLAlchemy as `session` it is a session.
        """
        check_may_block("ctx.sync.transaction()", "`async with ctx.transaction()`")
        return self._services.sync_transaction(self._ctx, session)

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call the async method of the Context, and wait for its answer. In a process it is overridden."""
        check_may_block(f"ctx.sync.{method}()", f"`await ctx.{method}(...)`")
        return self._services.wait(lambda: getattr(self._ctx, method)(*args, **kwargs))


class BlockingConnection:
    """A connection of asyncpg for a handler that is a plain function. The methods have the arguments of
    asyncpg's, and block."""

    __slots__ = ("_connection", "_wait")

    def __init__(self, connection: Any, wait: Callable[[Callable[[], Awaitable[Any]]], Any]) -> None:
        self._connection = connection
        self._wait = wait

    def execute(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return self._call("execute", query, *args, timeout=timeout)

    def executemany(
        self, command: str, args: Sequence[Sequence[Any]], *, timeout: float | None = None
    ) -> Any:
        return self._call("executemany", command, args, timeout=timeout)

    def fetch(self, query: str, *args: Any, timeout: float | None = None) -> list[Any]:
        rows: list[Any] = self._call("fetch", query, *args, timeout=timeout)
        return rows

    def fetchrow(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return self._call("fetchrow", query, *args, timeout=timeout)

    def fetchval(self, query: str, *args: Any, column: int = 0, timeout: float | None = None) -> Any:
        return self._call("fetchval", query, *args, column=column, timeout=timeout)

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        check_may_block(f"{method}() of ctx.sync.transaction()", "`async with ctx.transaction()`")
        return self._wait(lambda: getattr(self._connection, method)(*args, **options))


def blocking_connection(connection: Any, wait: Callable[[Callable[[], Awaitable[Any]]], Any]) -> Any:
    """Return what a plain function can use of a driver's connection: the connection itself, or a blocking one
    if the driver is async."""
    if inspect.iscoroutinefunction(getattr(connection, "execute", None)):
        return BlockingConnection(connection, wait)
    return connection
