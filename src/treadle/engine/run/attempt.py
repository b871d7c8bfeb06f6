"""Run: one attempt of one item, inside its own task.

    accept -> middleware onion -> handler -> decide -> hand the decision over

Whatever stops an attempt from outside (a timeout, a deadline, a lost lease, a shutdown) does it through
`interrupt`: the reason is noted, the handler is told, then its task is cancelled. A handler that will not end
is given up after a grace: it is settled without it, and keeps its slot until it does end.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, cast

from treadle.clock import Clock
from treadle.context import Context, ContextServices, created_results, set_interrupt
from treadle.engine.settings import Middleware
from treadle.engine.submit.build_item import retry_of, timeout_of
from treadle.engine.timers import Timers
from treadle.errors import AttemptTimeout, DeadlineExceeded, LeaseLost
from treadle.flow_control import Accept, AcceptInfo, FailureInfo
from treadle.item import Loss
from treadle.retry import Retry, merge_retry
from treadle.work_type import arguments_of

from .decide import Classified, Decision, Die, failure_of, raised, returned
from .held import LOST, HeldLease, Stop
from .settle import GiveBack

if TYPE_CHECKING:
    from .process_pool import ProcessPool

CANCEL_GRACE = 1.0
"""How long a cancelled handler may take to end before it is settled without it."""


class Desk(Protocol):
    """Where a runner hands over what it decided."""

    def begun(self, active: HeldLease) -> None: ...

    def decided(self, active: HeldLease, decision: Decision | GiveBack) -> None: ...

    async def decided_within(self, active: HeldLease, decision: Decision | GiveBack) -> None:
        """The same, inside the handler's own transaction."""
        ...

    def lost(self, active: HeldLease, why: Loss) -> None: ...

    def classifier_failed(self, error: Exception) -> None: ...


