"""Attempt: one attempt of one item, inside its own task.

    accept -> middleware -> handler -> decide -> hand the decision to the settler

Everything that stops an attempt from outside (a timeout, a deadline, a lost lease, a shutdown) goes through
`interrupt`. It notes the reason, shows it in the handler's context, and cancels the handler's task: at once,
after a grace period, or, for a shutdown, when its time is over. A cancelled handler that does not end soon is
settled without waiting for it, and its transaction is rolled back. It keeps its place in the doer until it
ends.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec

from treadle.backend import Placed, placed
from treadle.base.ids import BESIDE
from treadle.base.wording import MINUTE
from treadle.codec import Codec
from treadle.engine.core import Core
from treadle.engine.hooks import Hooks
from treadle.engine.settings import WorkerSettings
from treadle.engine.submit.build_item import NO_OPTIONS, timeout_of
from treadle.engine.tasks import Combiner, combined, finish
from treadle.engine.timers import Timers
from treadle.errors import AttemptTimeout, DeadlineExceeded, LeaseLost
from treadle.events import Resumed, Started, from_lease
from treadle.flow_control import Accept, AcceptInfo
from treadle.handler.context import created_results, set_interrupt
from treadle.item import Lease, Loss
from treadle.logs.kept_lines import RUNNING

from .after_commit import AfterCommit
from .context_services import EngineServices
from .decide import (
    NOT_STARTED_DELAY,
    Decision,
    Die,
    FailureDecider,
    GiveBack,
    failure_of,
    overrides,
    returned,
    undecidable,
)
from .handler_call import HandlerCaller
from .handler_pools import HandlerPools, caught
from .held import UNREAD, BatchCall, HeldLease, HeldSteps, Stop
from .settle import BACKOFF, Settler
from .traced import AttemptTracer
from .undecodable import UndecodableItems

CANCEL_GRACE = 1.0
"""Seconds that a cancelled handler may take to end. Then the attempt is settled without waiting for it."""

_SAME = 1e-3
"""Timeouts that differ by less are equal: items of a batch begin one after the other."""

STOPS_BATCH: frozenset[Stop] = frozenset(("timeout", "error"))
"""The reasons that stop the whole call of a batch. Others end one of its items."""


class AttemptRunner:
    """forget: called with an attempt that is over and never began.
    on_free: called when a thread or process is free again, some time after the attempt was settled."""

    def __init__(
        self,
        core: Core,
        worker: WorkerSettings,
        services: EngineServices,
        settler: Settler,
        after_commit: AfterCommit,
        failures: FailureDecider,
        undecodable_items: UndecodableItems,
        forget: Callable[[HeldLease], None],
        on_free: Callable[[], None],
    ) -> None:
        self._services = services
        self._clock = core.settings.clock
        self._hooks = core.hooks
        self._codec = core.settings.codec
        self._settler = settler
        self._after_commit = after_commit
        self._failures = failures
        self._undecodable = undecodable_items
        self._beginner = Beginner(core)
        self._forget = forget
        self.on_free = on_free
        self._accept = worker.accept
        self.declines = Declines()
        self._decline_delay = core.settings.poll_interval
        self._grace = core.settings.interrupt_grace
        self._loop: asyncio.AbstractEventLoop | None = None
        self.pools = HandlerPools(worker.threads, worker.processes)
        self.tracer = None if core.telemetry is None else AttemptTracer(core, core.telemetry)
        self._caller = HandlerCaller(
            services, worker.middleware, self.pools, self._settle_stopped_call, self.tracer, worker.scope
        )
        self._by_root = core.by_root
        self._is_bare = not worker.middleware and worker.scope is None and self.tracer is None
        """Whether nothing is to be called around a handler."""
        self._invoke: Callable[[HeldLease], Awaitable[Any]] = self._caller.invoke
        if self.tracer is not None:
            self._invoke = functools.partial(self.tracer.invoke, self._caller.invoke)
        self.call = self._caller.call
        self.new_context = self._caller.new_context
        self.timers = Timers(self._clock)

    # -- one attempt -----------------------------------------------------------------------------------

    async def run(self, held: HeldLease) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()  # a system call: not once per item
        held.task = asyncio.current_task(self._loop)
        if held.stop is not None:
            self._settle_stopped(held)
            return
        if self._accept is not None or held.input is UNREAD:
            with self._ends_if_stopped(held):
                await self.prepare(held)
            if held.over:
                return
        if held.bound.run_in == "process":
            await self.pools.processes().ready()  # before the timeout starts: a child starts slowly
        if not self.may_begin(held):
            return
        if not held.lease.begun and not await self.begin_in_store([held]):
            return
        if held.lease.has_steps:
            with self._ends_if_stopped(held):
                held.steps = await self._services.attempt_steps.read(held)
            if held.over:
                return
        self.begin(held)
        # Not in coroutines of their own: each would cost about a microsecond per item.
        bound = held.bound
        running = RUNNING.set(held) if bound.keeps_logs else None
        beside = BESIDE.set(held.lease.group_id) if self._by_root and held.batch is None else None
        try:
            if bound.is_direct and self._is_bare:
                args, kwargs = bound.arguments.call(held.input)
                value = await bound.fn(*args, **kwargs)
            else:
                value = await self._invoke(held)
        except BaseException as error:  # noqa: BLE001  also SystemExit and the like: the worker goes on
            if held.steps is not None:
                await _end_steps(held.steps)
            decision = self.decide(held, None, error)
        else:
            if held.steps is not None:
                await _end_steps(held.steps)
            decision = self.decide(held, value, None)
        if beside is not None:
            BESIDE.reset(beside)
        if running is not None:
            RUNNING.reset(running)  # the context is as it was, for the next attempt in this task
        if held.steps is not None and not held.over:
            try:
                await held.steps.flush()
            except BaseException as error:  # noqa: BLE001  as if the handler had raised it
                decision = self.decide(held, None, error)
        if decision is None or held.over:
            self._settler.abandon(held)
            return
        held.over = True
        if held.transaction is None:
            self._settler.decided(held, decision)
        else:
            await self._settler.decided_within(held, decision)

    async def run_in_pool(self, held: HeldLease) -> None:
        """As `run`, as soon as there is a thread or a process for the handler."""
        held.task = asyncio.current_task()
        held.arrive()
        with self._ends_if_stopped(held):
            async with self.pools.place(held.bound.run_in):
                await self.run(held)
        if held.stop is not None:
            self.on_free()

    @contextmanager
    def _ends_if_stopped(self, held: HeldLease) -> Generator[None]:
        """If the attempt is cancelled because it is being stopped, settle it and end. If something else than
        its handler fails, give it back."""
        try:
            yield
        except asyncio.CancelledError:
            if held.stop is None:
                raise
            self._settle_stopped(held)
        except Exception as error:
            if held.started:
                raise
            self.give_back_unbegun([held], error)

    def give_back_unbegun(self, items: Iterable[HeldLease], error: Exception) -> None:
        """Give items back that could not be begun because of this error: no thread could be started."""
        self._hooks.report(error, "claim", "could not begin an item; it is given back")
        for held in items:
            self._settle_unbegun(held, GiveBack(NOT_STARTED_DELAY))

    async def prepare(self, held: HeldLease) -> None:
        """Decode a large input and ask the `accept` hook. Either may settle the attempt: then it is over."""
        if held.input is UNREAD:
            self._settle_unbegun(held, await _read_input(held, self._codec, self._undecodable))
        if self._accept is not None and not held.over:
            accepted = await _ask_accept(held, self._accept, self._hooks)
            if not accepted:
                self.declines.add(held.lease.type, self._clock.monotonic())
            self._settle_unbegun(held, None if accepted else GiveBack(self._decline_delay))

    def _settle_unbegun(self, held: HeldLease, decision: Decision | None) -> None:
        if decision is not None and not held.over:
            held.over = True
            self._settler.decided(held, decision)

    async def begin_in_store(self, items: list[HeldLease]) -> list[HeldLease]:
        """Count the attempts as begun, where the claim did not. Returns those whose handlers may run."""
        try:
            lost = await self._beginner.begin([held.lease for held in items])
        except asyncio.CancelledError:
            for held in items:
                if held.stop is not None:
                    self._settle_stopped(held)
            raise
        for held in items:
            if (why := lost.get(held.lease.token)) is not None and not held.over:
                held.stop = why
                self._settle_stopped(held)
        return [held for held in items if not held.over]

    def may_begin(self, held: HeldLease) -> bool:
        """Whether the handler may start: the attempt is not over, its deadline has not passed, and the worker
        has not stopped."""
        lease = held.lease
        if lease.deadline is not None and held.store_time(self._clock.monotonic()) >= lease.deadline:
            held.stop = held.stop or "deadline"
            self._settle_stopped(held)
        return not held.over and not self.pools.stopped

    def begin(self, held: HeldLease) -> None:
        """Note that the handler starts now: metrics, event, timers."""
        held.started = started = self._clock.monotonic()
        lease, bound = held.lease, held.bound
        waited = lease.claimed_at + (started - held.sent) - (lease.ready_at or lease.due_at)
        bound.metrics.began(waited, lease.queue)
        if lease.losses:
            bound.metrics.began_again(lease.queue)
        hooks = self._hooks
        if (hooks.on_event is not None or hooks.by_type) and hooks.listening(lease.type):
            if lease.resumes:
                hooks.emit(from_lease(Resumed, lease, held.event_time(started)))
            hooks.emit(from_lease(Started, lease, held.event_time(started)))
        if bound.timeout is not None or held.stored is not NO_OPTIONS:
            self.start_timeout(held)

    def decide(self, held: HeldLease, value: Any, error: BaseException | None) -> Decision | None:
        """Turn the handler's return value or exception into a decision. None if the attempt is already
        settled, or its lease is lost."""
        if held.over:
            return None
        try:
            if held.stop is not None and overrides(held.stop, error, cancelled=_is_cancelled(held)):
                return self._decide_stopped(held)
            ended: Decision | None = None if held.steps is None else held.steps.decide(error)
            if ended is not None:
                return ended
            if error is not None:
                return self._failures.decide(held, error)
            created = created_results(held.ctx) if held.ctx is not None else ()
            return returned(held.lease, value, created, held.bound.strict)
        except BaseException as own:  # noqa: BLE001  a value or an error of the user's own class
            return undecidable(own)

    # -- stopping an attempt ---------------------------------------------------------------------------

    def watch_deadline(self, held: HeldLease) -> None:
        """Interrupt the attempt at its deadline, whether or not it has begun by then."""
        assert held.lease.deadline is not None
        left = held.lease.deadline - held.store_time(self._clock.monotonic())
        self._interrupt_after(left, held, "deadline")

    def start_timeout(self, held: HeldLease) -> None:
        """Interrupt the attempt at its timeout."""
        timeout = timeout_of(held.stored, held.bound.timeout)
        if timeout is not None:
            held.ends = held.started + timeout
            self._interrupt_after(timeout, held, "timeout")

    def extend(self, held: HeldLease, seconds: float) -> float | None:
        """Move the end of the timeout to `seconds` from now; for a batch, of all its items. Returns
        when the attempt ends at the latest, by the store's clock. `LeaseLost` if it is being stopped."""
        if held.over or held.stop not in (None, "stopping", "error"):
            raise LeaseLost(held.lease.id, held.stop or "completed")
        now = self._clock.monotonic()
        for each in (held,) if held.batch is None else held.batch.items:
            if each.ends and not each.over:
                each.timers[-1].cancel()
                each.timers = each.timers[:-1]
                each.ends = now + seconds
                self._interrupt_after(seconds, each, "timeout")
        deadline = held.lease.deadline
        if not held.ends:
            return deadline
        end = held.store_time(held.ends)
        return end if deadline is None else min(end, deadline)

    def _interrupt_after(self, seconds: float, held: HeldLease, reason: Stop) -> None:
        timer = self.timers.after(seconds, functools.partial(self.interrupt, held, reason))
        held.timers = (*held.timers, timer)

    def interrupt(self, held: HeldLease, reason: Stop) -> None:
        """Stop an attempt. The first reason stays, except that any other reason replaces `stopping` and
        `error`, and all but `stopping` replace a timeout that has not cancelled the handler yet.

        `error` means that the lease may have lapsed. A thread cannot be stopped, and its item must not be
        given to others while it runs: it goes on, and its outcome is refused if the lease is lost."""
        if held.over or held.stop == reason or not _may_replace(held, reason):
            return
        held.stop = reason
        if held.ctx is not None:
            set_interrupt(held.ctx.interrupt, reason)
        if reason == "stopping" or (reason == "error" and held.runs_in_thread):
            return
        grace = held.bound.timeout_grace if reason == "timeout" else self._grace
        if grace and held.started:
            self.timers.after(grace, functools.partial(self.cancel, held))
        else:
            self.cancel(held)

    def cancel(self, held: HeldLease) -> None:
        """Cancel the handler's task. After `CANCEL_GRACE` the attempt is settled without it."""
        if held.over:
            return
        held.cancelled = True
        batch = held.batch
        if not held.started:
            # It waits for its turn, for a thread, or for `accept`.
            self._settle_stopped(held)
            self._forget(held)
            if held.task is not None:
                held.task.cancel()
        elif batch is not None and held.stop in STOPS_BATCH:
            if batch.stop is None and batch.task is not None:
                batch.stop, batch.stopped_by = held.stop, held
                batch.task.cancel()
            self.timers.after(CANCEL_GRACE, functools.partial(self._settle_stopped, held))
        elif held.task is not None:
            held.task.cancel()
            self.timers.after(CANCEL_GRACE, functools.partial(self._settle_stopped, held))
        else:
            self._settle_stopped(held)

    def _settle_stopped_call(self, caller: HeldLease | BatchCall) -> None:
        """Settle the attempts of a call that is being stopped, although its thread goes on."""
        if caller.stop is not None:
            for held in caller.items if isinstance(caller, BatchCall) else (caller,):
                held.stop = held.stop or caller.stop
                self._settle_stopped(held)

    def _settle_stopped(self, held: HeldLease) -> None:
        """Settle an attempt that is being stopped, even if its handler still runs."""
        if held.over:
            return
        decision = self._decide_stopped(held)
        held.over = True
        if decision is None:
            self._settler.abandon(held)
        else:
            self._settler.decided(held, decision)

    def _decide_stopped(self, held: HeldLease) -> Decision | None:
        lease = held.lease
        match held.stop:
            case "timeout":
                return self._failures.decide(held, _timed_out(held))
            case "deadline":
                late = DeadlineExceeded(lease.id, lease.deadline or 0.0)
                return Die("expired", failure_of(late), late)
            case "stopping" | "error" | None:
                return GiveBack()
            case "taken" | "completed" | "cancelled" | "not_found" as why:
                self._after_commit.lost(held, why)
                return None


