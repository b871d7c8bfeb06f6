"""Core: what a client and a worker of one process share. It connects when it is first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from treadle.backend import Backend
from treadle.item import Signal
from treadle.metrics import Metrics

from .hooks import LOGGER, Hooks, Phase
from .itemize import Itemizer
from .patience import briefly, patiently
from .registry import AnyType, Registry
from .schedule import Scheduler
from .settings import Settings
from .signals import Signals
from .submit import Submitter
from .tasks import Tasks
from .unhandled import OnUnhandledGroup, Unhandled
from .wait import Waiters

if TYPE_CHECKING:
    from .crew import Crew


class Employee(Protocol):
    """A worker, as far as the core needs to know it."""

    @property
    def crew(self) -> Crew | None: ...


class Core:
    def __init__(self, backend: Backend, settings: Settings, hooks: Hooks, metrics: Metrics) -> None:
        self.backend = backend
        self.settings = settings
        self.hooks = hooks
        self.metrics = metrics
        self.registry = Registry(settings.codec)
        self.registry.on_stranger = self._stranger
        self.itemizer = Itemizer(self.registry, settings)
        self.tasks = Tasks(self._task_died)
        self.signals = Signals(backend, hooks, self.tasks, settings.generate_id())
        self.submitter = Submitter(
            backend,
            self.tasks,
            sleep=settings.clock.sleep,
            draw=settings.random.random,
            ready=self.signals.ready,
            adrift=self._adrift,
        )
        self.waiters = Waiters(backend, settings.clock, hooks, self.tasks, settings.poll_interval)
        self.scheduler = Scheduler(self)
        self.unhandled: Unhandled | None = None
        self._workers: list[Employee] = []
        self._opening: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.signals.listen(self._heard)

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
            await self.signals.open()
        except BaseException:
            await self.backend.close()
            raise

    async def close(self) -> None:
        """Finish what is being written, then let go."""
        if self._loop is None:
            return
        await briefly(self.submitter.flush())
        await briefly(self.signals.flush())
        self.signals.close()
        self.waiters.close()
        await self.tasks.cancel()
        self._loop = None
        self._opening = None
        await self.backend.close()

    # -- what signals mean here ------------------------------------------------------------------------

    def _heard(self, signal: Signal) -> None:
        if signal.items or signal.groups or signal.everything:
            self.waiters.receive(signal)
        if signal.awaited and self.unhandled is not None:
            self.unhandled.awaited(signal.awaited)
        if signal.asking and (awaited := self.waiters.waited(signal.asking)):
            self.signals.answer(awaited)

    def watch_groups(self, hook: OnUnhandledGroup) -> None:
        """Tell `hook` of groups that end with a value that nobody waits for."""
        self.unhandled = Unhandled(
            self.backend,
            self.registry,
            self.settings,
            self.hooks,
            self.tasks,
            waited=self.waiters.waited,
            ask=self.signals.ask,
            hook=hook,
        )

    # -- workers of this process -----------------------------------------------------------------------

    def employ(self, worker: Employee) -> None:
        self._workers.append(worker)

    def learn(self, *given: AnyType | ModuleType | Iterable[AnyType]) -> None:
        """Register types; workers that are running run them from now on."""
        self.registry.add(*given)
        for type in self.registry.types.values():
            self.hooks.listen(type.name, type.options.get("on_event"))
            for worker in self._workers:
                if worker.crew is not None:
                    worker.crew.add(type)

    def _adrift(self) -> None:
        crew = self.local()
        if crew is not None:
            crew.claimer.adrift()

    def local(self) -> Crew | None:
        """A worker of this process that runs, if there is one: for `skip_queue`."""
        for worker in self._workers:
            if worker.crew is not None:
                return worker.crew
        return None
