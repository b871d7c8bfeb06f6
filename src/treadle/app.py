"""Treadle: a client and a worker in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, overload

from typing_extensions import TypeVar, Unpack

from treadle.backend import Backend
from treadle.base.timing import Duration
from treadle.client import Client, ClientSettings
from treadle.connect import Stores
from treadle.define.decorators import Definer
from treadle.define.work_type import MaybeAsync, WorkType, substitute_for
from treadle.doers import Doer
from treadle.engine.core import Core, replace_handler
from treadle.engine.registry import AnyType
from treadle.engine.settings import Lifespan
from treadle.flow_control import Accept, Backpressure, OnBacklog, Redrive
from treadle.handler.call_next import Middleware
from treadle.handler.context import Context
from treadle.handler.result import Result
from treadle.item import Lease
from treadle.schedule import Schedule
from treadle.worker import Worker

if TYPE_CHECKING:
    from treadle.sync import SyncApp

P = ParamSpec("P")
S = TypeVar("S")
G = TypeVar("G")


class Treadle(Client):
    """An app: `async with Treadle("sqlite:///work.db", work=[add]) as app:` submits work, runs it and waits.

    backend: a URL (see `treadle.connect`), a Backend, or several by name (docs/many-stores.md). The others
        are those of `Client` and `Worker`.
    """

    def __init__(
        self,
        backend: str | Backend | Stores = "memory://",
        *,
        work: Iterable[AnyType | ModuleType] = (),
        schedules: Iterable[Schedule] = (),
        tenant: str | None = None,
        worker_id: str | None = None,
        queues: Sequence[str] | None = None,
        tenants: Sequence[str] | None = None,
        doer: Doer | None = None,
        middleware: Sequence[Middleware] = (),
        accept: Accept | None = None,
        backpressure: Backpressure | None = None,
        on_backlog: OnBacklog | None = None,
        backlog_after: Duration = 30.0,
        backlog_every: Duration | None = None,
        redrive: Redrive | None = None,
        lifespan: Lifespan | None = None,
        threads: int = 32,
        processes: int | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        super().__init__(backend, work=work, schedules=schedules, tenant=tenant, **settings)
        self.worker = Worker(
            self,
            id=worker_id,
            queues=queues,
            tenants=tenants if tenant is None else [tenant],
            doer=doer,
            middleware=middleware,
            accept=accept,
            backpressure=backpressure,
            on_backlog=on_backlog,
            backlog_after=backlog_after,
            backlog_every=backlog_every,
            redrive=redrive,
            lifespan=lifespan,
            threads=threads,
            processes=processes,
        )
        self.work = Definer(register=self._core.learn)
        """`@app.work(...)`: define a work type and register it."""

    @property
    def sync(self) -> SyncApp:
        """The same methods for code that is not async: `app.sync.enqueue(add(1, 2)).result(timeout=5)`."""
        from treadle.sync import SyncApp  # many programs do not need it

        return SyncApp(self._sync_loop, self)

    async def start(self) -> None:
        """Connect and start the worker. Idempotent."""
        await self.worker.start()

    async def stop(self, drain: Duration | None = None) -> None:
        """Stop the worker (see `Worker.stop`) and close the backend. Idempotent."""
        await self.worker.stop(drain)
        for type in self._core.registry.replaced:
            replace_handler(self._core, type, None)
        await self.close()

    async def __aenter__(self) -> Treadle:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @overload
    def replace(
        self, type: WorkType[P, S, G], fn: Callable[P, MaybeAsync[S | Result[S, G]]], /
    ) -> Replacement: ...
    @overload
    def replace(
        self,
        type: WorkType[P, S, G],
        fn: Callable[Concatenate[Context, P], MaybeAsync[S | Result[S, G]]],
        /,
    ) -> Replacement: ...
    def replace(self, type: Any, fn: Callable[..., Any], /) -> Replacement:
        """Let `fn` run the items of a type instead of its handler, in this app: for tests. It is undone at
        the end of a `with` block, by `.undo()`, or when the app stops. Registers the type if need be.

        TypeError if its signature is not that of the type. It runs on the event loop if it is async, else in
        a thread.
        """
        handler = substitute_for(type, fn)
        self._core.learn(type)
        replace_handler(self._core, type, handler)
        return Replacement(self._core, type)

    def active(self) -> list[Lease]:
        """The leases of this process: the items that it runs or is about to run."""
        return self.worker.active()

    def stats(self) -> dict[str, float]:
        """A flat snapshot of the metrics: numbers by name."""
        return self.metrics.stats()


class Replacement:
    """What `app.replace(...)` returns: ends the replacement of a handler."""

    def __init__(self, core: Core, type: AnyType) -> None:
        self._core = core
        self._type = type

    def undo(self) -> None:
        """Let the handler of the type run its items again. Attempts that run go on."""
        replace_handler(self._core, self._type, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()
