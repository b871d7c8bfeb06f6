"""Handler call: calls a handler through the middlewares, on the loop, in a thread or in a process."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from treadle.base.callables import is_awaitable
from treadle.engine.settings import HandlerScope
from treadle.handler.call_next import Middleware, NextCall
from treadle.handler.context import Context, ContextServices

from .handler_pools import HandlerPools, caught, wait_for_end
from .held import BatchCall, HeldLease
from .traced import AttemptTracer

if TYPE_CHECKING:
    from .process_context import PoolContexts


class HandlerCaller:
    """settle_stopped: called when an attempt or a batch is cancelled whose handler goes on in its thread.
    scope: entered around each call of a handler, where it runs."""

    def __init__(
        self,
        services: ContextServices,
        middleware: tuple[Middleware, ...],
        pools: HandlerPools,
        settle_stopped: Callable[[HeldLease | BatchCall], None],
        tracer: AttemptTracer | None = None,
        scope: HandlerScope | None = None,
    ) -> None:
        self._services = services
        self._middleware = middleware
        self._pools = pools
        self._settle_stopped = settle_stopped
        self._tracer = tracer
        self._scope = scope

    def invoke(self, held: HeldLease) -> Awaitable[Any]:
        """Run one attempt: the handler, with its context, through the middlewares."""
        bound = held.bound
        if bound.wants_context or self._middleware:
            self.new_context(held)
            if self._middleware:
                return self._call_through(held, 0)
        return self._call(held)

    def new_context(self, held: HeldLease) -> Context:
        own = held.bound.log_context
        fields = None if own is None else functools.partial(own.fields, held.input)
        traced = None if held.span is None else held.span.log_fields
        held.ctx = Context(held.lease, self._services, fields, traced)
        return held.ctx

    async def _call_through(self, held: HeldLease, layer: int) -> Any:
        """Call the handler through the middlewares. One that returns None keeps the value of `call_next`, so
        that a middleware that forgets to return it loses nothing."""
        if layer == len(self._middleware):
            return await self._call(held)
        inner = functools.partial(self._call_through, held, layer + 1)
        call = NextCall(self._middleware[layer], inner, "a middleware", "ctx", once=False)
        value = await call.through(held.ctx)
        if value is not None:
            return value
        if not call.began:
            raise call.mistake(
                "has returned None and has not called call_next(), so the handler did not run. To end the "
                "item without it, return `ctx.result(value)` or `ctx.void()`, or raise"
            )
        return call.value

    def _call(self, held: HeldLease) -> Awaitable[Any]:
        bound = held.bound
        args, kwargs = bound.arguments.call(held.input)
        if bound.wants_context:
            args = (held.ctx, *args)
        return self.call(held, args, kwargs)

    def call(
        self, caller: HeldLease | BatchCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Awaitable[Any]:
        """Call the handler on the loop, in a thread or in a process, as its type says."""
        bound = caller.bound
        if bound.is_async and bound.run_in == "loop" and self._scope is None:
            call: Awaitable[Any] = bound.fn(*args, **kwargs)
            return call
        if bound.run_in == "process":
            return self._call_in_process(caller, args, kwargs)
        if bound.run_in == "thread":
            return self._call_in_thread(caller, args, kwargs)
        return _call_on_loop(bound.fn, args, kwargs, self._scope or nullcontext)

    def _call_in_process(
        self, caller: HeldLease | BatchCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Awaitable[Any]:
        bound = caller.bound
        contexts: PoolContexts | None = None
        if bound.wants_context or bound.wants_contexts:
            from .process_context import PoolContexts  # few apps need it

            given, *rest = args
            args = tuple(rest)
            contexts = PoolContexts(given if bound.wants_contexts else [given], is_batch=bound.wants_contexts)
        carried = None if self._tracer is None else self._tracer.carried()
        return self._pools.processes().run(
            bound.fn,
            args,
            kwargs,
            name=bound.name,
            contexts=contexts,
            carried=carried,
            is_batch=bound.type.batch is not None,
            logs=caller if bound.keeps_logs else None,
        )

    async def _call_in_thread(
        self, caller: HeldLease | BatchCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A thread cannot be stopped: the attempt may be settled early, but the thread stays in use."""
        fn = caller.bound.fn
        if self._scope is not None:
            fn = functools.partial(_call_within, self._scope, fn)
        call = functools.partial(contextvars.copy_context().run, fn, *args, **kwargs)
        thread = caller.thread = self._pools.threads.start(functools.partial(caught, call))
        future = asyncio.wrap_future(thread)
        try:
            value, error = await asyncio.shield(future)
        except asyncio.CancelledError:
            if not thread.done() or thread.cancelled() or self._pools.loop_ends():
                await self._leave(caller, thread, future)
                raise
            value, error = thread.result()  # it has ended, and the loop had not noticed yet
        if error is not None:
            raise error
        return value

    async def _leave(
        self, caller: HeldLease | BatchCall, thread: Future[Any], future: asyncio.Future[Any]
    ) -> None:
        """The attempt was cancelled, and its thread has not ended, or the event loop ends first."""
        if self._pools.loop_ends() or (self._pools.stopped and thread.running()):
            caller.leave_to_lease()
        elif not thread.cancel():  # it has begun
            self._settle_stopped(caller)
            if not self._pools.stopped:
                await wait_for_end(future)


async def _call_on_loop(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], scope: HandlerScope
) -> Any:
    with scope():
        value = fn(*args, **kwargs)
        return await value if is_awaitable(value) else value


def _call_within(scope: HandlerScope, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    with scope():
        return fn(*args, **kwargs)
