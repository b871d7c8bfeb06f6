"""Worker: claims what it has handlers for, runs it, and settles it.

    claim -> dispatch -> run -> decide -> settle
      ^                                     |
      '------------- wake ------------------'        and beats, beside all of it

The stages live in `treadle.engine`; `treadle.engine.run.runtime` puts them together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from treadle.client import Client
from treadle.doers import Doer, unlimited
from treadle.doers.base import managed
from treadle.engine.registry import AnyType
from treadle.engine.run.runtime import Runtime
from treadle.engine.settings import Lifespan, Middleware, WorkerSettings
from treadle.errors import NotStarted
from treadle.flow_control import Accept, Backpressure, OnBacklog, Redrive
from treadle.ids import check_name
from treadle.item import Lease
from treadle.operator import core_of
from treadle.timing import Duration, seconds


class Worker:
    """Runs the work types of its client that have handlers.

    id: its name in the store; random unless given. Two live workers must not share one.
    types: only these; default all that the client knows and that have a handler.
    queues, tenants: only these; default all, fairly.
    doer: how many run at once, and in which order (see `treadle.doers`).
    middleware: `async def m(ctx, call_next)`, around each attempt, the first outermost.
    accept: asked before each attempt; False leaves the item to another worker.
    backpressure: asked before each claim; seconds to wait.
    on_backlog: told when it has been behind for `backlog_after` seconds, and again every `backlog_every`.
    redrive: which dead items to try again while there is nothing else to do.
    lifespan: an async context manager around the worker's life; what it yields is `ctx.resources`.
    threads, processes: how many sync handlers run at once in threads, and in processes.
    """

    def __init__(
        self,
        client: Client,
        *,
        id: str | None = None,
        types: Iterable[AnyType | str] | None = None,
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
    ) -> None:
        core = core_of(client)
        self.client = client
        self.id = core.settings.generate_id() if id is None else check_name(id, field="id")
        self._core = core
        self._duty = WorkerSettings(
            worker=self.id,
            types=None if types is None else frozenset(t if isinstance(t, str) else t.name for t in types),
            queues=_names(queues, "queues"),
            tenants=_names(tenants, "tenants"),
            doer=managed(doer if doer is not None else unlimited()),
            middleware=tuple(middleware),
            accept=accept,
            backpressure=backpressure,
            on_backlog=on_backlog,
            backlog_after=seconds(backlog_after, field="backlog_after"),
            backlog_every=None if backlog_every is None else seconds(backlog_every, field="backlog_every"),
            redrive=redrive,
            lifespan=lifespan,
            threads=threads,
            processes=processes,
        )
        self._runtime: Runtime | None = None
        self._changing = asyncio.Lock()
        core_of(client).employ(self)

    @property
    def running(self) -> bool:
        return self._runtime is not None

    @property
    def runtime(self) -> Runtime | None:
        """The engine of this worker while it runs."""
        return self._runtime

    async def start(self) -> None:
        """Begin to claim. Idempotent."""
        async with self._changing:
            if self._runtime is None:
                await self._core.connect()
                self._runtime = Runtime(self._core, self._duty)
                try:
                    await self._runtime.start()
                except BaseException:
                    self._runtime = None
                    raise

    async def stop(self, drain: Duration | None = None) -> None:
        """Claim nothing more, give handlers `drain` seconds to end, then give back what they were running,
        so that another worker starts at once. Idempotent. A start that is under way comes first."""
        async with self._changing:
            runtime, self._runtime = self._runtime, None
            if runtime is not None:
                grace = self._core.settings.drain if drain is None else seconds(drain, field="drain")
                await runtime.stop(grace)

    async def run(self, until: asyncio.Event | None = None) -> None:
        """Work until the event is set, or until cancelled, or until the engine fails; then stop."""
        await self.start()
        assert self._runtime is not None
        failed = self._runtime.failed
        assert failed is not None
        waiting = asyncio.ensure_future((until or asyncio.Event()).wait())
        either: set[asyncio.Future[Any]] = {waiting, failed}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
        finally:
            waiting.cancel()
            await self.stop()

    async def __aenter__(self) -> Worker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def drain(self) -> None:
        """Return when everything that is due has run, what it queued included, and is settled. What is due
        later is left alone."""
        runtime = self._runtime
        if runtime is None:
            raise NotStarted("the worker")
        while True:
            await self._core.submitter.flush()
            await self._core.scheduler.idle()
            runtime.dispatcher.flush()
            await runtime.idle()
            taken = runtime.desk.taken
            if runtime.quiet():
                await runtime.claimer.empty()
                if runtime.desk.taken == taken:
                    return
            await asyncio.sleep(0)

    def like(
        self,
        *,
        id: str,
        queues: Sequence[str] | None = None,
        tenants: Sequence[str] | None = None,
        doer: Doer | None = None,
    ) -> Worker:
        """A worker of the same client, set up as this one but for what is given."""
        worker = Worker(self.client, id=id)
        changes: dict[str, Any] = {"worker": worker.id}
        if queues is not None:
            changes["queues"] = _names(queues, "queues")
        if tenants is not None:
            changes["tenants"] = _names(tenants, "tenants")
        if doer is not None:
            changes["doer"] = managed(doer)
        worker._duty = msgspec.structs.replace(self._duty, **changes)
        return worker

    def active(self) -> list[Lease]:
        """The items in this worker's hands."""
        return [] if self._runtime is None else [active.lease for active in self._runtime.desk.held.values()]


def _names(given: Sequence[str] | None, field: str) -> tuple[str, ...] | None:
    if given is None:
        return None
    if isinstance(given, str):
        raise TypeError(f"{field} takes a list of names, as in {field}=[{given!r}]")
    return tuple(check_name(name, field=field) for name in given)
