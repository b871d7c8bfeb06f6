"""Core: what a client and the workers of one process share. It connects when it is first needed."""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol

from treadle.backend import Backend, ChecksUnopened, is_in_memory, placed, store_name
from treadle.base.ids import in_slot
from treadle.base.loop_mark import LoopMark, keep_for_ever
from treadle.define.signature import Handler
from treadle.define.work_type import defined_in
from treadle.doers.base import BaseDoer
from treadle.errors import DefinitionError, Stopped
from treadle.flow_control import OnUnhandledGroup
from treadle.handler.telemetry import Telemetry
from treadle.item import Changed, Item, Lease, Ref, Wake
from treadle.logs.lines import WARNING, log_line
from treadle.metrics import Metrics
from treadle.submit_middleware import SubmitMiddleware

from .guarded_telemetry import GuardedTelemetry, StoreCalls
from .hooks import Hooks, Phase
from .registry import AnyType, Registry
from .schedule.fire import FiredItems
from .schedule.scheduler import Scheduler
from .settings import Settings
from .store_retry import retry_unavailable, wait_briefly
from .submit.build_item import ItemBuilder
from .submit.submitter import Submitter
from .tasks import Tasks
from .timers import StoreClock
from .upkeep.samples import BacklogSampler
from .upkeep.statistics import Statistics
from .wait.announce import Announcer
from .wait.waiters import NoWorkerNotice, Waiters
from .wait.wakeups import WakeUps

if TYPE_CHECKING:
    from .wait.unwatched_groups import UnwatchedGroups


class PortionRunner(Protocol):
    """Runs an item of a bulk action: see `treadle.operate.bulk_portion`."""

    def __call__(self, core: Core, lease: Lease, /) -> Awaitable[Any]:
        """Change a portion of the items. Returns how to settle it: a `PendingSettlement`. `DecodeError`."""
        ...


class LocalRuntime(Protocol):
    """A running worker of this process, as the core and the client know it."""

    def add(self, type: AnyType) -> None:
        """Run this type too, if the worker has a handler for it and serves it."""

    def rebind(self, type: AnyType) -> None:
        """Another function runs this type from now on: see `replace_handler`."""

    def offers(self, type: str, queue: str, tenant: str) -> str | None:
        """The worker's id if it serves the queue and the tenant, and could start an item of this type right
        now: for `skip_queue`."""

    def take(self, leases: tuple[Lease, ...], sent: float) -> None:
        """Run items that were stored already leased to this worker. `sent`: when that was asked for."""

    def recover_leases(self) -> None:
        """Ask the store for leases that this worker does not know of: an answer was lost."""


