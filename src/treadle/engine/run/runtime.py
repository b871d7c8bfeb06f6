"""Runtime: the stages of one running worker, and the loops that keep them going.

    claim      asks for work        (claim.py)        heart     keeps the lease     (lease.py)
    dispatch   hands it out         (dispatch.py)     alarm     timeouts, deadlines (alarm.py)
    run        calls handlers       (run.py)          watchdog  beats when blocked  (lease.py)
    desk       settles, announces   (desk.py)         prune     forgets the old     (prune.py)
                                                      schedule  fires what recurs   (schedule.py)
                                                      redrive   revives the dead    (redrive.py)

Loops are started here and ended here. One that dies takes the worker with it: a worker that silently stopped
claiming, or beating, would be worse than none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextlib import AsyncExitStack
from typing import Any, cast

from treadle.clock import SystemClock
from treadle.context import Context
from treadle.dependency import DEPENDENCY
from treadle.doers.base import BaseDoer, managed
from treadle.doers.limited import LimitedDoer
from treadle.engine.core import Core
from treadle.engine.hooks import LOGGER
from treadle.engine.registry import AnyType
from treadle.engine.settings import WorkerSettings
from treadle.engine.store_retry import briefly, patiently
from treadle.engine.tasks import Tasks
from treadle.engine.upkeep.backlog import Backlog
from treadle.engine.upkeep.prune import Pruner
from treadle.engine.upkeep.redrive import Redriver
from treadle.errors import BackendError, UnsupportedError
from treadle.events import WorkerStarted, WorkerStopped, WorkerStopping
from treadle.flow_control import BacklogWatch, BackpressureInfo, OnBacklog, Redrive
from treadle.item import Demand, Lease, Wake

from .attempt import CANCEL_GRACE, AttemptRunner
from .claim import Claimer, resolved
from .context_services import EngineServices
from .desk import Desk
from .dispatch import Dispatcher
from .heartbeat import HeartbeatLoop, Watchdog
from .held import BoundType, HeldLease, Stop
from .settle import GiveBack

TAKES_ON = ("claim", "prune", "redrive", "backlog")
"""The loops that end first: they begin something new."""


class Runtime:
    def __init__(self, core: Core, duty: WorkerSettings) -> None:
        settings = core.settings
        clock, draw = settings.clock, settings.random.random
        self._core = core
        self._duty = duty
        self._tasks = Tasks(self._died)
        self._bounds: dict[str, BoundType] = {}
        self._doers: dict[object, BaseDoer] = {}
        """The doers of types, as users gave them and as they are used."""
        self._stopping = False
        self._recovering = False
        """Lost answers are being asked for: nothing may be leased in the meantime."""
        self.services = EngineServices(core, duty.worker, self._find)
        self.desk = Desk(core, self._freed)
        self.services.settler = self.desk.settler
        self.runner = AttemptRunner(
            self.desk,
            self.services,
            clock,
            draw,
            middleware=duty.middleware,
            accept=duty.accept,
            decline_delay=settings.poll_interval,
            interrupt_grace=settings.interrupt_grace,
            threads=duty.threads,
            processes=duty.processes,
        )
        self.desk.fail = self.runner.failure
        self.dispatcher = Dispatcher(self.desk, self.runner, self._bounds, duty.doer, settings.codec)
        self.claimer = Claimer(
            core.backend,
            self,
            clock,
            core.hooks,
            draw,
            poll_interval=settings.poll_interval,
            lease=settings.lease,
        )
        self.heart = HeartbeatLoop(
            core.backend,
            self,
            clock,
            core.hooks,
            worker=duty.worker,
            lease=settings.lease,
            heartbeat=settings.heartbeat,
            types=lambda: (*self._bounds, DEPENDENCY.name),
        )
        self.pruner = Pruner(core.backend, clock, core.hooks)
        self._watchdog: Watchdog | None = None
        self._unlisten: Callable[[], None] | None = None
        self._lifespan = AsyncExitStack()
        self.failed: asyncio.Future[None] | None = None
        """Resolves, with an error, when a loop has died."""

    # -- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        try:
            await self._begin()
        except BaseException:
            await self._let_go()
            raise
        self._core.hooks.emit(WorkerStarted(self._duty.worker, self._core.settings.clock.now()))

    async def _begin(self) -> None:
        core, duty = self._core, self._duty
        if duty.lifespan is not None:
            self.services.resources = await self._lifespan.enter_async_context(duty.lifespan())
            self._tasks = Tasks(self._died)  # in the context that the lifespan has made
        self.failed = asyncio.get_running_loop().create_future()
        self._bind(duty.doer, "app")
        for type in core.registry.types.values():
            self.add(type)
        self._unlisten = core.wakeups.listen(self._heard)
        await patiently(self.heart.begin, core.settings)
        self._start(self.heart.run(), "renew")
        self._start(self.runner.alarm.run(), "alarm")
        self._start(self.claimer.run(), "claim")
        self._start(self.pruner.run(), "prune")
        if duty.redrive is not None:
            self._start(self._redriver(duty.redrive).run(), "redrive")
        if duty.on_backlog is not None:
            self._start(self._backlog(duty.on_backlog).run(), "backlog")
        core.scheduler.start(duty.worker)
        self._guard()

    def _start(self, loop: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.start(loop, name)

    def _redriver(self, redrive: Redrive) -> Redriver:
        core, duty = self._core, self._duty
        if "operating" not in core.backend.capabilities:
            raise UnsupportedError("operating", type(core.backend).__name__)
        return Redriver(
            core.backend,
            core.settings.clock,
            core.hooks,
            redrive,
            idle=lambda: self.quiet() and self.claimer.idle,
            moved=core.wakeups.ready,
            types=lambda: tuple(self._bounds),
            queues=duty.queues,
            tenants=duty.tenants,
            interval=core.settings.poll_interval,
        )

    def _backlog(self, hook: OnBacklog) -> Backlog:
        core, duty = self._core, self._duty
        return Backlog(
            core.backend,
            core.settings.clock,
            core.hooks,
            BacklogWatch(duty.backlog_after, duty.backlog_every),
            hook,
            behind=lambda: self.claimer.behind,
            active=lambda: len(self.desk.held),
            types=lambda: self._bounds,
            queues=duty.queues,
            tenants=duty.tenants,
            interval=core.settings.poll_interval,
        )

    def _guard(self) -> None:
        """A blocked loop can only be noticed from outside of it; with a clock of one's own there is none."""
        settings = self._core.settings
        if isinstance(settings.clock, SystemClock):
            self._watchdog = Watchdog(
                self.heart,
                self._core.backend.heartbeat_connection,
                worker=self._duty.worker,
                lease=settings.lease,
                heartbeat=settings.heartbeat,
            )
            self._watchdog.start()

    def add(self, type: AnyType) -> None:
        """Run this type too, if it is among this worker's and has a handler."""
        duty = self._duty
        wanted = duty.types is None or type.name in duty.types
        if not wanted or not type.has_handler or type.name in self._bounds:
            return
        core = self._core
        doer = duty.doer
        if "doer" in type.options:
            doer = self._own_doer(type)
        self._bounds[type.name] = BoundType(
            type, core.itemizer, core.settings, core.metrics.of(type.name), doer
        )
        self.claimer.wake()

    def _own_doer(self, type: AnyType) -> BaseDoer:
        """The doer of a type, bound once, however many types share it."""
        given = type.options["doer"]
        if given not in self._doers:
            mine = given.of_worker(self._duty.worker) if isinstance(given, LimitedDoer) else managed(given)
            self._bind(mine, type.name)
            self._doers[given] = mine
        return self._doers[given]

    def _bind(self, doer: BaseDoer, name: str) -> None:
        core = self._core
        if isinstance(doer, LimitedDoer) and "limits" not in core.backend.capabilities:
            raise UnsupportedError("limits", type(core.backend).__name__)
        doer.bind(core.backend, core.settings.clock, self._duty.worker, name)
        doer.on_free(self._freed)
        doer.on_error(self._attempt_failed)

    def _attempt_failed(self, error: Exception) -> None:
        self._core.hooks.report(error, "hook", "an attempt's task failed")

    async def stop(self, drain: float) -> None:
        """However it is cut short: what this worker was running is given back, or freed."""
        core = self._core
        core.hooks.emit(WorkerStopping(self._duty.worker, core.settings.clock.now()))
        self._stopping = True
        try:
            try:
                await self._wind_down(drain)
            finally:
                await self._give_back()
        finally:
            await self._let_go()
        core.hooks.emit(WorkerStopped(self._duty.worker, core.settings.clock.now()))

    async def _wind_down(self, drain: float) -> None:
        """Take on nothing more, and let end what runs."""
        await self._core.scheduler.stop(self._duty.worker)
        await self._tasks.cancel(TAKES_ON)
        self.dispatcher.flush()
        for active in list(self.desk.held.values()):
            self.runner.interrupt(active, "stopping")
        await self._drain(drain)

    async def _end(self, *names: str) -> None:
        await self._tasks.cancel(names)

    async def _drain(self, seconds: float) -> None:
        """Wait for handlers to end, no longer than that. In real time: a shutdown must end, also where a
        test owns the clock."""
        idle = asyncio.ensure_future(self.idle())
        try:
            await asyncio.wait({idle}, timeout=seconds)
        finally:
            idle.cancel()

    def quiet(self) -> bool:
        """Nothing is running, or waiting to run or to be settled."""
        return not self.desk.tokens() and not len(self.desk.settler)

    async def idle(self) -> None:
        """Return when handlers have ended and are settled."""
        for doer in {self._duty.doer, *(bound.doer for bound in self._bounds.values())}:
            await doer.idle()
        await self.desk.settler.flush()

    async def _give_back(self) -> None:
        """Give back what did not start, and what did not end in time."""
        await self._tasks.cancel(TAKES_ON)  # it would claim again what is given back
        self.dispatcher.give_back()
        unfinished = [active for active in self.desk.held.values() if not active.over]
        for active in unfinished:
            self.runner.interrupt(active, "stopping")  # a stop that was cut short has not said so yet
        running = {task for active in unfinished if (task := (active.carrier or active).task) is not None}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CANCEL_GRACE)
        for active in unfinished:
            if not active.over:
                active.over = True
                self.desk.decided(active, GiveBack())
        await briefly(self.desk.settler.flush())

    async def _let_go(self) -> None:
        """End everything that was started, whether or not all of it was."""
        async with self._lifespan:
            if self._watchdog is not None:
                await self._watchdog.stop()
            if self._unlisten is not None:
                self._unlisten()
            await self._tasks.cancel()
            await self._sign_off()
            for doer in {self._duty.doer, *(bound.doer for bound in self._bounds.values())}:
                await doer.close()
            await self.runner.close()

    async def _sign_off(self) -> None:
        lapses = "could not sign the worker off; its lease will lapse by itself"
        try:
            if not await briefly(self._core.backend.remove_worker(self._duty.worker)):
                LOGGER.warning("%s: the store does not answer", lapses)
        except Exception as error:  # noqa: BLE001  nothing depends on it
            LOGGER.warning("%s: %s", lapses, error)

    def _died(self, error: BaseException, name: str) -> None:
        # A loop that should have gone on for ever. What it was started for once (`look`) may fail.
        self._core.hooks.report(error, "claim", f"the worker's {name} loop ended")
        if self.failed is not None and not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()  # nobody has to ask for it: it was reported

    # -- what the claimer asks -------------------------------------------------------------------------

    def demand(self) -> Demand | None:
        duty = self._duty
        empty = Demand(
            worker=duty.worker,
            limit=0,
            queues=duty.queues,
            tenants=duty.tenants,
            unknown_grace=self._core.settings.unknown_type_grace,
        )
        return self.dispatcher.demand(empty)

    def take(self, leases: tuple[Lease, ...], sent: float) -> None:
        if not self._stopping:
            self.dispatcher.take(leases, sent)
            return
        for lease in leases:
            self.desk.refuse(lease, GiveBack())

    def offers(self, type: str) -> str | None:
        """This worker's id, if it could run an item of that type right now: for `skip_queue`."""
        bound = self._bounds.get(type)
        if self._stopping or self._recovering or bound is None or bound.type.batch is not None:
            return None
        return self._duty.worker if bound.doer.available() > 0 else None

    def lapsed(self) -> bool:
        return self.heart.silence() > self._core.settings.lease

    async def revive(self) -> None:
        await self.heart.beat()

    async def orphaned(self) -> bool:
        if self._core.submitter.leasing:
            return False  # the answers to come would be taken for lost ones
        sent = self._core.settings.clock.monotonic()
        self._recovering = True
        try:
            leases = await self._core.backend.unknown_leases(self._duty.worker, self.desk.tokens())
        finally:
            self._recovering = False
        self.take(tuple(leases), sent)
        return True

    async def pause(self) -> float:
        if self._duty.backpressure is None:
            return 0.0
        info = BackpressureInfo(self._core.metrics, len(self.desk.held))
        try:
            return await resolved(self._duty.backpressure(info))
        except Exception as error:  # noqa: BLE001  reported; pauses one interval
            self._core.hooks.report(error, "hook", "backpressure failed")
            return self._core.settings.poll_interval

    # -- what the heart asks ---------------------------------------------------------------------------

    def leases(self) -> Collection[Lease]:
        return [active.lease for active in self.desk.held.values() if not active.over]

    def lose(self, token: int, why: str) -> None:
        active = self.desk.held.get(token)
        if active is not None:
            self.runner.interrupt(active, cast("Stop", why))

    def lose_all(self, why: str) -> None:
        for active in list(self.desk.held.values()):
            self.runner.interrupt(active, cast("Stop", why))

    # -- wakes -----------------------------------------------------------------------------------------

    def _heard(self, wake: Wake) -> None:
        if wake.ready or wake.everything:
            self.claimer.wake()
        if wake.items and any(ref in self.desk.refs for ref in wake.items):
            self._tasks.start(self._look(), "look")

    async def _look(self) -> None:
        """Something that runs here has ended, says a wake: ask what became of it."""
        try:
            await self.heart.beat()
        except BackendError as error:
            self._core.hooks.report(error, "renew")

    def _freed(self) -> None:
        self.claimer.wake()

    def _find(self, ctx: Context) -> HeldLease | None:
        return next((active for active in self.desk.held.values() if active.ctx is ctx), None)
