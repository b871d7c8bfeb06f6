"""Attempt: one attempt of one item, inside its own task.

    accept -> middleware -> handler -> decide -> hand the decision to the settler

Everything that stops an attempt from outside (a timeout, a deadline, a lost lease, a shutdown) goes through
`interrupt`: it notes the reason, sets it in the handler's context and cancels its task. A handler that does
not end within a grace period is settled without waiting for it. It keeps its place in the doer until it ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from treadle.codec import Codec
from treadle.context import Context, ContextServices, created_results, set_interrupt
from treadle.engine.core import Core
from treadle.engine.settings import WorkerSettings
from treadle.engine.submit.build_item import timeout_of
from treadle.engine.timers import Timers
from treadle.errors import AttemptTimeout, DeadlineExceeded, LeaseLost
from treadle.events import Started, from_lease
from treadle.flow_control import AcceptInfo
from treadle.work_type import arguments_of

from .after_commit import AfterCommit
from .begin import Beginner
from .decide import Decision, Die, FailureDecider, GiveBack, failure_of, returned, undecidable, undecodable
from .handler_threads import HandlerThreads
from .held import LOST, UNREAD, HeldLease, Stop
from .settle import Settler

if TYPE_CHECKING:
    from .process_pool import ProcessPool

CANCEL_GRACE = 1.0
"""Seconds that a cancelled handler may take to end. Then the attempt is settled without waiting for it."""


class AttemptRunner:
    """forget: called with an attempt that is over and never began."""

    def __init__(
        self,
        core: Core,
        worker: WorkerSettings,
        services: ContextServices,
        settler: Settler,
        after_commit: AfterCommit,
        failures: FailureDecider,
        forget: Callable[[HeldLease], None],
    ) -> None:
        self._clock = core.settings.clock
        self._hooks = core.hooks
        self._codec = core.settings.codec
        self._services = services
        self._settler = settler
        self._after_commit = after_commit
        self._failures = failures
        self._beginner = Beginner(core)
        self._forget = forget
        self._middleware = worker.middleware
        self._accept = worker.accept
        self._decline_delay = core.settings.poll_interval
        self._grace = core.settings.interrupt_grace
        self._loop: asyncio.AbstractEventLoop | None = None
        self.executors = Executors(worker.threads, worker.processes)
        self.timers = Timers(self._clock)
        self.stopped = False
        """The worker has stopped. No task waits for a thread that still runs."""

    # -- one attempt -----------------------------------------------------------------------------------

    async def run(self, held: HeldLease) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()  # a system call: not once per item
        held.task = asyncio.current_task(self._loop)
        if held.stop is not None:
            self._settle_stopped(held)
            return
        if (self._accept is not None or held.input is UNREAD) and not await self.accepted(held):
            return
        if held.bound.run_in == "process":
            await self.executors.processes().ready()  # before the timeout starts: a child starts slowly
        if not self.may_begin(held):
            return
        if not held.lease.begun and not await self.begin_in_store([held]):
            return
        self.begin(held)
        # Not in coroutines of their own: each would cost about a microsecond per item.
        try:
            value = await self._invoke(held)
        except BaseException as error:  # noqa: BLE001  also SystemExit and the like: the worker goes on
            decision = self.decide(held, None, error)
        else:
            decision = self.decide(held, value, None)
        if decision is None or held.over:
            return
        held.over = True
        if held.transaction is None:
            self._settler.decided(held, decision)
        else:
            await self._settler.decided_within(held, decision)

    async def accepted(self, held: HeldLease) -> bool:
        """Decode a large input and ask the `accept` hook. False: the attempt is settled already."""
        try:
            refusal = await _read_input(held, self._codec) or await self._ask_accept(held)
        except asyncio.CancelledError:
            if held.stop is None:
                raise
            self._settle_stopped(held)
            return False
        if refusal is not None and not held.over:
            held.over = True
            self._settler.decided(held, refusal)
        return not held.over

    async def _ask_accept(self, held: HeldLease) -> Decision | None:
        if self._accept is None:
            return None
        lease = held.lease
        info = AcceptInfo(lease.id, lease.type, lease.group_id, lease.attempt, held.input)
        # If it raises, the item is left to another worker.
        answer = await self._hooks.ask(self._accept, "accept", info, bool, otherwise=False)
        return None if answer else GiveBack(self._decline_delay)

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
        """Whether the handler may start: the attempt is not over, and its deadline has not passed."""
        lease = held.lease
        if lease.deadline is not None and held.store_time(self._clock.monotonic()) >= lease.deadline:
            held.stop = held.stop or "deadline"
            self._settle_stopped(held)
        return not held.over

    def begin(self, held: HeldLease) -> None:
        """Note that the handler starts now: metrics, event, timers."""
        held.started = self._clock.monotonic()
        lease, at = held.lease, held.store_time(held.started)
        held.bound.metrics.began(at - lease.due_at)
        if self._hooks.listening(lease.type):
            self._hooks.emit(from_lease(Started, lease, at))
        self.start_timeout(held)

    def decide(self, held: HeldLease, value: Any, error: BaseException | None) -> Decision | None:
        """Turn the handler's return value or exception into a decision. None if the attempt is already
        settled, or its lease is lost."""
        if held.over:
            return None
        try:
            if held.stop is not None and _overrides(held.stop, error):
                return self._decide_stopped(held)
            if error is not None:
                return self._failures.decide(held, error)
            created = created_results(held.ctx) if held.ctx is not None else ()
            return returned(held.lease, value, created, held.bound.strict)
        except BaseException as own:  # noqa: BLE001  a value or an error of the user's own class
            return undecidable(own)

    # -- calling the handler ---------------------------------------------------------------------------

    def _invoke(self, held: HeldLease) -> Awaitable[Any]:
        bound = held.bound
        if bound.wants_context or self._middleware:
            fields = None if bound.log_context is None else functools.partial(bound.log_context, held.input)
            held.ctx = Context(held.lease, self._services, fields)
            if self._middleware:
                return self._call_through(held, 0, [])
        return self._call(held)

    async def _call_through(self, held: HeldLease, layer: int, seen: list[Any]) -> Any:
        """Call the handler through the middlewares. One that returns None keeps the handler's value, so that
        a middleware that forgets to return it loses nothing."""
        if layer == len(self._middleware):
            seen.append(await self._call(held))
            return seen[-1]
        assert held.ctx is not None
        call_next = functools.partial(self._call_through, held, layer + 1, seen)
        middleware = self._middleware[layer]
        answer: Any = middleware(held.ctx, call_next)
        if not inspect.isawaitable(answer):
            raise TypeError(
                f"a middleware must be async, as in `async def m(ctx, call_next)`: {middleware!r}"
            )
        value = await answer
        return seen[-1] if value is None and seen else value

    def _call(self, held: HeldLease) -> Awaitable[Any]:
        bound = held.bound
        args, kwargs = arguments_of(bound.type).call(held.input)
        if bound.wants_context:
            args = (held.ctx, *args)
        return self.call(held, args, kwargs)

    def call(self, held: HeldLease, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
        """Call the handler on the loop, in a thread or in a process, as its type says."""
        bound = held.bound
        if bound.is_async and bound.run_in == "loop":
            call: Awaitable[Any] = bound.fn(*args, **kwargs)
            return call
        if bound.run_in == "process":
            return self.executors.processes().run(bound.fn, args, kwargs, name=bound.name)
        if bound.run_in == "thread":
            return self._call_in_thread(held, args, kwargs)
        return _call_on_loop(bound.fn, args, kwargs)

    async def _call_in_thread(self, held: HeldLease, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A thread cannot be stopped: the attempt may be settled early, but the thread stays in use."""
        call = functools.partial(contextvars.copy_context().run, held.bound.fn, *args, **kwargs)
        held.thread = self.executors.threads.start(functools.partial(_caught, call))
        future = asyncio.wrap_future(held.thread)
        try:
            value, error = await asyncio.shield(future)
        except asyncio.CancelledError:
            if held.stop is not None and not held.over:
                self._settle_stopped(held)
            if not self.stopped:
                await _wait_for_thread(future)
            raise
        if error is not None:
            raise error
        return value

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
            self._interrupt_after(timeout, held, "timeout")

    def _interrupt_after(self, seconds: float, held: HeldLease, reason: Stop) -> None:
        timer = self.timers.after(seconds, functools.partial(self.interrupt, held, reason))
        held.timers = (*held.timers, timer)

    def interrupt(self, held: HeldLease, reason: Stop) -> None:
        """Stop an attempt. The first reason stays, except that any other reason replaces `stopping` and
        `error`.

        `error` means that the lease may have lapsed. A thread cannot be stopped, and its item must not be
        given to others while it runs: it goes on, and its outcome is refused if the lease is lost."""
        if held.over or held.stop not in (None, "stopping", "error") or held.stop == reason:
            return
        held.stop = reason
        if held.ctx is not None and reason != "timeout":
            set_interrupt(held.ctx.interrupt, reason)
        if reason == "stopping" or (reason == "error" and held.runs_in_thread):
            return
        if self._grace and held.started and reason != "timeout":
            self.timers.after(self._grace, functools.partial(self.cancel, held))
        else:
            self.cancel(held)

    def cancel(self, held: HeldLease) -> None:
        """Cancel the handler's task. After `CANCEL_GRACE` the attempt is settled without it. Public: a mutant
        replaces it."""
        if held.over:
            return
        # Only a timeout stops the whole call of a batch. Other reasons end one of its items.
        running = held.carrier if held.carrier is not None and held.stop == "timeout" else held
        if not running.started and not running.members:
            # It waits for its turn, or for `accept`.
            self._settle_stopped(held)
            self._forget(held)
            if running.task is not None:
                running.task.cancel()
            return
        if running.task is None:
            self._settle_stopped(held)
            return
        if running is held or running.stop is None:
            running.stop = held.stop
            running.task.cancel()
        self.timers.after(CANCEL_GRACE, functools.partial(self._settle_stopped, held))

    def _settle_stopped(self, held: HeldLease) -> None:
        """Settle an attempt that is being stopped, even if its handler still runs."""
        for member in held.members:
            member.stop = member.stop or held.stop
            self._settle_stopped(member)
        if held.over or held.transaction is not None or held.members:
            return
        decision = self._decide_stopped(held)
        held.over = True
        if decision is not None:
            self._settler.decided(held, decision)

    def _decide_stopped(self, held: HeldLease) -> Decision | None:
        lease = held.lease
        match held.stop:
            case "timeout":
                timeout = timeout_of(held.stored, held.bound.timeout) or 0.0
                return self._failures.decide(held, AttemptTimeout(lease.id, timeout))
            case "deadline":
                late = DeadlineExceeded(lease.id, lease.deadline or 0.0)
                return Die("expired", failure_of(late), late)
            case "stopping" | "error" | None:
                return GiveBack()
            case "taken" | "completed" | "cancelled" | "not_found" as why:
                self._after_commit.lost(held, why)
                return None


