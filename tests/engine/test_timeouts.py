"""Timeouts of attempts: `ctx.extend`, and the time that a handler has to end by itself (SPEC §18)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, Barrier, MakeApp, expire_running, failure, until
from treadle import Abort, Context, Defer, InputError, LeaseLost, Retry, Treadle, work
from treadle.testing import ManualClock, run_inline

ONCE = Retry(attempts=1)

# ------------------------------------------------------------------------------------------------ ctx.extend


async def test_extend_moves_the_end_of_the_attempt(make_timed: MakeApp, clock: ManualClock) -> None:
    """It counts from now. The answer is the new end."""
    barrier, ends = Barrier(), asyncio.Queue[Any]()

    @work(name="long", timeout=10, retry=ONCE)
    async def long(ctx: Context, *steps: float) -> str:
        for step in steps:
            ends.put_nowait(await ctx.extend(step))
            await barrier.wait()
        return "done"

    async with run_inline(make_timed(long, lease=1000)) as app:
        handle = await app.enqueue(long(60))
        end = await ends.get()
        assert isinstance(end, datetime)
        assert end.timestamp() == pytest.approx(clock.now() + 60)
        await clock.advance(59)
        assert (await handle.state()).status == "running"
        barrier.go.set()
        assert await handle.result(PATIENCE) == "done"
        barrier.go.clear()
        handle = await app.enqueue(long(60))
        await ends.get()
        await clock.advance(61)
        error = await failure(handle.result(PATIENCE))
        assert (error.error_type, "60 s" in error.error) == ("AttemptTimeout", True)


async def test_extend_may_shorten_an_attempt(make_timed: MakeApp, clock: ManualClock) -> None:
    reached = asyncio.Event()

    @work(name="short", timeout=100, retry=ONCE)
    async def short(ctx: Context) -> None:
        ctx.extend(5)
        reached.set()
        await asyncio.Event().wait()

    async with run_inline(make_timed(short, lease=1000)) as app:
        handle = await app.enqueue(short())
        await reached.wait()
        await clock.advance(6)
        assert (await failure(handle.result(PATIENCE))).error_type == "AttemptTimeout"


async def test_extend_does_not_pass_the_deadline(make_timed: MakeApp, clock: ManualClock) -> None:
    ends = asyncio.Queue[Any]()

    @work(name="bounded", timeout=10, expires_in=30)
    async def bounded(ctx: Context) -> None:
        ends.put_nowait((await ctx.extend(3600), ctx.deadline))
        await asyncio.Event().wait()

    async with run_inline(make_timed(bounded, lease=1000)) as app:
        handle = await app.enqueue(bounded())
        end, deadline = await ends.get()
        assert end == deadline
        await clock.advance(31)
        assert (await failure(handle.result(PATIENCE))).reason == "expired"


async def test_extend_without_a_timeout_has_no_effect(make_app: MakeApp) -> None:
    @work(name="unbounded")
    async def unbounded(ctx: Context) -> list[bool]:
        return [await ctx.extend(0.01) is None, ctx.extend(1).until is None]

    @work(name="until", expires_in=60)
    async def with_deadline(ctx: Context) -> bool:
        return await ctx.extend(0.01) == ctx.deadline

    async with make_app(unbounded, with_deadline) as app:
        assert await app.enqueue(unbounded()).result(PATIENCE) == [True, True]
        assert await app.enqueue(with_deadline()).result(PATIENCE)


async def test_extend_in_a_thread(make_timed: MakeApp, clock: ManualClock) -> None:
    """A plain handler calls it without await."""
    extended, go = threading.Event(), threading.Event()

    @work(name="threaded", timeout=10, retry=ONCE)
    def threaded(ctx: Context) -> bool:
        before = ctx.extend(20).until
        extended.set()
        go.wait(PATIENCE)
        after = ctx.extend(40).until
        return before is not None and after is not None and after > before

    async with run_inline(make_timed(threaded, lease=1000)) as app:
        handle = await app.enqueue(threaded())
        await until(extended.is_set)
        await clock.advance(15)
        go.set()
        assert await handle.result(PATIENCE)


@pytest.mark.parametrize("seconds", [-1, "soon", None])
async def test_extend_refuses_what_is_no_duration(make_app: MakeApp, seconds: Any) -> None:
    @work(name="wrong", timeout=5, retry=ONCE)
    async def wrong(ctx: Context) -> str:
        with pytest.raises(InputError, match="seconds"):
            ctx.extend(seconds)
        return "refused"

    async with make_app(wrong) as app:
        assert await app.enqueue(wrong()).result(PATIENCE) == "refused"


async def test_extend_is_too_late_once_the_attempt_is_stopped_or_over(make_app: MakeApp) -> None:
    contexts: list[Context] = []

    @work(name="late", timeout=0.02, timeout_grace=PATIENCE, retry=ONCE)
    async def late(ctx: Context) -> str:
        contexts.append(ctx)
        assert await ctx.interrupt == "timeout"
        with pytest.raises(LeaseLost, match="timeout"):
            ctx.extend(60)
        return "late"

    async with make_app(late) as app:
        assert await app.enqueue(late()).result(PATIENCE) == "late"
        with pytest.raises(InputError, match="running"):
            contexts[0].extend(1)


# --------------------------------------------------------------------------------------------- timeout_grace


Ending = Callable[[Context], Awaitable[str]]


async def _returns(ctx: Context) -> str:
    return f"saved at {ctx.interrupt.reason}"


async def _raises(ctx: Context) -> str:
    raise KeyError("own")


async def _gives_up(ctx: Context) -> str:
    ctx.interrupt.raise_if_set()
    return "not reached"


async def _aborts(ctx: Context) -> str:
    raise Abort("enough")


async def _waits(ctx: Context) -> str:
    await asyncio.Event().wait()
    return "not reached"


def _graceful(app: MakeApp, ending: Ending, **settings: Any) -> Treadle:
    @work(name="graceful", timeout=0.02, retry=ONCE)
    async def graceful(ctx: Context) -> str:
        assert await ctx.interrupt == "timeout"
        return await ending(ctx)

    return app(graceful, **settings)


async def test_a_handler_has_timeout_grace_to_return(make_app: MakeApp) -> None:
    """A result in that time counts."""
    async with _graceful(make_app, _returns, timeout_grace=PATIENCE) as app:
        assert await app.enqueue("graceful").result(PATIENCE) == "saved at timeout"


@pytest.mark.parametrize(
    ("ending", "error_type", "reason"),
    [
        (_raises, "KeyError", "exhausted"),
        (_gives_up, "AttemptTimeout", "exhausted"),
        (_aborts, "Abort", "aborted"),
        (_waits, "AttemptTimeout", "exhausted"),
    ],
)
async def test_how_an_attempt_fails_after_its_timeout(
    make_app: MakeApp, ending: Ending, error_type: str, reason: str
) -> None:
    """With its own error, if it raises one in time."""
    grace = 0.05 if ending is _waits else PATIENCE
    async with _graceful(make_app, ending, timeout_grace=grace) as app:
        error = await failure(app.enqueue("graceful").result(PATIENCE))
        assert (error.error_type, error.reason) == (error_type, reason)


async def test_a_handler_may_defer_itself_after_its_timeout(make_app: MakeApp) -> None:
    """It saves what it has done, and goes on later."""
    done: list[int] = []

    @work(name="portions", timeout=0.02, timeout_grace=PATIENCE, retry=ONCE)
    async def portions(ctx: Context) -> list[int]:
        if len(done) == 3:
            return done
        await ctx.interrupt
        done.append(ctx.attempt)
        raise Defer(delay=0)

    async with make_app(portions) as app:
        assert await app.enqueue(portions()).result(PATIENCE) == [1, 1, 1]


async def test_the_grace_of_a_type_wins_over_the_app(make_app: MakeApp) -> None:
    @work(name="strict", timeout=0.02, timeout_grace=0, retry=ONCE)
    async def strict(ctx: Context) -> str:
        await ctx.interrupt
        await asyncio.sleep(0.2)
        return "late"

    async with make_app(strict, timeout_grace=PATIENCE) as app:
        assert (await failure(app.enqueue(strict()).result(PATIENCE))).error_type == "AttemptTimeout"


async def test_without_grace_the_reason_is_shown_and_a_result_does_not_count(make_app: MakeApp) -> None:
    reasons: list[Any] = []

    @work(name="hasty", timeout=0.02, retry=ONCE)
    async def hasty(ctx: Context) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            reasons.append(ctx.interrupt.reason)
        return "late"

    async with make_app(hasty) as app:
        assert (await failure(app.enqueue(hasty()).result(PATIENCE))).error_type == "AttemptTimeout"
    assert reasons == ["timeout"]


async def test_a_thread_sees_its_timeout(make_app: MakeApp) -> None:
    @work(name="threaded", timeout=0.05, timeout_grace=PATIENCE, retry=ONCE)
    def threaded(ctx: Context) -> str:
        assert ctx.interrupt.wait(PATIENCE)
        return f"{ctx.interrupt.reason}, saved"

    async with make_app(threaded) as app:
        assert await app.enqueue(threaded()).result(PATIENCE) == "timeout, saved"


async def test_a_thread_is_left_after_its_grace(make_app: MakeApp) -> None:
    go = threading.Event()

    @work(name="threaded", timeout=0.02, timeout_grace=0.05, retry=ONCE)
    def threaded(ctx: Context) -> str:
        go.wait(PATIENCE)
        return "late"

    async with make_app(threaded) as app:
        error = await failure(app.enqueue(threaded()).result(PATIENCE))
        assert error.error_type == "AttemptTimeout"
        go.set()


async def test_middlewares_are_in_the_grace_too(make_app: MakeApp) -> None:
    seen: list[Any] = []

    async def watch(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        value = await call_next()
        seen.append((ctx.interrupt.reason, value))
        return value

    @work(name="plain", timeout=0.02, timeout_grace=PATIENCE, retry=ONCE)
    async def plain() -> str:
        await asyncio.sleep(0.1)
        return "in time"

    async with make_app(plain, middleware=[watch]) as app:
        assert await app.enqueue(plain()).result(PATIENCE) == "in time"
    assert seen == [("timeout", "in time")]


async def test_a_batch_has_its_grace(make_app: MakeApp) -> None:
    @work.batch(size=2, max_wait=PATIENCE, name="inputs", timeout=0.05, timeout_grace=PATIENCE, retry=ONCE)
    async def inputs(numbers: list[int]) -> list[int]:
        await asyncio.sleep(0.2)
        return [2 * number for number in numbers]

    @work.batch(size=2, max_wait=PATIENCE, name="stuck", timeout=0.02, timeout_grace=0.05, retry=ONCE)
    async def stuck(numbers: list[int]) -> list[int]:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return numbers

    async with make_app(inputs, stuck) as app:
        handles = await app.enqueue_many([inputs(1), inputs(2)])
        assert [await handle.result(PATIENCE) for handle in handles] == [2, 4]
        for handle in await app.enqueue_many([stuck(1), stuck(2)]):
            assert (await failure(handle.result(PATIENCE))).error_type == "AttemptTimeout"


async def test_the_deadline_ends_the_grace(make_app: MakeApp) -> None:
    told = asyncio.Event()

    @work(name="both", timeout=0.02, timeout_grace=PATIENCE, retry=AT_ONCE)
    async def both(ctx: Context) -> None:
        assert await ctx.interrupt == "timeout"
        told.set()
        await asyncio.Event().wait()

    async with make_app(both) as app:
        _, error = await expire_running(app, both, told.is_set)
        assert error.attempts == 1


async def test_a_cancellation_ends_the_grace(make_app: MakeApp) -> None:
    told, ended = asyncio.Event(), asyncio.Event()

    @work(name="both", timeout=0.02, timeout_grace=PATIENCE)
    async def both(ctx: Context) -> None:
        try:
            await ctx.interrupt
            told.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with make_app(both) as app:
        handle = await app.enqueue(both())
        await told.wait()
        await app.cancel([handle.id])
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
        assert (await handle.state()).status == "cancelled"


async def test_a_stop_during_the_grace_lets_the_handler_end(make_app: MakeApp) -> None:
    told, barrier = asyncio.Event(), Barrier()

    @work(name="both", timeout=0.02, timeout_grace=PATIENCE)
    async def both(ctx: Context) -> str:
        await ctx.interrupt
        told.set()
        await barrier.wait()
        return "saved"

    app = make_app(both)
    await app.start()
    handle = await app.enqueue(both())
    await told.wait()
    stopping = asyncio.ensure_future(app.worker.stop(drain=PATIENCE))
    await until(lambda: not app.worker.running)
    barrier.go.set()
    await stopping
    assert (await handle.state()).result == "saved"
