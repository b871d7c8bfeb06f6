"""Core: what a client and a worker of one process share. It connects when it is first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from treadle.backend import Backend
from treadle.flow_control import OnUnhandledGroup
from treadle.item import Wake
from treadle.metrics import Metrics

from .hooks import LOGGER, Hooks, Phase
from .registry import AnyType, Registry
from .schedule.scheduler import Scheduler
from .settings import Settings
from .store_retry import briefly, patiently
from .submit.build_item import ItemBuilder
from .submit.submitter import Submitter
from .tasks import Tasks
from .wait import announce
from .wait.unwatched_groups import UnwatchedGroups
from .wait.waiters import Waiters
from .wait.wakeups import WakeUps

if TYPE_CHECKING:
    from .run.runtime import Runtime


class RunningWorker(Protocol):
    """A worker, as far as the core needs to know it."""

    @property
    def runtime(self) -> Runtime | None: ...


class Core:
    def __init__(self, backend: Backend, settings: Settings, hooks: Hooks, metrics: Metrics) -> None:
        self.backend = backend
        self.settings = settings
        self.hooks = hooks
        self.metrics = metrics
        self.registry = Registry(settings.codec)
        self.registry.on_unregistered = self._stranger
        self.itemizer = ItemBuilder(self.registry, settings)
        self.tasks = Tasks(self._task_died)
        self.wakeups = WakeUps(backend, hooks, self.tasks, settings.generate_id())
        self.submitter = Submitter(
            backend,
            self.tasks,
            sleep=settings.clock.sleep,
            draw=settings.random.random,
            ready=self.wakeups.ready,
            leases_unknown=self._adrift,
        )
        self.waiters = Waiters(backend, settings.clock, hooks, self.tasks, settings.poll_interval)
        self.scheduler = Scheduler(
            backend,
            settings,
            hooks,
            self.itemizer,
            announce_queued=lambda items: announce.queued(self, items, None),
            ready=self.wakeups.ready,
        )
        self.unhandled: UnwatchedGroups | None = None
        self._workers: list[RunningWorker] = []
        self._opening: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.wakeups.listen(self._heard)

    def _task_died(self, error: BaseException, name: str) -> None:
        phase: Phase = "settle" if name == "settle" else "claim" if name == "claim" else "signal"
        self.hooks.report(error, phase, f"the {name} task ended")

    def _stranger(self, type: AnyType) -> None:
        """A worker runs here, and it was not told of a type whose code is here too: most likely forgotten."""
        if type.has_handler and self.local() is not None:
            LOGGER.warning(
                "%r is not registered, so no worker of this process runs it: add it to work=[...], or call "
                "app.register. Until a worker has it, its items wait",
                type.name,
            )

    # -- connecting ------------------------------------------------------------------------------------

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop it is connected on, if it is."""
        return self._loop

    async def connect(self) -> None:
        """Open the backend and listen for signals. Idempotent, and once for callers that come together."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError(
                "this app is in use on another event loop: make one per loop, or use app.sync from threads"
            )
        if self._opening is None or self._loop is not None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._loop is not loop:
                await patiently(self._open, self.settings)
                self._loop = loop

    async def _open(self) -> None:
        await self.backend.open()
        try:
            await self.wakeups.open()
        except BaseException:
            await self.backend.close()
            raise

    async def close(self) -> None:
        """Finish what is being written, then let go."""
        if self._loop is None:
            return
        await briefly(self.submitter.flush())
        await briefly(self.wakeups.flush())
        self.wakeups.close()
        self.waiters.close()
        await self.tasks.cancel()
        self._loop = None
        self._opening = None
        await self.backend.close()

    # -- what signals mean here ------------------------------------------------------------------------

    def _heard(self, wake: Wake) -> None:
        if wake.items or wake.groups or wake.everything:
            self.waiters.receive(wake)
        if wake.awaited and self.unhandled is not None:
            self.unhandled.awaited(wake.awaited)
        if wake.asking and (awaited := self.waiters.waited(wake.asking)):
            self.wakeups.answer(awaited)

    def watch_groups(self, hook: OnUnhandledGroup) -> None:
        """Tell `hook` of groups that end with a value that nobody waits for."""
        self.unhandled = UnwatchedGroups(
            self.backend,
            self.registry,
            self.settings,
            self.hooks,
            self.tasks,
            waited=self.waiters.waited,
            ask=self.wakeups.ask,
            hook=hook,
        )

    # -- workers of this process -----------------------------------------------------------------------

    def employ(self, worker: RunningWorker) -> None:
        self._workers.append(worker)

    def learn(self, *given: AnyType | ModuleType | Iterable[AnyType]) -> None:
        """Register types; workers that are running run them from now on."""
        self.registry.add(*given)
        for type in self.registry.types.values():
            self.hooks.listen(type.name, type.options.get("on_event"))
            for worker in self._workers:
                if worker.runtime is not None:
                    worker.runtime.add(type)

    def _adrift(self) -> None:
        runtime = self.local()
        if runtime is not None:
            runtime.claimer.adrift()

    def local(self) -> Runtime | None:
        """A worker of this process that runs, if there is one: for `skip_queue`."""
        for worker in self._workers:
            if worker.runtime is not None:
                return worker.runtime
        return None
