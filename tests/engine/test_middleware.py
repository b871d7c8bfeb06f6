"""Middleware, and where handlers run (SPEC §13, §17)."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, MakeApp, failure
from treadle import Abort, Context, Result, Retry, Treadle, work

CallNext = Callable[[], Awaitable[Any]]

tracing: contextvars.ContextVar[str] = contextvars.ContextVar("tracing", default="none")


@work
async def value(n: int) -> int:
    return n


async def test_the_first_middleware_is_outermost(make_app: MakeApp) -> None:
    """§13: Around each attempt."""
    order: list[str] = []

    def layer(name: str) -> Any:
        async def around(ctx: Context, call_next: CallNext) -> Any:
            order.append(f"{name} in {ctx.attempt}")
            try:
                return await call_next()
            finally:
                order.append(f"{name} out")

        return around

    @work(name="step", retry=AT_ONCE)
    async def step(ctx: Context) -> None:
        order.append("handler")
        if ctx.attempt == 1:
            raise OSError("once")

    async with make_app(step, middleware=[layer("a"), layer("b")]) as app:
        await app.enqueue(step()).result(PATIENCE)
    assert order == [
        *("a in 1", "b in 1", "handler", "b out", "a out"),
        *("a in 2", "b in 2", "handler", "b out", "a out"),
    ]


async def test_ctx_extra_belongs_to_one_attempt(make_app: MakeApp) -> None:
    """§3, §13: Middleware can write it. A handler without a Context runs inside the middleware too."""
    seen: list[dict[str, Any]] = []

    async def around(ctx: Context, call_next: CallNext) -> Any:
        seen.append(dict(ctx.extra))
        ctx.extra["user"] = f"{ctx.type} {ctx.attempt}"
        return await call_next()

    @work(name="who", retry=AT_ONCE)
    async def who(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise OSError("once")
        return ctx.extra["user"]

    async with make_app(who, value, middleware=[around]) as app:
        assert await app.enqueue(who()).result(PATIENCE) == "who 2"
        assert await app.enqueue(value(3)).result(PATIENCE) == 3
    assert seen == [{}, {}, {}]


async def test_middleware_gets_the_error_and_can_replace_it(make_app: MakeApp) -> None:
    """§13: It may raise another error, or return a value."""
    seen: list[str] = []

    async def around(ctx: Context, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except ValueError as error:
            seen.append(str(error))
            raise Abort("translated") from error
        except KeyError:
            return "rescued"

    @work(name="raising", retry=Retry(attempts=5, base=0))
    async def raising(kind: str) -> str:
        raise ValueError("bad") if kind == "value" else KeyError("missing")

    async with make_app(raising, middleware=[around]) as app:
        error = await failure(app.enqueue(raising("value")).result(PATIENCE))
        assert (error.reason, error.error) == ("aborted", "translated")
        assert await app.enqueue(raising("key")).result(PATIENCE) == "rescued"
    assert seen == ["bad"]


async def test_middleware_gets_the_value_and_can_replace_it(make_app: MakeApp) -> None:
    """§13: Its return value is the result. None keeps the handler's value."""
    seen: list[object] = []

    async def around(ctx: Context, call_next: CallNext) -> Any:
        found = await call_next()
        seen.append(found)
        return found + 1 if ctx.type == "changed" else None

    @work(name="changed")
    async def changed() -> int:
        return 1

    @work(name="flow")
    async def flow(ctx: Context) -> Result[None, int]:
        return ctx.queue(value(7))

    async with make_app(changed, flow, value, middleware=[around]) as app:
        assert await app.enqueue(changed()).result(PATIENCE) == 2
        assert await app.enqueue(value(5)).result(PATIENCE) == 5
        assert await app.enqueue(flow()).group(PATIENCE) == 7
    assert seen[:2] == [1, 5]
    assert isinstance(seen[2], Result)


async def test_middleware_need_not_call_the_handler(make_app: MakeApp) -> None:
    """§13: The error that it raises fails the attempt."""
    ran: list[int] = []

    async def guard(ctx: Context, call_next: CallNext) -> Any:
        raise Abort("not allowed")

    @work(name="never")
    async def never() -> None:
        ran.append(1)

    async with make_app(never, middleware=[guard]) as app:
        assert (await failure(app.enqueue(never()).result(PATIENCE))).error == "not allowed"
    assert not ran