async def _end_steps(steps: HeldSteps) -> None:
    """End what is left of the steps, before the end of the attempt is decided."""
    with suppress(asyncio.CancelledError):  # it is being stopped: `decide` knows why
        await steps.end()


def _may_replace(held: HeldLease, reason: Stop) -> bool:
    """Whether this reason to stop an attempt replaces the one that it has, if any."""
    if held.stop == "timeout":
        return not held.cancelled and reason != "stopping"
    return held.stop in (None, "stopping", "error")


def _timed_out(held: HeldLease) -> AttemptTimeout:
    """The error of an attempt that was stopped by its timeout, or by that of another item of its batch."""
    own = max(0.0, held.ends - held.started)
    other = None if held.batch is None else held.batch.stopped_by
    if other is None or 0 < held.ends <= other.ends:
        return AttemptTimeout(held.lease.id, own)
    timeout = max(0.0, other.ends - other.started)
    if held.ends and own <= timeout + _SAME:
        return AttemptTimeout(held.lease.id, own)
    return AttemptTimeout(held.lease.id, timeout, stopped_by=other.lease.id)


def _is_cancelled(held: HeldLease) -> bool:
    """Whether the handler was cancelled, alone or with its batch."""
    return held.cancelled or (held.batch is not None and held.batch.stop is not None)


