"""Loops: the background loops of a running worker, and how they end.

A loop that ends with an error ends the worker: a worker that silently stopped claiming, or sending
heartbeats, would be worse than none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from treadle.backend import Backend, check_capable
from treadle.base.timing import SystemClock
from treadle.base.wording import one_line
from treadle.engine.core import Core
from treadle.engine.hooks import Phase
from treadle.engine.settings import WorkerSettings
from treadle.engine.store_retry import retry_unavailable, wait_briefly
from treadle.engine.tasks import Tasks
from treadle.engine.upkeep.backlog import Backlog
from treadle.engine.upkeep.prune import Pruner
from treadle.engine.upkeep.redrive import Redriver
from treadle.errors import BackendError
from treadle.flow_control import OnBacklog, Redrive
from treadle.item import Wake
from treadle.metrics import ProcessMetrics
from treadle.store.outage import StoreOutage

from .attempt import CANCEL_GRACE, AttemptRunner
from .bound_types import BoundTypes
from .claim import Claimer
from .dispatch import Dispatcher
from .heartbeat import HeartbeatLoop, Watchdog
from .held import HeldLease, HeldLeases

NEW_WORK = ("claim", "prune", "redrive", "backlog", "statistics", "samples", "problems")
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
        self._unlisten: tuple[Callable[[], None], ...] = ()
        self.failed: asyncio.Future[None] | None = None
        """Resolves, with the error, when a loop has died. None before the start."""

    async def start(self) -> None:
        core, worker = self._core, self._worker
        self._tasks = Tasks(self._died)  # in the context that the worker's lifespan has made
        self.failed = asyncio.get_running_loop().create_future()
        self._unlisten = (
            core.wakeups.listen(self._claimer.receive),
            core.wakeups.listen(self._receive, claims=False),
        )
        await retry_unavailable(self._heartbeat.begin, core.settings)
        self._tasks.start(self._heartbeat.run(), "renew")
        self._tasks.start(self._timers.run(), "timers")
        self._tasks.start(self._claimer.run(), "claim")
        self._tasks.start(self.pruner.run(), "prune")
        if core.statistics.enabled:
            self._tasks.start(core.statistics.run(worker.id), "statistics")
        if core.samples.enabled:
            self._tasks.start(core.samples.run(worker.id), "samples")
        if core.watch_problems is not None:
            self._tasks.start(core.watch_problems(), "problems")
        if worker.redrive is not None:
            self._tasks.start(self.redriver(worker.redrive).run(), "redrive")
        if worker.on_backlog is not None:
            self._tasks.start(self._backlog(worker.on_backlog).run(), "backlog")
        core.scheduler.start(worker.id)
        self._watch_loop()
        try:
            if core.scheduler.entries:
                await core.scheduler.began.wait()
        except BaseException:
            await self.end_schedules()
            raise

    def redriver(self, redrive: Redrive) -> Redriver:
        check_capable(self._core.backend, "operating")
        return Redriver(
            self._core,
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
        if wake.items and any(ref in self._held.refs for ref in wake.items):
            self._tasks.start(self._beat_now(), "heartbeat now")

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
        for unlisten in self._unlisten:
            unlisten()
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


LAG_INTERVAL = 0.5
"""Seconds between two measurements of the event loop."""


async def measure_loop_lag(metrics: ProcessMetrics, outage: StoreOutage) -> None:
    """Measure it until cancelled: by how much a short sleep is too long. outage: hears of it, since calls to
    the store fail while the loop is blocked."""
    time = asyncio.get_running_loop().time
    while True:
        due = time() + LAG_INTERVAL
        await asyncio.sleep(LAG_INTERVAL)
        lag = time() - due
        metrics.loop_lag.observe(lag)
        outage.note_lag(lag)


class Shutdown:
    """Lets handlers end, then gives back what did not end in time.

    A thread cannot be stopped. An item whose handler still runs in a thread is not given back: it keeps its
    lease, so that no other worker runs it beside that thread, and is settled when the thread has ended (see
    `Runtime`).
    """

    def __init__(
        self, loops: WorkerLoops, held: HeldLeases, dispatcher: Dispatcher, runner: AttemptRunner
    ) -> None:
        self._loops = loops
        self._held = held
        self._dispatcher = dispatcher
        self._runner = runner
        self.left: list[HeldLease] = []
        """The attempts that were left behind in threads."""

    async def run(self, drain: float) -> None:
        """Wait up to `drain` seconds for handlers to end. Then, even if the wait was cut short, give back
        what they were running."""
        self._dispatcher.stopping = True
        try:
            await self._wind_down(drain)
        finally:
            await self.give_back()

    async def _wind_down(self, drain: float) -> None:
        await self._loops.end_schedules()
        await self._loops.end(*NEW_WORK)
        self._dispatcher.give_back_waiting()  # it would not be started any more
        self._dispatcher.keep_denied("none")
        self._dispatcher.flush()
        for held in self._held.all():
            self._runner.interrupt(held, "stopping")
        # In real time: a shutdown must end even where a test owns the clock.
        idle = asyncio.ensure_future(self._dispatcher.idle())
        try:
            await asyncio.wait({idle}, timeout=drain)
        finally:
            idle.cancel()

    async def give_back(self) -> None:
        """Give back what did not start, and what did not end in time."""
        await self._loops.end(*NEW_WORK)  # they would claim what is given back
        self._dispatcher.give_back()
        unfinished = self._held.unfinished()
        for held in unfinished:
            self._runner.interrupt(held, "stopping")  # not done yet if the wait was cut short
        unfinished = self._leave_threads(unfinished)
        tasks = [task for held in unfinished if (task := (held.batch or held).task) is not None]
        running = dict.fromkeys(tasks)  # a batch has one
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CANCEL_GRACE)
        for held in unfinished:
            self._dispatcher.give_back_one(held)
        # Over a slow link it takes many round trips. Heartbeats go on meanwhile.
        await wait_briefly(self._dispatcher.settler.flush(), lambda: len(self._held.tokens()))

    def _leave_threads(self, unfinished: list[HeldLease]) -> list[HeldLease]:
        """Leave the items behind whose handlers run in threads. Returns the others."""
        self._runner.pools.stop()
        self.left = [held for held in unfinished if held.runs_in_thread]
        return [held for held in unfinished if held not in self.left]


AUDITS_READ: Final = 100
"""Audit entries that are read, the newest first."""
AUDIT_PATIENCE: Final = 2.0
"""Seconds after which the worker stops, whether or not the store has answered."""


async def who_asked(backend: Backend, worker: str) -> str:
    """Who wants a worker to stop, as far as the audit knows, for a log line: ` by ann@example.org (reason)`.
    Empty: not known."""
    try:
        async with asyncio.timeout(AUDIT_PATIENCE):
            page = await backend.audits(limit=AUDITS_READ)
    except Exception:  # noqa: BLE001  the line is shorter then
        return ""
    asked = (entry for entry in page.entries if entry.verb == "drain_worker" and entry.ids == (worker,))
    found = next(asked, None)
    if found is None:
        return ""
    return one_line(f" by {found.actor} ({found.reason})" if found.reason else f" by {found.actor}")
