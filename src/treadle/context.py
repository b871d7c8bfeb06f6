"""Interrupt: how a handler learns that going on is pointless.

It is made lazily in all its parts, since almost no handler looks at it: until someone waits, it is
one attribute.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Literal, Protocol, TypeAlias, overload

from typing_extensions import TypeVar, Unpack

from .errors import InputError, LeaseLost
from .ids import check_name
from .item import ItemState, Lease
from .options import Options, check_options
from .result import G1, G2, G3, G4, G5, G6, G7, G8, Result, flatten
from .timing import Duration, seconds, to_datetime
from .work import Items

InterruptReason: TypeAlias = Literal[
    "taken",  # the lease was lost: another worker may be running the item
    "completed",  # an operator completed it
    "not_found",  # it was deleted
    "cancelled",
    "deadline",  # its whole life ran longer than it may
    "stopping",  # this worker is shutting down
    "error",  # the engine itself failed
]


class Interrupt:
    """Set once, with a reason, when this attempt should end.

    Async handlers may `await ctx.interrupt` (it gives the reason); those in threads may `wait()`.
    Either may look at `ctx.interrupt.reason`, or call `raise_if_set()` now and then.
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
        """Raise `LeaseLost`, with the reason, if this attempt should end."""
        if self.reason is not None:
            raise LeaseLost(self._item_id, self.reason)

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until it is set; False if `timeout` seconds passed first. Not for use on
        the event loop.
        """
        if self._event is None:
            self._event = threading.Event()
        # The event must be in place before the reason is looked at: `set` does it the other way round.
        return self.reason is not None or self._event.wait(timeout)

    def __await__(self) -> Generator[Any, None, InterruptReason]:
        if self.reason is not None:
            return self.reason
        future: asyncio.Future[InterruptReason] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(future)
        return (yield from future)

    def set(self, reason: InterruptReason) -> bool:
        """For the engine, on its event loop. The first reason stays; False if there was one."""
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


V = TypeVar("V")
A = TypeVar("A")

_LOGGER = logging.getLogger("treadle")


class ContextServices(Protocol):
    """What the engine does for contexts. One object serves every attempt of a worker."""

    @property
    def worker_id(self) -> str: ...

    @property
    def resources(self) -> Any:
        """What the app's lifespan yielded."""
        ...

    @property
    def keep(self) -> float:
        """How long a claimed key is held where `ttl` is not given, in seconds."""
        ...

    async def states(self, tenant: str, ids: Sequence[str]) -> list[ItemState | None]: ...

    async def results(self, tenant: str, ids: Sequence[str], *, return_exceptions: bool) -> list[Any]: ...

    async def claim(self, lease: Lease, key: str, ttl: float) -> bool: ...

    def transaction(self, ctx: Context) -> AbstractAsyncContextManager[Any]: ...


