"""Handles: waiting, timeouts, reattaching (SPEC §4)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Barrier, MakeApp, no_new_tasks
from treadle import Abort, Client, Context, InputError, NotFound, Result, Treadle, WaitTimeout, work
from treadle.backends.memory import MemoryBackend
from treadle.errors import BackendError
from treadle.handle import Handle, submitted_handle, submitted_handles
from treadle.item import AuditNote, Ended, Ref, Submitted
from treadle.operate.operator import core_of


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


async def test_a_wait_for_the_end_gives_no_value_and_raises_no_error_of_the_work(make_app: MakeApp) -> None:
    """`handle.wait()`: True when the item has ended, with `group` its whole group, however it did."""
    barrier = Barrier()

    @work(name="child")
    async def child() -> None:
        await barrier.wait()
        raise Abort("no")

    @work(name="root")
    async def root(ctx: Context) -> Result[None, None]:
        return ctx.queue(child())

    async with make_app(root, child) as app:
        handle = await app.enqueue(root())
        assert handle.queued_at
        same = app.handle(await handle.state())
        assert (same.id, same.group_id, same.queued_at) == (handle.id, handle.group_id, None)
        assert await same.wait(PATIENCE)
        await barrier.reached()
        with no_new_tasks():
            assert not await same.wait(0.01, group=True)
        barrier.go.set()
        assert await same.wait(PATIENCE, group=True)
        with pytest.raises(NotFound):
            await app.handle("unknown").wait(PATIENCE)
        other = app.tenant("other").handle(await handle.state())
        with pytest.raises(NotFound):  # it is not that tenant's
            await other.wait(PATIENCE)


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


@pytest.mark.parametrize("id", ["", "a\nb", "a\0b", "a\ud800", "a" * 129, None])
def test_a_handle_of_what_cannot_be_an_id_is_refused(make_app: MakeApp, id: Any) -> None:
    """It must not reach the store together with the ids that others wait for."""
    with pytest.raises(InputError, match="id"):
        make_app().handle(id)


async def test_a_reference_that_the_store_refuses_harms_no_other_waiter() -> None:
    """All of them are read with one call."""
    barrier = Barrier()

    class Refusing(MemoryBackend):
        async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
            if any(id == "refused" for _, id in items):
                raise BackendError("this id is malformed")
            return await super().ended(items, groups)

    @work(name="held")
    async def held(n: int) -> int:
        await barrier.wait()
        return n

    backend = Refusing()
    async with Treadle(backend, work=[held]) as app:
        other = Client(backend, work=[held], poll_interval=0.05)
        handles = await app.enqueue_many([held(n) for n in range(5)])
        await barrier.reached()
        refused = asyncio.ensure_future(other.tenant("default").handle("refused").result())
        waiting = [asyncio.ensure_future(other.handle(each.id).result(PATIENCE)) for each in handles]
        groups = [asyncio.ensure_future(other.handle(each.id).group(PATIENCE)) for each in handles]
        await asyncio.sleep(0)
        barrier.go.set()
        assert await asyncio.gather(*waiting) == list(range(5))
        assert await asyncio.gather(*groups) == list(range(5))
        assert not refused.done()
        refused.cancel()
        await asyncio.wait([refused])
        await other.close()


def test_handles_of_many_are_those_of_one() -> None:
    core = core_of(Client("memory://"))
    note = AuditNote(actor="ann")
    answers = [
        Submitted("a", group_id="g", queued_at=3.0),
        Submitted("b", existing=True, queued_at=3.0),
        Submitted("c"),
    ]
    for one, answer in zip(submitted_handles(core, "t", answers, note), answers, strict=True):
        expected = submitted_handle(core, "t", answer, note)
        assert type(one) is Handle
        for name in Handle.__slots__:
            assert getattr(one, name) == getattr(expected, name), name
