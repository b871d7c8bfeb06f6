"""Loops: the background loops of a running worker.

A loop that ends with an error ends the worker: a worker that silently stopped claiming, or sending
heartbeats, would be worse than none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from treadle.base.clock import SystemClock
from treadle.engine.core import Core
from treadle.engine.hooks import Phase
from treadle.engine.settings import WorkerSettings
from treadle.engine.store_retry import retry_unavailable
from treadle.engine.tasks import Tasks
from treadle.engine.upkeep.backlog import Backlog
from treadle.engine.upkeep.prune import Pruner
from treadle.engine.upkeep.redrive import Redriver
from treadle.errors import BackendError, UnsupportedError
from treadle.flow_control import OnBacklog, Redrive
from treadle.item import Wake

from .attempt import AttemptRunner
from .bound_types import BoundTypes
from .claim import Claimer
from .heartbeat import HeartbeatLoop, Watchdog
from .held import HeldLeases
from .loop_lag import measure_loop_lag

NEW_WORK = ("claim", "prune", "redrive", "backlog", "statistics")
"""The loops that end first when the worker stops: they begin something new."""
HEARTBEATS = ("renew", "heartbeat now")


class WorkerLoops:
    """is_quiet: whether the worker runs nothing and settles nothing."""

    def __init__(
        self,
        core: Core,
        worker: WorkerSettings,
        held: HeldLeases,
        types: BoundTypes,
        runner: AttemptRunner,
        heartbeat: HeartbeatLoop,
        claimer: Claimer,
        is_quiet: Callable[[], bool],
    ) -> None:
        self._core = core
        self._worker = worker
        self._held = held
        self._types = types
        self._timers = runner.timers
        self._heartbeat = heartbeat
        self._claimer = claimer
        self._is_quiet = is_quiet
        self.pruner = Pruner(core)
        self._tasks = Tasks(self._died)
        self._watchdog: Watchdog | None = None
        self._unlisten: Callable[[], None] | None = None
        self.failed: asyncio.Future[None] | None = None
        """Resolves, with the error, when a loop has died. None before the start."""

    async def start(self) -> None:
        core, worker = self._core, self._worker
        self._tasks = Tasks(self._died)  # in the context that the worker's lifespan has made
        self.failed = asyncio.get_running_loop().create_future()
        self._unlisten = core.wakeups.listen(self._receive)
        await retry_unavailable(self._heartbeat.begin, core.settings)
        self._tasks.start(self._heartbeat.run(), "renew")
        self._tasks.start(self._timers.run(), "timers")
        self._tasks.start(self._claimer.run(), "claim")
        self._tasks.start(self.pruner.run(), "prune")
        if core.statistics.enabled:
            self._tasks.start(core.statistics.run(worker.id), "statistics")
        if worker.redrive is not None:
            self._tasks.start(self.redriver(worker.redrive).run(), "redrive")
        if worker.on_backlog is not None:
            self._tasks.start(self._backlog(worker.on_backlog).run(), "backlog")
        core.scheduler.start(worker.id)
        self._watch_loop()

    def redriver(self, redrive: Redrive) -> Redriver:
        core = self._core
        if "operating" not in core.backend.capabilities:
            raise UnsupportedError("operating", type(core.backend).__name__)
        return Redriver(
            core,
            self._worker,
            redrive,
            idle=lambda: self._is_quiet() and self._claimer.idle,
            types=self._types.by_name,
        )

    def _backlog(self, hook: OnBacklog) -> Backlog:
        return Backlog(
            self._core,
            self._worker,
            hook,
            behind=lambda: self._claimer.behind,
            held=self._held.by_token,
            types=self._types.by_name,
        )

    def _watch_loop(self) -> None:
        """Measure how late the event loop is. Only a thread can notice that it is blocked. Both need the
        system clock."""
        if isinstance(self._core.settings.clock, SystemClock):
            self._tasks.start(
                measure_loop_lag(self._core.metrics.process, self._core.hooks.outage), "loop lag"
            )
            self._watchdog = Watchdog(self._core, self._worker.id, self._heartbeat)
            self._watchdog.start()

    def _receive(self, wake: Wake) -> None:
        if wake.everything or (wake.ready and self._is_for_us(wake)):
            self._claimer.wake()
        if wake.items and any(ref in self._held.refs for ref in wake.items):
            self._tasks.start(self._beat_now(), "heartbeat now")

    def _is_for_us(self, wake: Wake) -> bool:
        """Whether this worker could run what is ready."""
        queues, types = self._worker.queues, self._types
        if wake.queues and queues is not None and not any(queue in queues for queue in wake.queues):
            return False
        return not wake.types or any(types.has(type) for type in wake.types)

    async def _beat_now(self) -> None:
        """An item that runs here has ended elsewhere: the heartbeat's reply says which."""
        try:
            await self._heartbeat.beat()
        except BackendError as error:
            self._core.hooks.report(error, "renew")

    async def end_schedules(self) -> None:
        await self._core.scheduler.stop(self._worker.id)

    async def end(self, *names: str) -> None:
        await self._tasks.cancel(names)

    async def close(self, *, keep_lease: Callable[[], bool] | None = None) -> None:
        """End all loops, whether or not all were started. keep_lease: the watchdog goes on sending
        heartbeats, until `end_watchdog`, or until the event loop is closed and this is false."""
        if self._watchdog is not None and keep_lease is not None:
            self._watchdog.keep_lease = keep_lease
        else:
            await self.end_watchdog()
        if self._unlisten is not None:
            self._unlisten()
        await self._tasks.cancel()

    async def end_watchdog(self) -> None:
        if self._watchdog is not None:
            await self._watchdog.stop()

    def forget_watchdog(self) -> None:
        """As `end_watchdog`, where there is no event loop any more."""
        if self._watchdog is not None:
            self._watchdog.over.set()

    def _died(self, error: BaseException, name: str) -> None:
        phase: Phase = "renew" if name in HEARTBEATS else "claim"
        self._core.hooks.report(error, phase, f"the worker's {name} loop ended")
        if self.failed is not None and not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()  # it was reported: a worker that is not awaited need not ask for it