class Context:
    """What a handler is given: who it is, what it may ask, and how it says what happens next.

    A handler receives it when its first parameter is annotated `Context`.
    """

    __slots__ = ("_extra", "_interrupt", "_lease", "_log", "_log_fields", "_services", "created")

    def __init__(
        self,
        lease: Lease,
        services: ContextServices,
        log_fields: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        self._lease = lease
        self._services = services
        self._log_fields = log_fields
        self._interrupt: Interrupt | None = None
        self._extra: dict[str, Any] | None = None
        self._log: ContextLogger | None = None
        self.created: list[Result[Any, Any]] = []
        """Every Result made here, for the engine's check that it was returned."""

    # ---------------------------------------------------------------------------------- who it is

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
        """Which attempt this is: 1 for the first."""
        return self._lease.attempt

    @property
    def parent(self) -> str | None:
        """The id of the item whose handler queued this one, by `ctx.queue` or by `.next`."""
        return self._lease.parent

    @property
    def dependencies(self) -> tuple[str, ...]:
        """The ids it waited for: `await ctx.results(ctx.dependencies)` gives their values."""
        return self._lease.after

    @property
    def tenant(self) -> str:
        return self._lease.tenant

    @property
    def workflow(self) -> str | None:
        """The label that spans groups, inherited from the parent."""
        return self._lease.workflow

    @property
    def workflow_type(self) -> str | None:
        return self._lease.workflow_type

    @property
    def deadline(self) -> datetime | None:
        """When it has to have succeeded (UTC); the handler is cancelled then."""
        deadline = self._lease.deadline
        return None if deadline is None else to_datetime(deadline)

    @property
    def worker_id(self) -> str:
        return self._services.worker_id

    @property
    def resources(self) -> Any:
        """What the app's `lifespan` yielded: pools, clients, models."""
        return self._services.resources

    @property
    def extra(self) -> dict[str, Any]:
        """What middlewares put there, for this attempt."""
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
        """A logger whose records carry id, type, attempt, tenant, workflow and `log_context`."""
        if self._log is None:
            self._log = ContextLogger(_LOGGER, self._record_fields())
        return self._log

    def _record_fields(self) -> dict[str, Any]:
        lease = self._lease
        fields: dict[str, Any] = {
            "id": lease.id,
            "type": lease.type,
            "attempt": lease.attempt,
            "tenant": lease.tenant,
            "workflow": lease.workflow,
        }
        return fields if self._log_fields is None else {**fields, **self._log_fields()}

    # --------------------------------------------------------------------------- what happens next

    @overload
    def result(self, value: V, *, final: bool = ..., append: None = ...) -> Result[V, V]: ...
    @overload
    def result(self, value: V, *, final: bool = ..., append: Callable[[V | None], V]) -> Result[V, V]: ...
    @overload
    def result(self, value: V, *, final: bool = ..., append: Callable[[A | None], A]) -> Result[V, A]: ...
    def result(
        self, value: Any, *, final: bool = False, append: Callable[[Any], Any] | None = None
    ) -> Result[Any, Any]:
        """This item's value is `value`, and the group's too unless a later one takes its place.

        final: lock the group's value: whatever comes later is ignored.
        append: fold instead: the group's value becomes `append(old)`, `old` None if there is none.
            It runs as part of the settlement and may run more than once, so it is quick and pure.
        """
        if append is not None and not callable(append):
            raise InputError.of("append", append, "must be a function")
        return self._made(Result("value", value, final, append))

    @overload
    def queue(self, **options: Unpack[Options]) -> Result[None, None]: ...
    @overload
    def queue(self, a: Items[G1], /, **options: Unpack[Options]) -> Result[None, G1]: ...
    @overload
    def queue(self, a: Items[G1], b: Items[G2], /, **options: Unpack[Options]) -> Result[None, G1 | G2]: ...
    @overload
    def queue(
        self, a: Items[G1], b: Items[G2], c: Items[G3], /, **options: Unpack[Options]
    ) -> Result[None, G1 | G2 | G3]: ...
    @overload
    def queue(
        self, a: Items[G1], b: Items[G2], c: Items[G3], d: Items[G4], /, **options: Unpack[Options]
    ) -> Result[None, G1 | G2 | G3 | G4]: ...
    @overload
    def queue(
        self,
        a: Items[G1],
        b: Items[G2],
        c: Items[G3],
        d: Items[G4],
        e: Items[G5],
        /,
        **options: Unpack[Options],
    ) -> Result[None, G1 | G2 | G3 | G4 | G5]: ...
    @overload
    def queue(
        self,
        a: Items[G1],
        b: Items[G2],
        c: Items[G3],
        d: Items[G4],
        e: Items[G5],
        f: Items[G6],
        /,
        **options: Unpack[Options],
    ) -> Result[None, G1 | G2 | G3 | G4 | G5 | G6]: ...
    @overload
    def queue(
        self,
        a: Items[G1],
        b: Items[G2],
        c: Items[G3],
        d: Items[G4],
        e: Items[G5],
        f: Items[G6],
        g: Items[G7],
        /,
        **options: Unpack[Options],
    ) -> Result[None, G1 | G2 | G3 | G4 | G5 | G6 | G7]: ...
    @overload
    def queue(
        self,
        a: Items[G1],
        b: Items[G2],
        c: Items[G3],
        d: Items[G4],
        e: Items[G5],
        f: Items[G6],
        g: Items[G7],
        h: Items[G8],
        /,
        **options: Unpack[Options],
    ) -> Result[None, G1 | G2 | G3 | G4 | G5 | G6 | G7 | G8]: ...
    @overload
    def queue(self, *items: Items[G1], **options: Unpack[Options]) -> Result[None, G1]: ...
    def queue(self, *items: Items[Any], **options: Unpack[Options]) -> Result[Any, Any]:
        """Queue more work in this group; this item's own value is None.

        items: works, Results (what they describe happens too), or sequences of them.
        options: of the works named here, not of those inside Results.
        """
        nodes = flatten(items, "ctx.queue")
        return self._made(Result("queue", items=nodes, options=check_options(options, "ctx.queue")))

    def void(self) -> Result[None, None]:
        """No value, and nothing for the group."""
        return self._made(Result("void"))

    def _made(self, result: Result[Any, Any]) -> Result[Any, Any]:
        self.created.append(result)
        return result

    # ------------------------------------------------------------------------------ what it may ask

    async def states(self, ids: Sequence[str]) -> list[ItemState | None]:
        """The items as they stand, in the order of `ids`; None for an id nobody knows."""
        return await self._services.states(self._lease.tenant, ids)

    async def results(self, ids: Sequence[str], *, return_exceptions: bool = False) -> list[Any]:
        """The values of ended items, in the order of `ids`.

        A dead one raises `WorkFailed`; with `return_exceptions` the error stands in its place.
        """
        return await self._services.results(self._lease.tenant, ids, return_exceptions=return_exceptions)

    async def claim(self, key: str, ttl: Duration | None = None) -> bool:
        """Whether this item is the one that holds `key`: the first of its tenant to ask, for `ttl`
        seconds (default: the app's `keep`). A later attempt of the same item still holds it.
        """
        held = self._services.keep if ttl is None else seconds(ttl, field="ttl")
        return await self._services.claim(self._lease, check_name(key, field="key"), held)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A transaction on the backend's database: what is written in it, and the settlement of what
        the handler then returns, commit together or not at all.
        """
        return self._services.transaction(self)

    def __repr__(self) -> str:
        return f"<Context of {self.type} {self.id}, attempt {self.attempt}>"


class ContextLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the fields of one attempt to every record; `extra=` of a single call wins over them."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs
