"""Context: what a handler is given. Interrupt: how it learns that its attempt should end. SyncContext:
`ctx.sync`, the requests for handlers that are plain functions."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias, overload

from typing_extensions import TypeVar

from treadle.base.callables import check_async, check_may_block
from treadle.base.headers import headers_of
from treadle.base.ids import check_name
from treadle.base.timing import Duration, to_datetime
from treadle.base.timing import seconds as _seconds
from treadle.define.condition import shown_names
from treadle.define.work import WorkTypeBase
from treadle.errors import LeaseLost, TreadleError
from treadle.item import ItemState, Lease
from treadle.logs.lines import LOGGER, ContextLogger, item_fields
from treadle.logs.unawaited import ContextCall, call_site

from .result import Result, ResultMaker
from .steps import AttemptSteps, StepRequests, SyncStepRequests

InterruptReason: TypeAlias = Literal[
    "taken",  # the lease was lost: another worker may run the item
    "completed",  # an operator completed the item
    "not_found",  # the item was deleted
    "cancelled",
    "deadline",  # the deadline of the item passed
    "timeout",  # this attempt has run for its `timeout`: it is cancelled after `timeout_grace`
    "stopping",  # this worker is shutting down
    "error",  # the worker could not renew its lease: another worker may run the item
]


class Interrupt:
    """Set once, with a reason, when this attempt should end.

    An async handler may `await ctx.interrupt`, which returns the reason. A handler in a thread may `wait()`.
    Both may read `ctx.interrupt.reason` or call `raise_if_set()` from time to time.

    Its futures and its event are made when first needed, since few handlers use them.
    """

    __slots__ = ("_event", "_item_id", "_waiters", "reason")

    def __init__(self, item_id: str = "") -> None:
        self.reason: InterruptReason | None = None
        self._item_id = item_id
        self._waiters: list[asyncio.Future[InterruptReason]] | None = None
        self._event: threading.Event | None = None

    def is_set(self) -> bool:
        return self.reason is not None

    __bool__ = is_set

    def raise_if_set(self) -> None:
        """Raise `LeaseLost` with the reason if this attempt should end."""
        if self.reason is not None:
            raise LeaseLost(self._item_id, self.reason)

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread, not an event loop's, until it is set. False after `timeout` seconds."""
        if self._event is None:
            self._event = threading.Event()
        # The event must exist before the reason is read: `_set` writes the reason before it reads the event.
        return self.reason is not None or self._event.wait(timeout)

    def __await__(self) -> Generator[Any, None, InterruptReason]:
        if self.reason is not None:
            return self.reason
        future: asyncio.Future[InterruptReason] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(future)
        return (yield from future)

    def _set(self, reason: InterruptReason) -> bool:
        if self.reason is not None:
            return False
        self.reason = reason
        if self._event is not None:
            self._event.set()
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(reason)
        return True

    def __repr__(self) -> str:
        return f"<Interrupt {self.reason or 'not set'}>"


def set_interrupt(interrupt: Interrupt, reason: InterruptReason) -> bool:
    """Set an interrupt, from the engine's event loop. The first reason stays. False if it was set before."""
    return interrupt._set(reason)  # pyright: ignore[reportPrivateUsage]  # for this package only


V = TypeVar("V")
A = TypeVar("A")


T = TypeVar("T")


class SyncServices(Protocol):
    """What `ctx.sync` asks of the engine."""

    def wait(self, request: Callable[[], Awaitable[T]]) -> T:
        """Make a request of a Context where it can be awaited, and block this thread until it is answered."""
        ...

    def sync_transaction(self, ctx: Context, session: Any = None) -> AbstractContextManager[Any]:
        """As `Context.transaction`, for a handler in a thread."""
        ...


class ContextServices(SyncServices, Protocol):
    """What contexts ask of the engine. One object serves every attempt of a worker."""

    @property
    def worker_id(self) -> str: ...

    @property
    def resources(self) -> Any:
        """What the app's lifespan yielded."""
        ...

    @property
    def keep(self) -> float:
        """How long a claimed key is kept if `ttl` is not given, in seconds."""
        ...

    def check_nested(self, what: str) -> None:
        """Raise UnsupportedError if the backend has no nested groups. `what` needs them."""
        ...

    def states(self, tenant: str, ids: Sequence[str]) -> Coroutine[Any, Any, list[ItemState | None]]: ...

    def results(
        self,
        tenant: str,
        ids: Sequence[str],
        *,
        return_exceptions: bool,
        of: WorkTypeBase | None = None,
    ) -> Coroutine[Any, Any, list[Any]]:
        """of: only the items of this type."""
        ...

    def result_of(self, tenant: str, ids: Sequence[str], of: WorkTypeBase) -> Coroutine[Any, Any, Any]: ...

    def claim(self, lease: Lease, key: str, ttl: float) -> Coroutine[Any, Any, bool]: ...

    def transaction(self, ctx: Context, session: Any = None) -> AbstractAsyncContextManager[Any]: ...

    def extend(self, lease: Lease, seconds: float) -> float | None: ...

    def steps(self, lease: Lease, what: str) -> AttemptSteps:
        """The steps of the attempt of this lease. `what`: the method of the Context that asks."""
        ...


