"""Runtime: the parts of one running worker, put together."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextlib import AsyncExitStack

from treadle.doers import Task
from treadle.engine.core import Core
from treadle.engine.settings import WorkerSettings
from treadle.engine.store_retry import wait_briefly
from treadle.events import WorkerStarted, WorkerStopped, WorkerStopping
from treadle.logs.lines import WARNING, error_text, log_line

from .after_commit import AfterCommit
from .attempt import AttemptRunner
from .bound_types import BoundTypes
from .claim import Claimer
from .context_services import EngineServices
from .decide import FailureDecider
from .dispatch import Dispatcher
from .heartbeat import HeartbeatLoop
from .held import HeldLease, HeldLeases
from .loops import Shutdown, WorkerLoops
from .permits import on_full_calls
from .settle import SettlementBuilder, Settler
from .undecodable import UndecodableItems
from .worker_report import WorkerReport

SETTLE_CHECK = 0.05
"""Seconds between two looks at whether all is settled. The first comes when the settler has nothing to do."""


class Runtime:
    def __init__(self, core: Core, worker: WorkerSettings, on_drain: Callable[[], None]) -> None:
        """on_drain: called, perhaps several times, when someone has asked the worker to stop."""
        self._core = core
        self._worker = worker
        self._lifespan = AsyncExitStack()
        self.lingers = False
        """It has stopped, but handlers still run in threads, or are not settled: it keeps the worker's
        lease."""
        self._ending: asyncio.Future[None] | None = None
        failures = FailureDecider(core)
        self.held = held = HeldLeases()
        self._after_commit = after_commit = AfterCommit(core, held, self._wake_claimer)
        self.settler = Settler(core, held, SettlementBuilder(core, held, failures), after_commit)
        undecodable = UndecodableItems(core)
        self._services = EngineServices(
            core,
            worker.id,
            held,
            self.settler,
            lambda held, seconds: self.runner.extend(held, seconds),  # noqa: PLW0108  made below
        )
        self.runner = AttemptRunner(
            core,
            worker,
            self._services,
            self.settler,
            after_commit,
            failures,
            undecodable,
            self._forget,
            self._wake_claimer,
        )
        on_full = on_full_calls(core, self.settler)
        self._types = BoundTypes(
            core, worker, self._wake_claimer, self._give_back, on_full, self._wake_claimer
        )
        self._dispatcher = Dispatcher(
            core, worker, self._types, held, self.settler, self.runner, undecodable, self._wake_claimer
        )
        report = WorkerReport(core, worker, self._types, held, self.runner, self._dispatcher, undecodable)
        heartbeat = HeartbeatLoop(
            core,
            worker,
            held,
            self._types,
            self.runner,
            report,
            on_drain,
            lambda: self.claimer.ask_soon(),  # noqa: PLW0108  made below
        )
        self.claimer = Claimer(core, worker, self._types, held, self._dispatcher, heartbeat, report)
        after_commit.on_free = self.claimer.freed
        self.loops = WorkerLoops(
            core, worker, held, self._types, self.runner, heartbeat, self.claimer, self.is_quiet
        )
        # For the core, as a `LocalRuntime`:
        self.add, self.rebind, self.take = self._types.add, self._types.rebind, self._dispatcher.take
        self.recover_leases = self.claimer.recover_leases
        self._shutdown = Shutdown(self.loops, held, self._dispatcher, self.runner)

    # What the parts call before all of them exist.

    def _wake_claimer(self) -> None:
        self.claimer.wake()

    def _give_back(self, tasks: list[Task]) -> None:
        self._dispatcher.give_back_tasks(tasks, limited=not self._dispatcher.stopping)

    def _forget(self, held: HeldLease) -> None:
        self._dispatcher.forget(held)

    # -- start and stop --------------------------------------------------------------------------------

    @property
    def failed(self) -> asyncio.Future[None] | None:
        """Resolves, with the error, when a loop has died. None before the start."""
        return self.loops.failed

    async def start(self) -> None:
        worker = self._worker
        try:
            if worker.lifespan is not None:
                self._services.resources = await self._lifespan.enter_async_context(worker.lifespan())
            self._types.open()
            await self.loops.start()
        except BaseException:
            await self._close()
            raise
        self._core.hooks.emit(WorkerStarted(worker.id, self._core.settings.clock.now()))

    async def stop(self, drain: float) -> None:
        """Wait up to `drain` seconds for handlers to end. Even if the stop is cut short, what this worker was
        running is given back, or freed in the store. Items whose handlers still run in threads keep their
        leases and permits, and are settled when these threads end."""
        hooks, now, worker = self._core.hooks, self._core.settings.clock.now, self._worker.id
        hooks.emit(WorkerStopping(worker, now()))
        try:
            await self._shutdown.run(drain)
        finally:
            await self._close()
        hooks.emit(WorkerStopped(worker, now()))

    async def _close(self) -> None:
        """End everything that was started, except threads that run a handler."""
        async with self._lifespan:
            self.lingers = self.has_left_threads()
            threads = self.runner.pools.threads
            self._after_commit.log.flush()
            await self.loops.close(keep_lease=(lambda: threads.busy) if self.lingers else None)
            removing = () if self.lingers else (self._remove_worker(),)
            await asyncio.gather(self._core.statistics.send_last(), *removing)
            for doer in self._types.doers():
                await doer.close()
            await self.runner.pools.close()
            self._types.close()
            if self.lingers:
                self._linger()

    # -- threads that are left behind ------------------------------------------------------------------

    def has_left_threads(self) -> bool:
        """Whether handlers still run in threads, or have ended there and are not settled."""
        return self.runner.pools.threads.busy or bool(self._unsettled())

    def _unsettled(self) -> list[HeldLease]:
        """The attempts that were left behind in threads and are not settled yet."""
        return [held for held in self._shutdown.left if held.lease.token in self.held.by_token]

    def _linger(self) -> None:
        """Keep the worker's lease until the handlers that still run in threads have ended and are settled."""
        log_line(
            WARNING,
            f"worker {self._worker.id} has stopped, but handlers of it still run in threads: their items "
            "stay leased until they have ended and are settled, or the process has ended",
        )
        self._core.lingering.add(self)
        ended, threads = asyncio.Event(), self.runner.pools.threads
        wake = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, ended.set)
        # It waits from now on: a task that began while the event loop ends would never end.
        self._ending = ending = asyncio.create_task(self._end_lingering(ended))
        # Nothing but the end of the loop cancels it, and that cancels all tasks before any of them goes on.
        self.runner.pools.loop_ends = lambda: ending.cancelling() > 0
        threads.when_idle(functools.partial(self._call_on_loop, wake))

    def _call_on_loop(self, wake: Callable[[], object]) -> None:
        try:
            wake()
        except RuntimeError:  # the loop is closed: the lease lapses
            self._give_up_lingering()

    def _give_up_lingering(self) -> None:
        """Called in any thread."""
        self.lingers = False
        self.loops.forget_watchdog()
        self._core.lingering.discard(self)

    async def _end_lingering(self, ended: asyncio.Event) -> None:
        try:
            await ended.wait()
        except asyncio.CancelledError:  # the event loop ends first
            self.runner.pools.threads.when_idle(self._give_up_lingering)
            raise
        try:
            await self.settle_left()
            await self._core.statistics.send_last()
            await self.loops.end_watchdog()
            await self._remove_worker()
        finally:  # also if the event loop ends before that
            self.lingers = False
            self._core.lingering.discard(self)
        await self._core.close_backend_if_unused()

    async def settle_left(self) -> None:
        """Return when what the threads returned is settled, or was refused: the lease was lost. Like every
        settlement it is repeated until the store answers."""
        if tasks := {task for held in self._unsettled() if (task := (held.batch or held).task) is not None}:
            await asyncio.wait(tasks)
        while self._unsettled():
            await self.settler.flush()
            await asyncio.sleep(SETTLE_CHECK)

    async def _remove_worker(self) -> None:
        failed = "could not remove the worker from the store; its lease will lapse"
        try:
            if not await wait_briefly(self._core.backend.remove_worker(self._worker.id)):
                log_line(WARNING, f"{failed}: the store does not answer")
        except Exception as error:  # noqa: BLE001  nothing depends on it
            log_line(WARNING, f"{failed}: {error_text(error)}")

    # -- draining --------------------------------------------------------------------------------------

    def is_quiet(self) -> bool:
        """Whether nothing is running, or waiting to run or to be settled."""
        return not self.held.tokens() and not self.settler.waiting

    async def drain(self) -> None:
        """Return when everything that is due has run, and is settled: also what a limit holds back. If a loop
        has died, that may never come: its error is raised."""
        self._dispatcher.keep_denied("all")
        draining = asyncio.ensure_future(self._run_all())
        ends: set[asyncio.Future[None]] = {draining} if self.failed is None else {draining, self.failed}
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            (draining if draining in done else done.pop()).result()
        finally:
            draining.cancel()
            self._dispatcher.keep_denied("soon")

    async def _run_all(self) -> None:
        while True:
            await self._core.submitter.flush()
            await self._core.scheduler.idle()
            self._dispatcher.flush()
            await self._dispatcher.idle()
            taken = self.held.taken
            if self.is_quiet():
                await self.claimer.until_empty()
                if self.held.taken == taken:
                    return
            await asyncio.sleep(0)

    def offers(self, type: str, queue: str, tenant: str) -> str | None:
        worker = self._worker
        serves = (worker.queues is None or queue in worker.queues) and (
            worker.tenants is None or tenant in worker.tenants
        )
        can_start = serves and not self.claimer.recovering and self._dispatcher.could_start(type, tenant)
        return worker.id if can_start else None
