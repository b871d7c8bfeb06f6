"""Q8, Q26, Q31, Q40, Q42 on PostgreSQL: many workers, flows, wake-ups, waiting."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from tests.engine.kit import PATIENCE, Barrier, Seen, no_new_tasks
from treadle import Context, NotFound, Result, Treadle, WaitTimeout, work
from treadle.backends.postgres import PostgresBackend
from treadle.events import GroupDone
from treadle.testing import CountingBackend


async def test_q08_each_handler_runs_once(prepared_url: str) -> None:
    """200 items, 8 workers that claim at the same time."""
    ran: Counter[int] = Counter()

    @work(name="note")
    async def note(n: int) -> None:
        ran[n] += 1

    async with AsyncExitStack() as stack:
        apps = [Treadle(prepared_url, work=[note]) for _ in range(8)]
        await apps[0].connect()
        handles = await apps[0].enqueue_many([note(n) for n in range(200)])
        await asyncio.gather(*(stack.enter_async_context(app) for app in apps))
        await asyncio.gather(*(handle.result(PATIENCE) for handle in handles))
    assert ran == Counter(range(200))


async def test_q26_a_flow_may_loop_and_branch(prepared_url: str) -> None:
    """The group has the value of the last step. Its items are listed in order, each with its parent."""

    @work(name="begin")
    async def begin(ctx: Context) -> Result[None, str]:
        return ctx.queue(loop(0))

    @work(name="loop")
    async def loop(ctx: Context, n: int) -> Result[None, str]:
        return ctx.queue(loop(n + 1)) if n < 4 else ctx.queue(branch(n))

    @work(name="branch")
    async def branch(ctx: Context, n: int) -> Result[None, str]:
        return ctx.queue(back() if n % 2 else end(n))

    @work(name="back")
    async def back(ctx: Context) -> Result[None, str]:
        return ctx.queue(loop(0))

    @work(name="end")
    async def end(n: int) -> str:
        return f"ended after {n}"

    async with Treadle(prepared_url, work=[begin, loop, branch, back, end]) as app:
        handle = await app.enqueue(begin())
        assert await handle.group(PATIENCE) == "ended after 4"
        page = await app.list(group_id=handle.id, oldest_first=True)
        assert [state.type for state in page.items] == ["begin", *["loop"] * 5, "branch", "end"]
        assert page.items[0].id == handle.id
        parents = [state.parent for state in page.items]
        assert parents == [None, *(state.id for state in page.items[:-1])]
        assert {state.status for state in page.items} == {"success"}


async def test_q31_a_thousand_children_are_added_up(prepared_url: str) -> None:
    """Three workers at once: the sum is exact, and the group ends once."""
    seen = Seen()

    @work(name="one")
    async def one(ctx: Context) -> Result[int, int]:
        return ctx.result(1, append=lambda total: (total or 0) + 1)

    @work(name="fan")
    async def fan(ctx: Context, n: int) -> Result[None, int]:
        return ctx.queue([one() for _ in range(n)])

    async with AsyncExitStack() as stack:
        apps = [Treadle(prepared_url, work=[one, fan], on_event=seen) for _ in range(3)]
        for app in apps:
            await stack.enter_async_context(app)
        handle = await apps[0].enqueue(fan(1000))
        assert await handle.group(4 * PATIENCE) == 1000
    assert [event.id for event in seen.of(GroupDone)] == [handle.id]


async def test_q40_a_wake_up_costs_each_worker_few_claims(prepared_url: str) -> None:
    """Three items and ten idle workers: each worker makes at most five claims."""

    @work(name="note")
    async def note(n: int) -> int:
        return n

    async with AsyncExitStack() as stack:
        backends = [CountingBackend(PostgresBackend(prepared_url, pool_size=3)) for _ in range(10)]
        apps = [Treadle(backend, work=[note], poll_interval=30.0, lease=60.0) for backend in backends]
        for app in apps:
            await stack.enter_async_context(app)
        producer = Treadle(prepared_url, work=[note])
        await asyncio.gather(*(app.worker.drain() for app in apps))
        for backend in backends:
            backend.reset()
        handles = await producer.enqueue_many([note(n) for n in range(3)])
        assert [await handle.result(PATIENCE) for handle in handles] == [0, 1, 2]
        await asyncio.gather(*(app.worker.drain() for app in apps))
        claims = [backend.calls["claim"] for backend in backends]
        assert max(claims) <= 5, claims
        await producer.close()


class TestQ42Waiting:
    async def test_a_wait_timeout_leaves_no_task(self, prepared_url: str) -> None:
        """The item keeps running."""
        barrier = Barrier()

        @work(name="wait")
        async def wait() -> str:
            await barrier.wait()
            return "done"

        async with Treadle(prepared_url, work=[wait]) as app:
            handle = await app.enqueue(wait())
            await barrier.reached()
            with no_new_tasks(), pytest.raises(WaitTimeout):
                await handle.result(0.05)
            barrier.go.set()
            assert await handle.result(PATIENCE) == "done"

    async def test_waiting_for_a_deleted_item_raises_not_found(self, prepared_url: str) -> None:
        """Also for a waiter in another process."""

        @work(name="never")
        async def never() -> None: ...

        app, other = Treadle(prepared_url, work=[never]), Treadle(prepared_url, work=[never])
        handle = await app.enqueue(never(), delay=3600)
        await other.connect()
        waiting = [asyncio.create_task(each.handle(handle.id).result(PATIENCE)) for each in (app, other)]
        await asyncio.sleep(0.1)
        assert await app.delete([handle.id]) == 1
        for task in waiting:
            with pytest.raises(NotFound):
                await task
        await app.close()
        await other.close()

    async def test_cancelling_a_waiter_does_not_touch_the_item(self, prepared_url: str) -> None:
        """The waiter gets CancelledError."""

        @work(name="never")
        async def never() -> None: ...

        app = Treadle(prepared_url, work=[never])
        handle = await app.enqueue(never(), delay=3600)
        task = asyncio.create_task(handle.result())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await handle.state()).status == "scheduled"
        await app.close()
