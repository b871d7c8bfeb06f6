"""Worker: claims items that it has handlers for, runs them and settles them.

    claim -> dispatch -> attempt -> decide -> settle
      ^                                         |
      '---------------- wake-up ----------------'        and sends heartbeats meanwhile

The stages are in `treadle.engine.run`; its module `runtime` puts them together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from treadle.base.callables import check_callable, check_list, is_async
from treadle.base.ids import check_name, check_names
from treadle.base.loop_mark import LoopMark, forks
from treadle.base.timing import Duration, seconds
from treadle.client import Client, names_of
from treadle.doers import Doer, balanced
from treadle.doers.base import check_whole, managed
from treadle.engine import store_retry
from treadle.engine.registry import AnyType
from treadle.engine.settings import HandlerScope, Lifespan, WorkerSettings
from treadle.errors import InputError, NotStarted
from treadle.flow_control import Accept, Backpressure, OnBacklog, Redrive
from treadle.handler.call_next import Middleware
from treadle.item import Lease
from treadle.logs.lines import INFO, log_line
from treadle.operate.operator import core_of

if TYPE_CHECKING:
    from treadle.engine.run.runtime import Runtime

DEFAULT_CONCURRENCY = 200
"""How many items a worker runs at once without a doer of its own: what one dying process can harm."""

F = TypeVar("F")


class Worker:
    """Runs the work types of its client that have handlers.

    id: its name in the store; default random. Two live workers must not share one.
    types: only these; default all that the client knows and that have a handler.
    queues, tenants: only these; default all, in fair rotation.
    doer: how many run at once, and in which order (see `treadle.doers`).
    middleware: `async def m(ctx, call_next)`, around each attempt; the first is the outermost.
    accept: called before each attempt; False leaves the item to another worker.
    backpressure: called before each claim; returns seconds to wait.
    on_backlog: called when it has been behind for `backlog_after` seconds, and again every `backlog_every`.
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
        self._has_own_id = id is not None
        self._forks = forks()
        self.id = core.settings.generate_id() if id is None else check_name(id, field="id")
        self._core = core
        self._settings = WorkerSettings(
            id=self.id,
            types=None if types is None else frozenset(names_of(types)),
            queues=_names(queues, "queues"),
            tenants=_names(tenants, "tenants"),
            doer=managed(doer if doer is not None else balanced(DEFAULT_CONCURRENCY)),
            middleware=tuple(
                check_callable(each, "middleware") for each in check_list(middleware, "middleware", "timed")
            ),
            accept=_function(accept, "accept"),
            backpressure=_function(backpressure, "backpressure"),
            on_backlog=_function(on_backlog, "on_backlog"),
            backlog_after=seconds(backlog_after, field="backlog_after"),
            backlog_every=None if backlog_every is None else seconds(backlog_every, field="backlog_every"),
            redrive=redrive,
            lifespan=_lifespan(lifespan),
            threads=check_whole(threads, "threads"),
            processes=None if processes is None else check_whole(processes, "processes"),
        )
        core.worker_doer = core.worker_doer or self._settings.doer
        self._runtime: Runtime | None = None
        self._last: Runtime | None = None
        """The runtime that was stopped last."""
        self._changing = asyncio.Lock()
        self._changing_mark: LoopMark | None = None
        self._asked_to_stop = asyncio.Event()
        """Someone has asked it to stop, since its last start: `Client.drain_worker`."""
        self._stopping: asyncio.Task[None] | None = None
        """Stops it because of that."""

    @property
    def running(self) -> bool:
        return self._runtime is not None and not self._core.is_gone

    async def start(self) -> None:
        """Begin to claim. Idempotent."""
        self._leave_dead_loop()
        for name in sorted(self._settings.types or ()):
            self._core.registry.find(name)  # a misspelt name would run nothing
        async with self._changing:
            if self._runtime is None:
                await self._core.connect()
                if self._last is not None and self._last.lingers:
                    # Handlers still run in threads. Their leases belong to the id of the last start.
                    self._use_another_id()
                self._asked_to_stop = asyncio.Event()
                from treadle.engine.run.runtime import Runtime  # a program that only submits needs no worker

                self._runtime = Runtime(self._core, self._settings, self._stop_as_asked)
                self._core.runtimes.append(self._runtime)
                try:
                    await self._runtime.start()
                except BaseException:
                    self._core.runtimes.remove(self._runtime)
                    self._runtime = None
                    raise
                self._core.stop_workers.append(self.stop)

    def _leave_dead_loop(self) -> None:
        """If it ran on an event loop that is gone, it does not run any more. In a forked process it is
        another worker than that of the parent."""
        self._core.leave_dead_loop()
        if self._changing_mark is None or self._changing_mark.is_gone:
            self._changing, self._changing_mark = asyncio.Lock(), LoopMark()
        if self._runtime is not None and self._runtime not in self._core.runtimes:
            self._runtime = None
        if self._forks != forks():
            self._forks, self._last = forks(), None
            if not self._has_own_id:
                self._use_another_id()

    def _use_another_id(self) -> None:
        self.id = self._core.settings.generate_id()
        self._settings = msgspec.structs.replace(self._settings, id=self.id)

    async def stop(self, drain: Duration | None = None) -> None:
        """Claim nothing more and give handlers `drain` seconds to end. Then give back what they were running,
        so that another worker can start it at once. Idempotent. Waits for a start that is under way.

        A handler in a thread cannot be stopped. If it still runs, its item stays leased, and keeps its
        permits, until it ends or the process does. What it returns is settled if the event loop still runs
        then. Otherwise the item runs again.
        """
        self._leave_dead_loop()
        async with self._changing:
            runtime, self._runtime = self._runtime, None
            if runtime is not None:
                self._last = runtime
                self._core.runtimes.remove(runtime)
                self._core.stop_workers.remove(self.stop)
                grace = self._core.settings.drain if drain is None else seconds(drain, field="drain")
                await runtime.stop(grace)

    def _stop_as_asked(self) -> None:
        if not self._asked_to_stop.is_set():
            self._asked_to_stop.set()
            self._stopping = asyncio.ensure_future(self._log_and_stop())

    async def _log_and_stop(self) -> None:
        from treadle.engine.run.loops import who_asked  # as above

        log_line(INFO, f"worker {self.id} was asked to stop{await who_asked(self._core.backend, self.id)}")
        await self.stop()

    async def run(self, until: asyncio.Event | None = None) -> None:
        """Work until the event is set, until cancelled, until someone asks it to stop (`app.drain_worker`) or
        until a loop of the engine fails. Then stop."""
        await self.start()
        assert self._runtime is not None
        failed = self._runtime.failed
        assert failed is not None
        waiting = [asyncio.ensure_future(event.wait()) for event in (until, self._asked_to_stop) if event]
        ends: set[asyncio.Future[Any]] = {*waiting, failed}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
        finally:
            for each in waiting:
                each.cancel()
            await self.stop()

    async def __aenter__(self) -> Worker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def drain(self) -> None:
        """Return when everything that is due has run and is settled, including what it queued. Items that are
        due later are left alone. Raises the error of a loop of the engine that has failed."""
        if self._runtime is None:
            raise NotStarted("the worker")
        await self._runtime.drain()

    def active(self) -> list[Lease]:
        """The leases that this worker holds."""
        return [] if self._runtime is None else [held.lease for held in self._runtime.held.all()]