class AttemptRunner:
    def __init__(
        self,
        desk: Desk,
        services: ContextServices,
        clock: Clock,
        draw: Callable[[], float],
        *,
        middleware: Sequence[Middleware] = (),
        accept: Accept | None = None,
        decline_delay: float = 1.0,
        interrupt_grace: float = 0.0,
        threads: int = 32,
        processes: int | None = None,
    ) -> None:
        self._desk = desk
        self._services = services
        self._clock = clock
        self._draw = draw
        self._middleware = tuple(middleware)
        self._accept = accept
        self._decline_delay = decline_delay
        self._grace = interrupt_grace
        self._threads = threads
        self._threads_taken = 0
        self._process_count = processes
        self._executor: ThreadPoolExecutor | None = None
        self._pool: ProcessPool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.alarm = Timers(clock)

    # -- one attempt -----------------------------------------------------------------------------------

    async def run(self, active: HeldLease) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()  # a system call: not for every job
        active.task = asyncio.current_task(self._loop)
        if active.stop is not None:
            self._stopped(active)
            return
        if self._accept is not None and not await self.accepted(active):
            return
        if active.bound.run_in == "process":
            await self._processes().ready()  # a child takes a while to start: not on the attempt's time
        self.begin(active)
        # Here and not in coroutines of their own: each would cost every job about a microsecond.
        try:
            value = await self._invoke(active)
        except BaseException as error:  # noqa: BLE001  also SystemExit and friends: the worker goes on
            decision = self.verdict(active, None, error)
        else:
            decision = self.verdict(active, value, None)
        if decision is None or active.over:
            return
        active.over = True
        if active.transaction is None:
            self._desk.decided(active, decision)
        else:
            await self._desk.decided_within(active, decision)

    def begin(self, active: HeldLease) -> None:
        active.started = self._clock.monotonic()
        self._desk.begun(active)
        self._watch(active)

    def verdict(
        self, active: HeldLease, value: Any, error: BaseException | None
    ) -> Decision | GiveBack | None:
        """What it comes to that the handler returned `value`, or raised `error`; None if that is nobody's
        business any more."""
        if active.over:
            return None
        if active.stop is not None and _overrides(active.stop, error):
            return self._interrupted(active)
        if error is not None:
            return self.failure(active, error)
        created = created_results(active.ctx) if active.ctx is not None else ()
        return returned(active.lease, value, created, active.bound.strict)

    def failure(self, active: HeldLease, error: BaseException) -> Decision:
        """What an attempt that failed with `error` comes to."""
        retry = retry_of(active.stored, active.bound.retry)
        try:
            return self._raised(active, error, retry)
        except Exception as own:  # noqa: BLE001  a throwing backoff is as good as none
            self._desk.classifier_failed(own)
            return self._raised(active, error, merge_retry(retry, Retry(backoff=None)))

    def _raised(self, active: HeldLease, error: BaseException, retry: Retry) -> Decision:
        now = active.store_time(self._clock.monotonic())
        return raised(active.lease, error, functools.partial(self._classify, active), retry, now, self._draw)

    def _classify(self, active: HeldLease, error: BaseException) -> Classified:
        if active.bound.on_failure is None:
            return None
        lease = active.lease
        try:
            info = FailureInfo(lease.id, lease.type, lease.attempt, lease.attempts)
            return cast("Classified", active.bound.on_failure(error, info))
        except Exception as own:  # noqa: BLE001  a throwing classifier means retry
            self._desk.classifier_failed(own)
            return None

    # -- calling the handler ---------------------------------------------------------------------------

    def _invoke(self, active: HeldLease) -> Awaitable[Any]:
        bound = active.bound
        if bound.wants_context or self._middleware:
            active.ctx = Context(active.lease, self._services, self._log_fields(active))
            if self._middleware:
                return self._onion(active, 0, [])
        return self._call(active)

    def _log_fields(self, active: HeldLease) -> Callable[[], Any] | None:
        log_context = active.bound.log_context
        return None if log_context is None else functools.partial(log_context, active.input)

    async def _onion(self, active: HeldLease, layer: int, seen: list[Any]) -> Any:
        """Middlewares around the handler. One that returns None leaves the handler's value as it is, so
        that forgetting to pass it on loses nothing."""
        if layer == len(self._middleware):
            seen.append(await self._call(active))
            return seen[-1]
        assert active.ctx is not None
        value = await self._middleware[layer](
            active.ctx, functools.partial(self._onion, active, layer + 1, seen)
        )
        return seen[-1] if value is None and seen else value

    def _call(self, active: HeldLease) -> Awaitable[Any]:
        bound = active.bound
        args, kwargs = arguments_of(bound.type).call(active.input)
        if bound.wants_context:
            args = (active.ctx, *args)
        return self.call(active, args, kwargs)

    def call(self, active: HeldLease, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
        """Call the handler where its type says."""
        bound = active.bound
        if bound.is_async and bound.run_in == "loop":
            call: Awaitable[Any] = bound.fn(*args, **kwargs)
            return call
        if bound.run_in == "process":
            return self._in_process(active, args, kwargs)
        if bound.run_in == "thread":
            return self._in_thread(active, args, kwargs)
        return _on_loop(bound.fn, args, kwargs)

    async def _in_thread(self, active: HeldLease, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A thread cannot be stopped: the attempt may be settled early, the slot stays taken."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="treadle")
        call = functools.partial(contextvars.copy_context().run, active.bound.fn, *args, **kwargs)
        self._threads_taken += 1
        future = asyncio.get_running_loop().run_in_executor(self._executor, _caught, call)
        try:
            value, error = await asyncio.shield(future)
        except asyncio.CancelledError:
            if active.stop is not None and not active.over:
                self._stopped(active)
            await _ended(future)
            raise
        finally:
            self._threads_taken -= 1
        if error is not None:
            raise error
        return value

    async def _in_process(self, active: HeldLease, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await self._processes().run(active.bound.fn, args, kwargs, name=active.bound.name)

    def _processes(self) -> ProcessPool:
        if self._pool is None:
            from .process_pool import (
                ProcessPool,  # few have handlers that run in processes: it takes time to load
            )

            self._pool = ProcessPool(self._process_count)
        return self._pool

    def room(self, run_in: str) -> int | None:
        """How many more handlers of that kind can start now; None: no bound here."""
        if run_in == "thread":
            return max(0, self._threads - self._threads_taken)
        return self._processes().room() if run_in == "process" else None

    # -- stopping an attempt ---------------------------------------------------------------------------

    def _watch(self, active: HeldLease) -> None:
        lease = active.lease
        timeout = timeout_of(active.stored, active.bound.timeout)
        if timeout is None and lease.deadline is None:
            return
        if timeout is not None:
            bell = self.alarm.after(timeout, functools.partial(self.interrupt, active, "timeout"))
            active.bells = (*active.bells, bell)
        if lease.deadline is not None:
            left = lease.deadline - active.store_time(self._clock.monotonic())
            bell = self.alarm.after(left, functools.partial(self.interrupt, active, "deadline"))
            active.bells = (*active.bells, bell)

    def interrupt(self, active: HeldLease, reason: Stop) -> None:
        """Stop an attempt. The first reason stays, except that `stopping` gives way to any other."""
        if active.over or active.stop not in (None, "stopping"):
            return
        active.stop = reason
        if active.ctx is not None and reason != "timeout":
            set_interrupt(active.ctx.interrupt, reason)
        if reason == "stopping":
            return
        if self._grace and reason != "timeout":
            self.alarm.after(self._grace, functools.partial(self.cancel, active))
        else:
            self.cancel(active)

    def cancel(self, active: HeldLease) -> None:
        """Cancel the handler's task, and give it up if it will not end."""
        if active.over:
            return
        # One of a batch ends by itself; only a timeout is the whole call's.
        running = active.carrier if active.carrier is not None and active.stop == "timeout" else active
        if running.task is None:
            self._stopped(active)
            return
        if running is active or running.stop is None:
            running.stop = active.stop
            running.task.cancel()
        self.alarm.after(CANCEL_GRACE, functools.partial(self._stopped, active))

    def _stopped(self, active: HeldLease) -> None:
        """Settle an attempt that is being stopped, whatever its handler still does."""
        for member in active.members:
            member.stop = member.stop or active.stop
            self._stopped(member)
        if active.over or active.transaction is not None or active.members:
            return
        decision = self._interrupted(active)
        active.over = True
        if decision is not None:
            self._desk.decided(active, decision)

    def _interrupted(self, active: HeldLease) -> Decision | GiveBack | None:
        lease = active.lease
        match active.stop:
            case "timeout":
                timeout = timeout_of(active.stored, active.bound.timeout) or 0.0
                return self.failure(active, AttemptTimeout(lease.id, timeout))
            case "deadline":
                late = DeadlineExceeded(lease.id, lease.deadline or 0.0)
                return Die("expired", failure_of(late), late)
            case "stopping" | "error" | None:
                return GiveBack()
            case "taken" | "completed" | "cancelled" | "not_found" as why:
                self._desk.lost(active, why)
                return None

    # -- before and after ------------------------------------------------------------------------------

    async def accepted(self, active: HeldLease) -> bool:
        """What `accept` says; False: it was given back."""
        if self._accept is None:
            return True
        lease = active.lease
        info = AcceptInfo(lease.id, lease.type, lease.group_id, lease.attempt, active.input)
        try:
            answer = self._accept(info)
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception as error:  # noqa: BLE001  reported; the item is not this worker's to lose
            self._desk.classifier_failed(error)
            answer = False
        if not answer:
            active.over = True
            self._desk.decided(active, GiveBack(self._decline_delay))
        return bool(answer)

    async def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
        if self._pool is not None:
            await self._pool.close()
            self._pool = None


async def outcome(call: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """What a handler returned, or what it raised: also SystemExit and friends, since the worker goes on."""
    try:
        return await call, None
    except BaseException as error:  # noqa: BLE001
        return None, error


def _caught(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """As `outcome`, in a thread: futures do not carry every error (StopIteration, GeneratorExit)."""
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001
        return None, error


def _overrides(stop: Stop, error: BaseException | None) -> bool:
    """Whether a reason to stop beats what the handler itself came back with: a shutdown does only if the
    handler heeded it (`LeaseLost` is what `raise_if_set` raises), or did not come back by itself."""
    heeded = isinstance(error, asyncio.CancelledError | LeaseLost)
    return heeded or stop in LOST or stop in ("timeout", "deadline")


async def _on_loop(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = fn(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value


async def _ended(future: asyncio.Future[Any]) -> None:
    """Wait for a thread, whatever it comes back with."""
    while not future.done():
        await asyncio.wait({future})
    if not future.cancelled():
        future.exception()