class Core:
    """submit_middleware, telemetry: what a submit goes through. telemetry: attempts too.

    run_portion: runs the items of bulk actions. None: workers do not claim them."""

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        hooks: Hooks,
        metrics: Metrics,
        *,
        submit_middleware: Sequence[SubmitMiddleware] = (),
        telemetry: Telemetry | None = None,
        run_portion: PortionRunner | None = None,
    ) -> None:
        self.backend = backend
        self.run_portion = run_portion
        self.on_problem: Any = None
        """Whom to tell of problems, if there is one."""
        self.watch_problems: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Tells it, while a worker runs: see `treadle.operate.tell`."""
        self.submit_middleware = tuple(submit_middleware)
        self.telemetry = None if telemetry is None else GuardedTelemetry(telemetry, hooks)
        self.store_calls = StoreCalls(self.telemetry)
        several = placed(backend)
        self.by_root = several is not None and several.by_root
        """Over several stores, the ids of items say where they are: see `treadle.base.ids`."""
        self.submits_plainly = not submit_middleware and telemetry is None
        self.settings = settings
        self.hooks = hooks
        hooks.outage.store = store_name(backend)
        self.metrics = metrics
        self.registry = Registry(settings.codec, self._warn_unregistered, settings.mask)
        self.item_builder = ItemBuilder(
            self.registry, settings, backend, functools.partial(_warn_local, self)
        )
        self.announcer = Announcer(
            hooks,
            metrics,
            self.registry,
            settings.clock,
            backend,
            lambda reading: self.tasks.start(reading, "announce"),
        )
        self.store_clock = StoreClock(backend, settings.clock, every=60.0)
        """For events of operators. They refresh it, if events are listened to. And for statistics."""
        self.statistics = Statistics(backend, settings, hooks, metrics, self.store_clock)
        self.samples = BacklogSampler(backend, settings, hooks, self.store_clock)
        self._make_loop_parts()
        firing = FiredItems(
            self.item_builder, hooks, self.submit_middleware, self.telemetry, by_root=self.by_root
        )
        self.scheduler = Scheduler(backend, settings, hooks, firing, self._fired)
        self.unwatched_groups: UnwatchedGroups | None = None
        self._on_unhandled_group: OnUnhandledGroup | None = None
        self.runtimes: list[LocalRuntime] = []
        self.strict_types: set[str] = set()
        """The types known here whose lanes are strict, by all their names: see `Demand.strict`."""
        self.worker_doer: BaseDoer | None = None
        """The doer of the first worker of this process, whether it runs or not: it is that of the types that
        have no doer of their own."""
        self.lingering: set[object] = set()
        """Runtimes that have stopped, but whose leases are kept through the backend."""
        self.stop_workers: list[Callable[[], Awaitable[None]]] = []
        """The `stop` methods of the workers that run, for `close`."""
        self._opening: asyncio.Lock | None = None
        self._opening_mark: LoopMark | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that it is connected on; None before, and from the beginning of a close."""
        self._mark: LoopMark | None = None
        """Where it is connected, until it is closed."""
        self._closing: asyncio.Future[None] | None = None

    def _make_loop_parts(self) -> None:
        """Make what belongs to one event loop."""
        settings, hooks = self.settings, self.hooks
        self.tasks = Tasks(self._task_died)
        notice = NoWorkerNotice(self.backend, self.registry, settings.clock)
        self.waiters = Waiters(self.backend, settings, hooks, self.tasks, notice, self.announcer.unannounced)
        self.wakeups = WakeUps(
            self.backend, hooks, self.tasks, settings.generate_id(), settings.clock, self.waiters.waits
        )
        self.submitter = Submitter(
            self.backend,
            settings,
            self.tasks,
            self.wakeups,
            self.recover_leases,
            self.store_calls,
            self.metrics.process,
        )
        self.wakeups.listen(self._receive, claims=False)

    def _task_died(self, error: BaseException, name: str) -> None:
        phase: Phase = "settle" if name == "settle" else "claim" if name == "claim" else "signal"
        self.hooks.report(error, phase, f"the {name} task ended")

    def _warn_unregistered(self, type: AnyType) -> None:
        """Warn if a worker runs here and the code of the type is here, but the type is not registered."""
        if type.has_handler and self.runtimes:
            log_line(
                WARNING,
                f"{type.name!r} is not registered, so no worker of this process runs it: add it to "
                "work=[...], or call app.register. Until a worker has it, its items wait",
            )

    def _fired(self, stored: Sequence[Item], changing: Sequence[Item], at: float) -> None:
        """A schedule has stored these items, at this instant of the store's clock, and others have changed
        earlier ones."""
        self.announcer.queued(stored, at)
        self.wakeups.ready((item.type, item.queue) for item in (*stored, *changing))

    # -- connecting ------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Open the backend and subscribe to wake-ups. Idempotent; concurrent callers share one attempt.
        `Stopped` while it is being closed. If the event loop that it was connected on is gone, start anew."""
        loop = asyncio.get_running_loop()
        if self.loop is loop:
            return
        check_main_guard()
        self.leave_dead_loop()
        self._check_free()
        if self._opening is None or self._opening_mark is None or self._opening_mark.is_gone:
            self._opening, self._opening_mark = asyncio.Lock(), LoopMark()
        async with self._opening:
            if self.loop is not loop:
                await retry_unavailable(self._open, self.settings)
                self.loop, self._mark = loop, LoopMark()

    def check_unopened(self, tx: object) -> None:
        """Before it connects for a submit in the caller's transaction `tx` (None: in none): refuse one that
        would keep the backend from being opened. In the thread of that transaction."""
        if tx is not None and isinstance(self.backend, ChecksUnopened):
            self.backend.check_unopened(tx)

    def _check_free(self) -> None:
        if self._closing is not None:
            raise Stopped("the app")
        if self.loop is not None:
            raise RuntimeError(
                "this app is in use on another event loop: make one per loop, or use app.sync from threads "
                "(after app.sync was used, app.sync.close() ends the loop of its own)"
            )

    @property
    def is_gone(self) -> bool:
        """Whether the event loop that it is connected on is closed, or runs in the parent of this process."""
        return self._mark is not None and self._mark.is_gone

    def live_loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that it is connected on, if that still exists, in this process. `Stopped` while it
        is being closed."""
        if self.is_gone:
            return None
        if self._closing is not None:
            raise Stopped("the app")
        return self.loop

    def leave_dead_loop(self) -> None:
        """If the event loop that it is connected on is closed, or runs in the parent of this process, leave
        everything behind that belongs to that loop."""
        mark = self._mark
        if mark is None or not mark.is_gone:
            return
        if mark.is_inherited:
            _silence_tasks(mark.loop)
            keep_for_ever((self.tasks, self.wakeups, self.submitter, self.waiters, *self.runtimes))
            self.lingering.clear()
            self.statistics.forget()
        self.loop = self._mark = self._opening = self._closing = None
        self.runtimes.clear()
        self.stop_workers.clear()
        self.backend.abandon()
        self._make_loop_parts()
        self.scheduler.leave_dead_loop()
        self.announcer.leave_dead_loop()
        if self._on_unhandled_group is not None:
            self.watch_groups(self._on_unhandled_group)

    async def _open(self) -> None:
        await self.backend.open()
        try:
            await self.wakeups.open()
        except BaseException:
            await self.backend.close()
            raise

    async def close(self) -> None:
        """Stop the workers, finish what is being written, then close the backend. Calls that come meanwhile
        raise `Stopped`."""
        if not self.is_gone:
            for stop in tuple(self.stop_workers):
                await stop()
        if self.is_gone:
            self.leave_dead_loop()
            await self.close_backend_if_unused()
        elif self._closing is not None:
            await asyncio.shield(self._closing)
        elif self.loop is not None:
            loop, self.loop = self.loop, None
            closing = self._closing = loop.create_future()
            try:
                await self._close()
                self._mark = None
            except BaseException:
                self.loop = loop  # it is not closed yet
                raise
            finally:
                self._closing = None
                closing.set_result(None)

    async def _close(self) -> None:
        await wait_briefly(self.submitter.flush())
        await wait_briefly(self.announcer.flush())
        await wait_briefly(self.wakeups.flush())
        self.wakeups.close()
        self.waiters.close()
        await self.tasks.cancel(keep=("settle",) if self.lingering else ())
        self._opening = None
        await self.close_backend_if_unused()

    async def close_backend_if_unused(self) -> None:
        opening = self._opening is not None and self._opening.locked()
        if self.loop is None and not opening and not self.lingering:
            await self.tasks.cancel()
            await self.backend.close()

    # -- wake-ups --------------------------------------------------------------------------------------

    def _receive(self, wake: Wake) -> None:
        if wake.items or wake.groups or wake.everything:
            self.waiters.receive(wake)
        if wake.awaited and self.unwatched_groups is not None:
            self.unwatched_groups.awaited(wake.awaited)
        if wake.asking and (awaited := self.waiters.waited(wake.asking)):
            self.wakeups.answer(awaited)

    def watch_groups(self, hook: OnUnhandledGroup) -> None:
        """Call `hook` for groups that end with a value that no process waits for."""
        from .wait.unwatched_groups import UnwatchedGroups  # few programs need it

        self._on_unhandled_group = hook
        self.unwatched_groups = UnwatchedGroups(
            self.backend,
            self.registry,
            self.settings,
            self.hooks,
            self.tasks,
            self.waiters,
            self.wakeups,
            hook,
        )

    # -- workers of this process -----------------------------------------------------------------------

    def local(self) -> LocalRuntime | None:
        """A running worker of this process, if there is one: for `skip_queue`."""
        return self.runtimes[0] if self.runtimes else None

    def learn(self, *given: AnyType | ModuleType | Iterable[AnyType]) -> None:
        """Register types. Workers that are running run them from now on."""
        self.registry.add(*given)
        for type in self.registry.types.values():
            for name in (type.name, *type.aliases):
                self.hooks.listen(name, type.options.get("on_event"))
            for runtime in self.runtimes:
                runtime.add(type)

    def recover_leases(self) -> None:
        """A worker of this process may hold leases that it does not know of."""
        runtime = self.local()
        if runtime is not None:
            runtime.recover_leases()