async def _read_input(held: HeldLease, codec: Codec, undecodable: UndecodableItems) -> Decision | None:
    """Decode the input in a thread."""
    read = functools.partial(held.bound.type.decode_input, held.lease.input, codec)
    value, error = await asyncio.to_thread(caught, read)
    if error is not None:
        return await undecodable.decide(held.lease, error)
    held.input = value
    return None


async def _ask_accept(held: HeldLease, accept: Accept, hooks: Hooks) -> bool:
    """Whether this worker accepts the item. If the hook raises, it is left to another worker."""
    lease = held.lease
    info = AcceptInfo(lease.id, lease.type, lease.group_id, lease.attempt, held.input)
    return await hooks.ask(accept, "accept", info, bool, otherwise=False)


STEP: Final = 5.0
"""Seconds of one step, in which declines are counted together."""


class Declines:
    """Counts the items of each type that the `accept` hook declined in the last minute."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, dict[str, int]]] = deque()
        """The beginning of each step, by the monotonic clock, and its counts by type. The newest is last."""

    def add(self, type: str, now: float) -> None:
        """An item of this type was declined."""
        if not self._steps or now - self._steps[-1][0] >= STEP:
            self._remove_old(now)
            self._steps.append((now, {}))
        counts = self._steps[-1][1]
        counts[type] = counts.get(type, 0) + 1

    def last_minute(self, now: float) -> dict[str, int]:
        """The counts of the last minute, by type."""
        self._remove_old(now)
        total: dict[str, int] = {}
        for _, counts in self._steps:
            for type, count in counts.items():
                total[type] = total.get(type, 0) + count
        return total

    def _remove_old(self, now: float) -> None:
        while self._steps and now - self._steps[0][0] > MINUTE:
            self._steps.popleft()


def _place(several: Placed, request: BeginRequest) -> int:
    return several.place_of_token(request.leases[0].token)


class BeginRequest(msgspec.Struct, eq=False):
    leases: Sequence[Lease]
    answer: asyncio.Future[Mapping[int, Loss]]


class Beginner:
    """Tells the store that handlers begin, for leases that have not begun with their claim.

    These items waited here (for their batch, for a permit), or were lost before. If this process dies before
    their handlers begin, they count no loss.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._combiner = combined(
            lambda: Combiner(self._write, core.tasks, name="begin"), placed(core.backend), _place
        )

    async def begin(self, leases: Sequence[Lease]) -> Mapping[int, Loss]:
        """Say that these begin. Returns the tokens that are lost: their handlers must not run."""
        waiting = [lease for lease in leases if not lease.begun]
        if not waiting:
            return {}
        answer: asyncio.Future[Mapping[int, Loss]] = asyncio.get_running_loop().create_future()
        self._combiner.add(BeginRequest(waiting, answer))
        return await answer

    async def _write(self, batch: list[BeginRequest]) -> None:
        tries = 0
        while batch := [request for request in batch if not request.answer.done()]:
            leases = [lease for request in batch for lease in request.leases]
            try:
                lost = await finish(self._core.backend.begin(leases))
            except Exception as error:  # noqa: BLE001  the handlers wait until the store answers
                tries += 1
                self._core.hooks.report(error, "claim", f"could not begin {len(leases)} item(s)")
                draw = self._core.settings.random.random
                await self._core.settings.clock.sleep(BACKOFF.delay(tries, draw))
                continue
            for request in batch:
                if not request.answer.done():
                    request.answer.set_result(lost)