class Extension:
    """The answer of `ctx.extend`. An async handler may await it, which returns `until`."""

    __slots__ = ("until",)

    def __init__(self, until: datetime | None) -> None:
        self.until = until
        """When this attempt ends at the latest (UTC). None: it has no timeout and no deadline."""

    def __await__(self) -> Generator[Any, None, datetime | None]:
        yield from ()
        return self.until

    def __repr__(self) -> str:
        return f"<Extension until {self.until}>"


class AttemptInfo:
    """What a handler can read about its item and its attempt: the properties of a Context."""

    __slots__ = ("_lease", "_services")

    _lease: Lease
    _services: ContextServices

    @property
    def id(self) -> str:
        """The item's id."""
        return self._lease.id

    @property
    def type(self) -> str:
        """The name of its work type."""
        return self._lease.type

    @property
    def group_id(self) -> str:
        """The group it belongs to: the id of its root item."""
        return self._lease.group_id

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1 for the first."""
        return self._lease.attempt

    @property
    def deferrals(self) -> int:
        """How often this handler has deferred the item."""
        return self._lease.deferrals

    @property
    def parent(self) -> str | None:
        """The id of the item whose handler queued this one, by `ctx.queue` or by `.next`."""
        return self._lease.parent

    @property
    def dependencies(self) -> tuple[str, ...]:
        """The ids it waited for: `await ctx.results(ctx.dependencies)` returns their values, and
        `await ctx.results(fetch)` those of one work type. That of a whole group is a `GroupRef`."""
        return shown_names(self._lease.after)

    @property
    def tenant(self) -> str:
        return self._lease.tenant

    @property
    def workflow(self) -> str | None:
        """A label that spans groups. Children inherit it."""
        return self._lease.workflow

    @property
    def workflow_type(self) -> str | None:
        return self._lease.workflow_type

    @property
    def headers(self) -> Mapping[str, str]:
        """What its submitter gave it to carry, read-only. The items that it queues carry it too."""
        return MappingProxyType(headers_of(self._lease.options))

    @property
    def deadline(self) -> datetime | None:
        """When the item must have succeeded (UTC). The handler is cancelled then."""
        deadline = self._lease.deadline
        return None if deadline is None else to_datetime(deadline)

    @property
    def worker_id(self) -> str:
        return self._services.worker_id

    @property
    def resources(self) -> Any:
        """What the app's `lifespan` yielded: pools, clients, models."""
        return self._services.resources


