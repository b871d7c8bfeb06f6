"""Handles: waiting, giving up, reattaching (SPEC §4)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.engine.kit import PATIENCE, Gate, MakeApp, no_new_tasks
from treadle import Context, Result, WaitTimeout, work


async def test_reattach_from_another_process(make_app: MakeApp) -> None:
    """§4: `app.handle(id)`, for an item that runs and for one that has ended; for a child too."""
    gate = Gate()

    @work(name="child")
    async def child() -> int:
        await gate.passing()
        return 5

    one = child()

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(one)

    first, second = make_app(root, child), make_app(root, child, poll_interval=0.2)
    async with first:
        handle = await first.enqueue(root())
        await gate.reached()
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
        gate.go.set()
        assert await asyncio.gather(*waiting) == [5, 5, 5]
        assert second.handle(one.id).id == one.id
        assert await second.handle(handle.id) == 5


async def test_a_timeout_leaves_nothing_behind(make_app: MakeApp) -> None:
    """§4: `WaitTimeout`, no task, no timer; the work goes on and can still be waited for."""
    gate = Gate()

    @work(name="held")
    async def held() -> int:
        await gate.passing()
        return 1

    # Its own loops, which make tasks now and then, are told to sleep long.
    async with make_app(held, poll_interval=10, lease=60) as app:
        handle = await app.enqueue(held())
        await gate.reached()
        await app.handle(handle.id).state()
        for wait in (handle.result, handle.group, app.handle(handle.id).result):
            with no_new_tasks(), pytest.raises(WaitTimeout) as caught:
                await wait(timeout=0.05)
            assert (caught.value.id, caught.value.timeout) == (handle.id, 0.05)
        assert not app._core.waiters.items.futures
        assert not app._core.waiters.groups.futures
        gate.go.set()
        assert await handle.result(timeout=timedelta(seconds=PATIENCE)) == 1


async def test_an_enqueue_that_times_out_is_submitted(make_app: MakeApp) -> None:
    """§4: the wait ended, the work did not."""
    gate = Gate()

    @work(name="held")
    async def held() -> int:
        await gate.passing()
        return 1

    async with make_app(held) as app:
        one = held()
        with pytest.raises(WaitTimeout):
            await app.enqueue(one).result(timeout=0.05)
        gate.go.set()
        assert await app.handle(one.id).result(PATIENCE) == 1


async def test_a_waiter_that_is_cancelled_changes_nothing(make_app: MakeApp) -> None:
    """§4."""
    gate = Gate()

    @work(name="held")
    async def held() -> int:
        await gate.passing()
        return 1

    async with make_app(held) as app:
        handle = await app.enqueue(held())
        await gate.reached()
        waiting = asyncio.ensure_future(handle.result())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not app._core.waiters.items.futures
        gate.go.set()
        assert await handle.result(PATIENCE) == 1