async def test_middleware_that_forgets_the_handler_is_named() -> None:
    """A None of its own is no success. A value of its own is one, and so is `ctx.void`."""
    ran: list[int] = []
    tasks: list[asyncio.Future[Any]] = []
    late: list[CallNext] = []

    async def in_task(call_next: CallNext) -> None:
        tasks.append(asyncio.ensure_future(call_next()))
        await asyncio.sleep(0)

    async def again(call_next: CallNext) -> None:
        await call_next()
        await call_next()

    async def keep(call_next: CallNext) -> None:
        late.append(call_next)
        await call_next()

    async def around(ctx: Context, call_next: CallNext) -> Any:
        match ctx.headers["way"]:
            case "forgotten":
                return None
            case "unawaited":
                return call_next()
            case "own value":
                return 7
            case "void":
                return ctx.void()
            case "at once":
                return await asyncio.gather(call_next(), call_next())
            case way:
                return await {"in a task": in_task, "again": again, "late": keep}[way](call_next)

    async def changed(ctx: Context, call_next: CallNext) -> Any:
        return await call_next() + 1

    @work(name="seen", retry=Retry(attempts=1))
    async def seen() -> int:
        await asyncio.sleep(0)
        ran.append(1)
        return 1

    async def error(way: str) -> str:
        return (await failure(app.enqueue(seen(), headers={"way": way}).result(PATIENCE))).error

    async with Treadle(work=[seen], middleware=[around, changed]) as app:
        assert "returned None and has not called call_next(), so the handler did" in await error("forgotten")
        assert "a middleware has called call_next() without await" in await error("unawaited")
        assert "a middleware has called call_next() twice" in await error("at once")
        assert "test_middleware_that_forgets_the_handler_is_named.<locals>.around" in await error("forgotten")
        assert not ran
        results = [
            await app.enqueue(seen(), headers={"way": way}).result(PATIENCE)
            for way in ("own value", "void", "in a task", "again", "late")
        ]
        assert results == [7, None, 2, 2, 2]
        assert len(ran) == 4
        with pytest.raises(RuntimeError, match="after it returned"):
            await late[0]()


async def test_a_timeout_includes_middleware(make_app: MakeApp) -> None:
    """§5: `timeout` limits the whole attempt."""

    async def slow(ctx: Context, call_next: CallNext) -> Any:
        await asyncio.Event().wait()

    async with make_app(value, middleware=[slow]) as app:
        handle = await app.enqueue(value(1), timeout=0.05, retry=Retry(attempts=1))
        assert (await failure(handle.result(PATIENCE))).error_type == "AttemptTimeout"


@pytest.mark.parametrize("kind", ["async", "thread", "loop"])
async def test_context_variables_of_middleware_reach_the_handler(make_app: MakeApp, kind: str) -> None:
    """§17: Also in threads. They do not leak into the next attempt."""

    async def trace(ctx: Context, call_next: CallNext) -> Any:
        assert tracing.get() == "none"
        tracing.set(ctx.id)
        return await call_next()

    if kind == "async":

        @work(name="look")
        async def look() -> str:
            return tracing.get()
    elif kind == "thread":

        @work(name="look")
        def look() -> str:
            assert threading.current_thread() is not threading.main_thread()
            return tracing.get()
    else:

        @work(name="look", run_in="loop")
        def look() -> str:
            assert threading.current_thread() is threading.main_thread()
            return tracing.get()

    async with make_app(look, middleware=[trace]) as app:
        for _ in range(2):
            handle = await app.enqueue(look())
            assert await handle.result(PATIENCE) == handle.id
    assert tracing.get() == "none"


async def test_sync_handlers_do_not_block_the_loop(make_app: MakeApp) -> None:
    """§1: They run in threads, at the same time."""
    barrier = threading.Barrier(3)

    @work(name="meet")
    def meet() -> int:
        return barrier.wait(PATIENCE)

    async with make_app(meet) as app:
        handles = await app.enqueue_many([meet() for _ in range(3)])
        found = [await handle.result(PATIENCE) for handle in handles]
    assert sorted(found) == [0, 1, 2]


async def test_a_sync_handler_may_return_a_result(make_app: MakeApp) -> None:
    """§1."""

    @work(name="flow")
    def flow(ctx: Context) -> Result[None, int]:
        return ctx.queue(value(1)).next(value(2))

    async with make_app(flow, value) as app:
        assert await app.enqueue(flow()).group(PATIENCE) == 2


async def test_a_sync_handler_may_abort(make_app: MakeApp) -> None:
    """§5: The error type is kept."""

    @work(name="bad")
    def bad() -> None:
        raise Abort(LookupError("gone"))

    async with make_app(bad) as app:
        handle = await app.enqueue(bad())
        error = await failure(handle.result(PATIENCE))
        assert (error.error_type, error.reason) == ("LookupError", "aborted")