class Context(AttemptInfo, ResultMaker, StepRequests):
    """What a handler is given: facts about its item, requests to the store, and what happens next.

    A handler receives it if its first parameter is annotated `Context`.
    """

    __slots__ = ("_created", "_extra", "_interrupt", "_log", "_log_fields", "_trace_fields")

    def __init__(
        self,
        lease: Lease,
        services: ContextServices,
        log_fields: Callable[[], Mapping[str, Any]] | None = None,
        trace_fields: Mapping[str, str] | None = None,
    ) -> None:
        self._lease = lease
        self._services = services
        self._log_fields = log_fields
        self._trace_fields = trace_fields
        self._interrupt: Interrupt | None = None
        self._extra: dict[str, Any] | None = None
        self._log: ContextLogger | None = None
        self._created = []

    @property
    def extra(self) -> dict[str, Any]:
        """What middlewares stored for this attempt."""
        if self._extra is None:
            self._extra = {}
        return self._extra

    @property
    def interrupt(self) -> Interrupt:
        """Set, with a reason, when this attempt should end."""
        if self._interrupt is None:
            self._interrupt = Interrupt(self._lease.id)
        return self._interrupt

    @property
    def log(self) -> ContextLogger:
        """A logger whose records carry id, type, attempt, tenant, workflow, `log_context`, and the ids of the
        trace if there is telemetry."""
        if self._log is None:
            self._log = ContextLogger(LOGGER, self._record_fields())
        return self._log

    def _record_fields(self) -> dict[str, Any]:
        fields = item_fields(self._lease)
        if self._trace_fields is not None:
            fields |= self._trace_fields
        if self._log_fields is None:
            return fields
        return {**fields, **self._log_fields()}

    def extend(self, seconds: Duration) -> Extension:
        """Move the end of this attempt's `timeout` to `seconds` from now, but not past the deadline.
        `await ctx.extend(60)` returns the new end. A handler in a thread calls it without await.

        It has no effect if there is no timeout. `LeaseLost` if the attempt is being stopped already.
        """
        until = self._services.extend(self._lease, _seconds(seconds, field="seconds"))
        return Extension(None if until is None else to_datetime(until))

    # ----------------------------------------------------------------------- requests to the store

    @property
    def sync(self) -> SyncContext:
        """The same requests for a handler that is a plain function: `ctx.sync.results(ctx.dependencies)`."""
        return SyncContext(self, self._services)

    # Not `async def`: in a sync handler, a coroutine that is never awaited would pass for an answer.

    def states(self, ids: Sequence[str]) -> Coroutine[Any, Any, list[ItemState | None]]:
        """Return the items as they are now, in the order of `ids`. None for an unknown id. For `group(...)`:
        a state with the status of the whole group, `running` while it is open, and its value."""
        check_async("states")
        return self._services.states(self._lease.tenant, ids)

    @overload
    def results(
        self, work_type: WorkTypeBase[V], /, *, return_exceptions: Literal[False] = False
    ) -> Coroutine[Any, Any, list[V]]: ...
    @overload
    def results(
        self, work_type: WorkTypeBase[V], /, *, return_exceptions: bool
    ) -> Coroutine[Any, Any, list[V | TreadleError]]: ...
    @overload
    def results(
        self, ids: Sequence[str], *, return_exceptions: bool = False
    ) -> Coroutine[Any, Any, list[Any]]: ...
    def results(
        self, ids: Sequence[str] | WorkTypeBase, *, return_exceptions: bool = False
    ) -> Coroutine[Any, Any, list[Any]]:
        """Return the values of ended items, in the order of `ids`. With a work type: of those dependencies
        that are of this type, in the order of `ctx.dependencies`. A group is of no type.

        For `group(...)`, and for an id of a `ctx.group`, it is the value of the group. A dead item raises
        `WorkFailed`, a failed group `GroupFailed`. With `return_exceptions` the list holds the error instead.
        """
        check_async("results")
        of = ids if isinstance(ids, WorkTypeBase) else None
        wanted = self.dependencies if isinstance(ids, WorkTypeBase) else ids
        return self._services.results(self._lease.tenant, wanted, return_exceptions=return_exceptions, of=of)

    def result_of(self, work_type: WorkTypeBase[V]) -> Coroutine[Any, Any, V]:
        """Return the value of the one dependency that is of this type. `InputError` if it is not one."""
        check_async("result_of")
        return self._services.result_of(self._lease.tenant, self.dependencies, work_type)

    def claim(self, key: str, ttl: Duration | None = None) -> Coroutine[Any, Any, bool]:
        """Claim `key` for this item. True for the first item of the tenant that asks, for `ttl` seconds
        (default: the app's `keep`), and for later attempts of that item. False for all others.
        """
        check_async("claim")
        held = self._services.keep if ttl is None else _seconds(ttl, field="ttl")
        asked = self._services.claim(self._lease, check_name(key, field="key"), held)
        return ContextCall(asked, f"ctx.claim({key!r})", call_site())

    @overload
    def transaction(self) -> AbstractAsyncContextManager[Any]: ...
    @overload
    def transaction(self, *, session: Callable[..., V]) -> AbstractAsyncContextManager[V]: ...
    def transaction(self, *, session: Callable[..., Any] | None = None) -> AbstractAsyncContextManager[Any]:
        """Open a transaction on the backend's database. What is written in it and the settlement of what the
        handler returns commit together or not at all.

        It gives the driver's connection. session: an `async_sessionmaker` of SQLAlchemy. Then it gives a
        session of it, on the same transaction: `async with ctx.transaction(session=Session) as session:`.
        """
        check_async("transaction")
        return self._services.transaction(self, session)

    def _check_nested(self, what: str) -> None:
        self._services.check_nested(what)

    def _steps(self, what: str) -> AttemptSteps:
        return self._services.steps(self._lease, what)

    def __repr__(self) -> str:
        return f"<Context of {self.type} {self.id}, attempt {self.attempt}>"


def created_results(ctx: Context) -> list[Result[Any, Any]]:
    """Return every Result that was made with `ctx`, for the check that the handler returned them."""
    return ctx._created  # pyright: ignore[reportPrivateUsage]  # for this package only


class SyncContext(SyncStepRequests):
    """The requests of a Context, for a handler that is a plain function. Each blocks until it is answered:
    by the worker's event loop for a handler in a thread, by the worker's process for one in a process."""

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

    def _steps(self, what: str) -> AttemptSteps:
        return self._ctx._steps(what)  # pyright: ignore[reportPrivateUsage]  # for this module only

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