class Executors:
    """The threads and processes in which sync handlers run, started when first needed."""

    def __init__(self, threads: int, processes: int | None) -> None:
        self.threads = HandlerThreads(threads)
        self._process_count = processes
        self._processes: ProcessPool | None = None

    def processes(self) -> ProcessPool:
        if self._processes is None:
            from .process_pool import ProcessPool  # it takes time to load, and few apps need it

            self._processes = ProcessPool(self._process_count)
        return self._processes

    def room(self, run_in: str) -> int:
        """How many more handlers can start now in a `thread`, or in a `process`."""
        return self.processes().room() if run_in == "process" else self.threads.room()

    async def close(self) -> None:
        self.threads.close()
        if self._processes is not None:
            await self._processes.close()
            self._processes = None


async def outcome(call: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """What a handler returned or raised. Also SystemExit and the like: the worker goes on."""
    try:
        return await call, None
    except BaseException as error:  # noqa: BLE001
        return None, error


def _caught(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """As `outcome`, in a thread. Futures do not carry every error (StopIteration, GeneratorExit)."""
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001
        return None, error


async def _read_input(held: HeldLease, codec: Codec) -> Decision | None:
    """Decode the input in a thread, if that was left to the attempt."""
    if held.input is UNREAD:
        read = functools.partial(held.bound.type.decode_input, held.lease.input, codec)
        value, error = await asyncio.to_thread(_caught, read)
        if error is not None:
            return undecodable(error)
        held.input = value
    return None


def _overrides(stop: Stop, error: BaseException | None) -> bool:
    """Whether the reason to stop counts more than the handler's own outcome. A shutdown does so only if it
    ended the handler: by cancellation, or by `raise_if_set`, which raises `LeaseLost`."""
    ended_by_stop = isinstance(error, asyncio.CancelledError | LeaseLost)
    return ended_by_stop or stop in LOST or stop in ("timeout", "deadline")


async def _call_on_loop(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = fn(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value


async def _wait_for_thread(future: asyncio.Future[Any]) -> None:
    """Wait until a thread has ended, and ignore its outcome."""
    while not future.done():
        await asyncio.wait({future})
    if not future.cancelled():
        future.exception()
