"""Interrupts: cancelled items, lost leases and suspended machines (SPEC §10)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, Barrier, MakeApp, Seen, failure, until
from treadle import Context, Handle, LeaseLost, MemoryBackend, Treadle, WorkCancelled, work
from treadle.backend import Backend
from treadle.events import LeaseLost as LostEvent
from treadle.testing import CountingBackend, ManualClock, WrappedBackend

T = TypeVar("T")
Verb = Callable[[Treadle, Handle[None]], Awaitable[object]]


async def cancel(app: Treadle, handle: Handle[None]) -> None:
    await handle.cancel()


async def complete(app: Treadle, handle: Handle[None]) -> None:
    await app.complete(handle, "by hand")


async def delete(app: Treadle, handle: Handle[None]) -> None:
    await app.delete(handle)


@pytest.mark.parametrize(
    ("verb", "reason"), [(cancel, "cancelled"), (complete, "completed"), (delete, "not_found")]
)
@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_an_operator_interrupts_a_handler(
    make_app: MakeApp, verb: Verb, reason: str, where: str
) -> None:
    """§10, §11: A wake-up tells the worker at once. The handler is cancelled with the reason, and its late
    result is refused."""
    barrier, seen = Barrier(), Seen()
    reasons: list[object] = []

    @work(name="held")
    async def held(ctx: Context) -> str:
        try:
            await barrier.wait()
        finally:
            reasons.append(ctx.interrupt.reason)
        return "late"

    # Heartbeats are rare, so it is the wake-up that tells the worker.
    runner = make_app(held, on_event=seen, lease=60)
    operator = runner if where == "here" else make_app(held)
    async with runner:
        handle = await operator.enqueue(held())
        await barrier.reached()
        await verb(operator, handle)
        lost = await seen.until(LostEvent, handle.id)
        assert (lost.reason, lost.attempt) == (reason, 1)
        assert reasons == [reason]
        await until(lambda: not runner.active())
        (state,) = await operator.get([handle.id])
        if reason == "not_found":
            assert state is None
        else:
            assert state is not None
            assert (state.status, state.result) == (
                ("cancelled", None) if reason == "cancelled" else ("success", "by hand")
            )


async def test_the_waiter_of_a_cancelled_item_gets_work_cancelled(make_app: MakeApp) -> None:
    """§17: It is a WorkFailed and has the reason."""
    barrier = Barrier()

    @work(name="held")
    async def held() -> None:
        await barrier.wait()

    async with make_app(held) as app:
        handle = await app.enqueue(held())
        await barrier.reached()
        waiting = asyncio.ensure_future(failure(handle.result(PATIENCE)))
        await asyncio.sleep(0)
        await handle.cancel()
        error = await waiting
        assert isinstance(error, WorkCancelled)
        assert error.reason == "cancelled"


async def test_a_lost_lease_is_found_at_the_next_heartbeat(make_app: MakeApp) -> None:
    """§10: The reason is `taken`. No wake-up is needed."""
    barrier, seen = Barrier(), Seen()
    reasons: list[object] = []

    @work(name="held")
    async def held(ctx: Context) -> int:
        if ctx.attempt > 1:
            return ctx.attempt
        try:
            await barrier.wait()
        finally:
            reasons.append(ctx.interrupt.reason)
        return 0

    app = make_app(held, worker_id="w-1", on_event=seen, lease=0.5, heartbeat=0.1)
    async with app:
        handle = await app.enqueue(held())
        await barrier.reached()
        # Another process removed the worker by mistake. The worker beats again.
        assert await app.backend.remove_worker("w-1") == 1
        await seen.until(LostEvent, handle.id)
        assert await handle.result(PATIENCE) == 2
    assert reasons == ["taken"]


async def test_an_interrupt_can_be_awaited_and_checked(make_app: MakeApp) -> None:
    """§3: `.reason`, `await ctx.interrupt` and `raise_if_set()`, within `interrupt_grace`."""
    barrier = Barrier()
    seen: list[object] = []

    @work(name="polite")
    async def polite(ctx: Context) -> None:
        barrier.started.set()
        assert not ctx.interrupt
        seen.append(await ctx.interrupt)
        with pytest.raises(LeaseLost):
            ctx.interrupt.raise_if_set()
        await asyncio.sleep(0.02)
        seen.append("cleaned up")

    async with make_app(polite, interrupt_grace=PATIENCE) as app:
        handle = await app.enqueue(polite())
        await barrier.reached()
        await handle.cancel()
        await until(lambda: len(seen) == 2)
    assert seen == ["cancelled", "cleaned up"]


async def test_a_handler_is_cancelled_after_interrupt_grace(make_app: MakeApp) -> None:
    """§10."""
    barrier = Barrier()
    ended = asyncio.Event()

    @work(name="deaf")
    async def deaf() -> None:
        try:
            await barrier.wait()
        finally:
            ended.set()

    async with make_app(deaf, interrupt_grace=0.1) as app:
        handle = await app.enqueue(deaf())
        await barrier.reached()
        await handle.cancel()
        assert not ended.is_set()
        async with asyncio.timeout(PATIENCE):
            await ended.wait()


async def test_a_handler_in_a_thread_can_wait_for_its_interrupt(make_app: MakeApp) -> None:
    """§3."""
    started = threading.Event()
    seen: list[object] = []

    @work(name="threaded")
    def threaded(ctx: Context) -> None:
        started.set()
        assert ctx.interrupt.wait(PATIENCE)
        seen.append(ctx.interrupt.reason)

    async with make_app(threaded) as app:
        handle = await app.enqueue(threaded())
        await asyncio.to_thread(started.wait, PATIENCE)
        await handle.cancel()
        await until(lambda: seen)
    assert seen == ["cancelled"]


@pytest.mark.parametrize("lead", [0.1, 1.0, 1.9])
async def test_a_suspended_process_keeps_its_items(
    make_timed: MakeApp, clock: ManualClock, lead: float
) -> None:
    """§10: Time jumps past its lease, and no other worker takes over. It beats before it claims."""
    barrier = Barrier()

    @work(name="held")
    async def held(ctx: Context) -> int:
        await barrier.wait()
        return ctx.attempt

    app = make_timed(held, lease=10, heartbeat=2, poll_interval=lead)
    counting = app._core.backend = CountingBackend(app.backend)
    async with app:
        handle = await app.enqueue(held())
        await barrier.reached()
        for jumps in range(1, 6):
            # Time jumps while no claim is under way. A claim would find that its own worker is dead.
            await until(lambda: len(counting.sizes["claim"]) == counting.calls["claim"])
            await clock.advance(50)
            await until(lambda: counting.calls["beat"] > jumps)  # noqa: B023  called in this iteration
        barrier.go.set()
        assert await handle.result(PATIENCE) == 1
        assert (await handle.state()).history == ()


@pytest.mark.parametrize("steps", range(8))
async def test_a_process_suspended_before_a_claim_keeps_its_items(clock: ManualClock, steps: int) -> None:
    """§10: At any step between the decision to claim and the claim. In memory, where a claim takes no
    time."""
    barrier = Barrier()

    @work(name="held")
    async def held(ctx: Context) -> int:
        await barrier.wait()
        return ctx.attempt

    async with Treadle(MemoryBackend(clock=clock), work=[held], clock=clock, lease=10) as app:
        handle = await app.enqueue(held())
        await barrier.reached()
        for _ in range(3):
            app._core.wakeups.ready()
            for _ in range(steps):
                await asyncio.sleep(0)
            await clock.advance(50)
        barrier.go.set()
        assert await handle.result(PATIENCE) == 1


class Suspending(WrappedBackend):
    """A machine that is suspended while the answer to a heartbeat is under way."""

    def __init__(self, inner: Backend, clock: ManualClock) -> None:
        super().__init__(inner)
        self.clock = clock
        self.times = 0

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        answer = await call()
        if verb == "beat" and self.times:
            self.times -= 1
            self.clock.advance(50)
        return answer


async def test_a_process_suspended_during_a_heartbeat_keeps_its_items(clock: ManualClock) -> None:
    """§10: That heartbeat is too old, so another one comes before the claim."""
    barrier = Barrier()

    @work(name="held")
    async def held(ctx: Context) -> int:
        await barrier.wait()
        return ctx.attempt

    backend = Suspending(MemoryBackend(clock=clock), clock)
    async with Treadle(backend, work=[held], clock=clock, lease=10) as app:
        handle = await app.enqueue(held())
        await barrier.reached()
        backend.times = 2
        await clock.advance(50)
        await until(lambda: not backend.times)
        barrier.go.set()
        assert await handle.result(PATIENCE) == 1


async def test_a_handler_may_run_longer_than_its_lease(make_app: MakeApp) -> None:
    """§10: It stays one attempt."""

    @work(name="long")
    async def long(ctx: Context) -> int:
        for _ in range(8):
            await asyncio.sleep(0.1)
        return ctx.attempt

    async with make_app(long, lease=0.3, heartbeat=0.05) as app, make_app(long, lease=0.3, heartbeat=0.05):
        handle = await app.enqueue(long(), retry=AT_ONCE)
        assert await handle.result(PATIENCE) == 1
        assert (await handle.state()).history == ()
