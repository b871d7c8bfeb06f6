"""Testing tools for users: `run_inline`, `drain`, `ManualClock` (SPEC §16)."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, Barrier, MakeApp
from treadle import Abort, Context, MemoryBackend, Result, Retry, Treadle, work
from treadle.errors import NotStarted
from treadle.testing import FaultyBackend, ManualClock, drain, run_inline


@work
async def value(n: int) -> int:
    return n


async def test_drain_runs_due_items_and_everything_that_they_queue(make_app: MakeApp) -> None:
    """§16: Children, next works, retries without a delay, and doomed items."""
    ran: list[str] = []

    @work(name="step", retry=AT_ONCE)
    async def step(ctx: Context, name: str) -> None:
        if ctx.attempt == 1:
            raise OSError("once")
        ran.append(name)

    @work(name="bad")
    async def bad() -> None:
        raise Abort("bad")

    doomed = step("never")

    @work(name="root")
    async def root(ctx: Context) -> Result[None, None]:
        deep = ctx.queue(step("a")).next(step("b")).next(step("c"))
        return ctx.queue(deep, ctx.queue(bad()).next(doomed))

    async with run_inline(make_app(root, step, bad)) as app:
        handle = await app.enqueue(root())
        await drain(app)
        assert ran == ["a", "b", "c"]
        group = await app.group(handle.id)
        assert group is not None
        assert group.open == 0
        assert (await app.handle(doomed.id).state()).reason == "unsatisfiable"


async def test_drain_waits_for_running_handlers(make_app: MakeApp) -> None:
    """§16: And for their settlements."""
    barrier = Barrier()

    @work(name="held")
    async def held() -> None:
        await barrier.wait()

    async with run_inline(make_app(held)) as app:
        handle = await app.enqueue(held())
        await barrier.reached()
        draining = asyncio.ensure_future(drain(app))
        await asyncio.sleep(0.05)
        assert not draining.done()
        barrier.go.set()
        async with asyncio.timeout(PATIENCE):
            await draining
        assert (await handle.state()).status == "success"


async def test_drain_runs_items_that_were_submitted_before_it(make_app: MakeApp) -> None:
    """§16: Also while a claim is under way."""
    async with run_inline(make_app(value)) as app:
        for n in range(50):
            handle = await app.enqueue(value(n))
            await drain(app)
            assert (await handle.state()).status == "success"


async def test_drain_leaves_scheduled_items(make_timed: MakeApp, clock: ManualClock) -> None:
    """§16: They run when the clock has moved and drain is called again."""
    async with run_inline(make_timed(value)) as app:
        handle = await app.enqueue(value(3), delay=timedelta(days=3))
        await drain(app)
        assert (await handle.state()).status == "scheduled"
        await clock.advance(timedelta(days=2))
        await drain(app)
        assert (await handle.state()).status == "scheduled"
        await clock.advance(timedelta(days=1))
        await drain(app)
        assert (await handle.state()).result == 3


async def test_an_item_runs_if_the_clock_moves_right_after_drain(
    make_timed: MakeApp, clock: ManualClock
) -> None:
    """§16: A caller that awaits the result need not drain again."""
    async with run_inline(make_timed(value)) as app:
        for n in range(10):
            handle = await app.enqueue(value(n), delay=3600)
            await drain(app)
            await clock.advance(3600)
            async with asyncio.timeout(PATIENCE):
                assert await handle.result() == n


async def test_retries_a_day_apart_take_no_real_time(make_timed: MakeApp, clock: ManualClock) -> None:
    """§16."""
    at: list[float] = []

    @work(name="flaky", retry=Retry(attempts=4, base=86400, max=10 * 86400, factor=2, jitter=0))
    async def flaky(ctx: Context) -> str:
        at.append(clock.now())
        if ctx.attempt < 4:
            raise OSError("again")
        return "done"

    async with run_inline(make_timed(flaky)) as app:
        handle = await app.enqueue(flaky())
        for days in (1, 2, 4):
            await drain(app)
            await clock.advance(timedelta(days=days))
        await drain(app)
        assert await handle.result() == "done"
    assert [(b - a) / 86400 for a, b in itertools.pairwise(at)] == [1, 2, 4]


async def test_the_end_of_run_inline_drains(make_app: MakeApp) -> None:
    """§16: Every due item runs."""
    ran: list[int] = []

    @work(name="note")
    async def note(n: int) -> None:
        ran.append(n)

    async with run_inline(make_app(note)) as app:
        await app.enqueue_many([note(n) for n in range(30)])
    assert sorted(ran) == list(range(30))


async def test_drain_runs_collected_batches(make_timed: MakeApp) -> None:
    """§16: It does not wait for the clock, which may stand still."""

    @work.batch(size=10, max_wait=60)
    async def double(numbers: list[int]) -> list[int]:
        return [2 * n for n in numbers]

    async with run_inline(make_timed(double)) as app:
        handles = await app.enqueue_many([double(n) for n in range(3)])
        async with asyncio.timeout(PATIENCE):
            await drain(app)
        assert [await handle.result() for handle in handles] == [0, 2, 4]


RAN: list[str] = []


@work(name="tick")
async def tick() -> None:
    RAN.append("tick")


async def test_bursts_one_after_another_fire_what_is_due_at_their_start(
    make_timed: MakeApp, clock: ManualClock
) -> None:
    RAN.clear()
    for burst in range(4):
        app = make_timed(tick)
        app.schedule("s", every=60, run=tick)
        async with run_inline(app):
            await drain(app)
            assert len(RAN) == burst
        await clock.advance(61)


async def test_a_start_waits_for_the_first_look_at_the_schedules(clock: ManualClock) -> None:
    """However slow the store is. So `drain` runs what was due."""
    RAN.clear()
    backend = FaultyBackend(MemoryBackend(clock=clock))
    app = Treadle(backend, work=[tick], clock=clock)
    app.schedule("s", every=60, run=tick)
    async with run_inline(app):
        await drain(app)
    await clock.advance(61)
    slow = backend.faults.hold("schedules")
    async with asyncio.timeout(PATIENCE):
        starting = asyncio.ensure_future(app.start())
        await slow.reached()
        await asyncio.wait({starting}, timeout=0.05)
        assert not starting.done()
        slow.release()
        await starting
        await drain(app)
        assert RAN == ["tick"]
        await app.stop()


async def test_drain_needs_a_started_app() -> None:
    """§16."""
    with pytest.raises(NotStarted):
        await drain(Treadle())