def copy_worker(
    worker: Worker,
    *,
    id: str,
    queues: Sequence[str] | None = None,
    tenants: Sequence[str] | None = None,
    doer: Doer | None = None,
    last_supervisor_beat: Callable[[], float] | None = None,
) -> Worker:
    """A worker of the same client with the same settings, except those given: for the command line."""
    copy = Worker(worker.client, id=id)
    changes: dict[str, Any] = {"id": copy.id, "last_supervisor_beat": last_supervisor_beat}
    if queues is not None:
        changes["queues"] = _names(queues, "queues")
    if tenants is not None:
        changes["tenants"] = _names(tenants, "tenants")
    if doer is not None:
        changes["doer"] = managed(doer)
    settings = msgspec.structs.replace(worker._settings, **changes)  # pyright: ignore[reportPrivateUsage]
    copy._settings = settings  # pyright: ignore[reportPrivateUsage]
    return copy


def set_scope(worker: Worker, scope: HandlerScope) -> None:
    """Enter `scope()` around each call of a handler of this worker, from its next start on: in the thread of
    the handler, if it has one. Not around handlers in processes. For modules that know a framework."""
    settings = msgspec.structs.replace(worker._settings, scope=scope)  # pyright: ignore[reportPrivateUsage]
    worker._settings = settings  # pyright: ignore[reportPrivateUsage]


def asked_to_stop(worker: Worker) -> asyncio.Event:
    """Set when someone has asked a worker that was started to stop, for the command line."""
    return worker._asked_to_stop  # pyright: ignore[reportPrivateUsage]


class LeaseTimes(NamedTuple):
    """Seconds that the processes of an app and their supervisor agree on."""

    lease: float
    heartbeat: float
    drain: float
    stop: float
    """For each step of a stop that needs the store."""
    longest_stop: float
    """In all for a step of many calls, as long as the store answers them."""


def lease_times(client: Client) -> LeaseTimes:
    """The times of a client, for the command line."""
    settings = core_of(client).settings
    stop, longest = store_retry.STOP_TIMEOUT, store_retry.LONGEST_STOP
    return LeaseTimes(settings.lease, settings.heartbeat, settings.drain, stop, longest)


def settings_of(worker: Worker) -> WorkerSettings:
    """The settings of a worker, for the command line."""
    return worker._settings  # pyright: ignore[reportPrivateUsage]


def _function(given: F | None, field: str) -> F | None:
    return None if given is None else check_callable(given, field)


def _lifespan(given: Lifespan | None) -> Lifespan | None:
    if is_async(_function(given, "lifespan")):
        raise InputError.of(
            "lifespan", given, "must return an async context manager: decorate it with @asynccontextmanager"
        )
    return given


def _names(given: Sequence[str] | None, field: str) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = check_names(given, field)
    if not names:
        raise InputError.of(field, given, f"would serve nothing: leave it out to serve all {field}")
    return names