def replace_handler(core: Core, type: AnyType, handler: Handler | None) -> None:
    """Let this function run a type instead of its handler. None: the handler again."""
    core.registry.replace(type, handler)
    for runtime in core.runtimes:
        runtime.rebind(type)


def _silence_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """The tasks of the parent's loop never end in a forked process: that is no error to log at its exit."""
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def _warn_local(core: Core, type: AnyType) -> None:
    """Warn if other processes cannot import the code of a type, and no worker of this process runs it."""
    place = defined_in(type)
    runs_here = bool(core.runtimes) or (
        core.worker_doer is not None and core.registry.get(type.name) is not None
    )
    if place is not None and not runs_here and not is_in_memory(core.backend):
        log_line(
            WARNING,
            f"{place}() defines {type.name!r}, so other processes cannot import it, and no worker of "
            "this process runs it: define it at the top of a module that the app of a worker imports. "
            "Until a worker has it, its items wait",
        )


def event_time(core: Core, changed: Changed) -> float:
    """When these items were changed, by the store's clock: not before what the store did to them so far."""
    known = [max(item.queued_at, item.claimed_at or 0.0, item.started_at or 0.0) for item in changed.items]
    return max([core.store_clock.now(), *known])


def announce_ended(core: Core, changed: Changed, gone: Iterable[Ref] = ()) -> None:
    """Wake the waiters of these items, of the groups that have ended, and of removed groups (`gone`). Wake
    workers for what may start now."""
    items = [(item.tenant, item.id) for item in changed.items]
    core.announcer.effects(changed.effects, event_time(core, changed))
    groups = [*((group.tenant, group.id) for group in changed.effects.ended_groups), *gone]
    core.wakeups.ended(items, groups, here=True)
    if changed.effects.doomed:
        core.wakeups.ready()
    else:
        lines = {(item.type, item.queue) for item in changed.effects.released}
        # Those that were handed out may have held a strict lane.
        lines |= {(item.type, "") for item in changed.items if item.claimed_at is not None}
        core.wakeups.ready(lines)


UNGUARDED: Final = 78
"""The exit code of such a process, by which the parent knows what happened."""


def check_main_guard() -> None:
    """Raise DefinitionError in a process that is only being started to run handlers."""
    # Not imported here: few programs need it.
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is None:
        return
    # The standard library sets this while a new process imports the main module.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        atexit.register(_exit)
        raise DefinitionError(
            'put the code that starts this program under `if __name__ == "__main__":`. A process for a '
            'handler with run_in="process" imports the main module, and must not run the program once more'
        )


def _exit() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(UNGUARDED)


def new_id(core: Core, slot: int) -> str:
    """A new id, by root in this slot."""
    id = core.settings.generate_id()
    return in_slot(id, slot) if core.by_root else id
