"""Handles: waiting, timeouts, reattaching (SPEC §4)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.engine.kit import PATIENCE, Barrier, MakeApp, no_new_tasks
from treadle import Context, Result, WaitTimeout, work


async def test_a_handle_can_be_made_in_another_process(make_app: MakeApp) -> None:
    """§4: `app.handle(id)`, for a running item, for an ended item and for a child."""
    barrier = Barrier()

    @work(name="child")
    async def child() -> int:
        await barrier.wait()
        return 5

    one = child()

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(one)

    first, second = make_app(root, child), make_app(root, child, poll_interval=0.2)
    async with first:
        handle = await first.enqueue(root())
        await barrier.reached()
        other = second.handle(handle.id)
        waiting = [
            asyncio.ensure_future(wait)
            for wait in (
                other.group(PATIENCE),
                second.handle(one.id).group(PATIENCE),
                second.handle(one.id).result(PATIENCE),
            )
        ]
        await asyncio.sleep(0)
        barrier.go.set()
        assert await asyncio.gather(*waiting) == [5, 5, 5]
        assert second.handle(one.id).id == one.id
        assert await second.handle(handle.id) == 5


async def test_a_wait_that_times_out_leaves_nothing_behind(make_app: MakeApp) -> None:
    """§4: WaitTimeout, no task and no timer. The item goes on, and a later wait gets its result."""
    barrier = Barrier()

    @work(name="held")
    async def held() -> int:
        await barrier.wait()
        return 1

    # The worker's own loops make tasks too, so they sleep for long.
    async with make_app(held, poll_interval=10, lease=60) as app:
        handle = await app.enqueue(held())
        await barrier.reached()
        await app.handle(handle.id).state()
        for wait in (handle.result, handle.group, app.handle(handle.id).result):
            with no_new_tasks(), pytest.raises(WaitTimeout) as caught:
                await wait(timeout=0.05)
            assert (caught.value.id, caught.value.timeout) == (handle.id, 0.05)
        assert not app._core.waiters.items.futures
        assert not app._core.waiters.groups.futures
        barrier.go.set()
        assert await handle.result(timeout=timedelta(seconds=PATIENCE)) == 1


async def test_an_enqueue_that_times_out_is_submitted(make_app: MakeApp) -> None:
    """§4: Only the wait ends."""
    barrier = Barrier()

    @work(name="held")
    async def held() -> int:
        await barrier.wait()
        return 1

    async with make_app(held) as app:
        one = held()
        with pytest.raises(WaitTimeout):
            await app.enqueue(one).result(timeout=0.05)
        barrier.go.set()
        assert await app.handle(one.id).result(PATIENCE) == 1


async def test_a_waiter_that_is_cancelled_changes_nothing(make_app: MakeApp) -> None:
    """§4."""
    barrier = Barrier()

    @work(name="held")
    async def held() -> int:
        await barrier.wait()
        return 1

    async with make_app(held) as app:
        handle = await app.enqueue(held())
        await barrier.reached()
        waiting = asyncio.ensure_future(handle.result())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not app._core.waiters.items.futures
        barrier.go.set()
        assert await handle.result(PATIENCE) == 1
