"""Groups: their value, final values, appends and their end (SPEC §2, §7, §17)."""

from __future__ import annotations

import asyncio

from tests.engine.kit import PATIENCE, Barrier, MakeApp, Seen, failure, until
from treadle import Abort, Context, Result, Retry, WorkCancelled, work
from treadle.doers import priority
from treadle.events import GroupDone


@work
async def value(n: int) -> int:
    return n


@work
async def plus(ctx: Context, n: int) -> Result[int]:
    return ctx.result(n, append=lambda old: (old or 0) + n)


@work
async def bad(ctx: Context) -> int:
    raise Abort("bad")


# ---------------------------------------------------------------------------------------- value, final, fold


async def test_final_locks_the_value(make_app: MakeApp) -> None:
    """T6, A16: The parent's value stays, although the child contributes later."""
    late: list[int] = []

    @work(name="child")
    async def child() -> int:
        late.append(1)
        return 1

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str | int]:
        return ctx.queue(child(), ctx.result("final", final=True))

    async with make_app(root, child) as app:
        assert await app.enqueue(root()).group(PATIENCE) == "final"
    assert late == [1]


async def test_the_last_member_to_finish_gives_the_value(make_app: MakeApp) -> None:
    """§2."""
    barrier = Barrier()

    @work(name="slow")
    async def slow() -> str:
        await barrier.wait()
        return "slow"

    @work(name="fast")
    async def fast() -> str:
        return "fast"

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str]:
        return ctx.queue(slow(), fast_one)

    fast_one = fast()
    async with make_app(root, slow, fast) as app:
        handle = await app.enqueue(root())
        await barrier.reached()
        assert await app.handle(fast_one.id).result(PATIENCE) == "fast"
        barrier.go.set()
        assert await handle.group(PATIENCE) == "slow"


async def test_appends_are_combined(make_app: MakeApp) -> None:
    """T7: Three appends, one at a time."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(plus(1), plus(2), plus(3))

    async with make_app(root, plus, doer=priority(1)) as app:
        assert await app.enqueue(root()).group(PATIENCE) == 6


async def test_append_is_exact_under_concurrency(make_app: MakeApp) -> None:
    """A16, §2: 20 concurrent appends of 1 on two workers give 20."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue([plus(1) for _ in range(20)])

    async with make_app(root, plus) as app, make_app(root, plus):
        assert await app.enqueue(root()).group(PATIENCE) == 20
        items = (await app.list(type=plus.name)).items
        assert [item.result for item in items] == [1] * 20


async def test_append_starts_from_none(make_app: MakeApp) -> None:
    """§17: `fn(old | None) -> new`. The item's own result is its value, not the combined one."""

    @work(name="collect")
    async def collect(ctx: Context, n: int) -> Result[int, list[int]]:
        return ctx.result(n, append=lambda old: [*(old or []), n])

    async with make_app(collect) as app:
        handle = await app.enqueue(collect(5))
        assert await handle.group(PATIENCE) == [5]
        assert await handle.result(PATIENCE) == 5


async def test_append_with_final_combines_and_then_locks(make_app: MakeApp) -> None:
    """§17: Later contributions are ignored."""

    @work(name="lock")
    async def lock(ctx: Context) -> Result[int]:
        return ctx.result(100, append=lambda old: (old or 0) + 100, final=True)

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(plus(1)).next(lock()).next(plus(1000)).next(value(5))

    async with make_app(root, plus, lock, value) as app:
        assert await app.enqueue(root()).group(PATIENCE) == 101


async def test_an_append_that_raises_fails_its_attempt(make_app: MakeApp) -> None:
    """§2: The append is part of the settlement. If it raises, nothing is settled."""
    calls: list[int] = []

    def refuse(_: int | None) -> int:
        raise ValueError("cannot fold")

    @work(name="fold", retry=Retry(attempts=2, base=0))
    async def fold(ctx: Context) -> Result[int]:
        calls.append(ctx.attempt)
        return ctx.result(1, append=refuse)

    async with make_app(fold) as app:
        error = await failure(app.enqueue(fold()).result(PATIENCE))
        assert (error.reason, error.error) == ("exhausted", "cannot fold")
    assert calls == [1, 2]


async def test_appends_of_a_refused_settlement_do_not_count(make_app: MakeApp) -> None:
    """§2: The append of a cancelled member is not in the value that other members add to."""
    barriers = {100: Barrier(), 10: Barrier(), 1: Barrier()}

    @work(name="held")
    async def held(ctx: Context, n: int) -> Result[int]:
        await barriers[n].wait()
        return ctx.result(n, append=lambda old: (old or 0) + n)

    hundred, ten, one = held(100), held(10), held(1)

    @work(name="root", queue="here")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(ctx.queue(hundred, one, queue="here"), ctx.queue(ten, queue="there"))

    here, there = make_app(root, held, queues=["here"]), make_app(root, held, queues=["there"])
    async with here, there:
        handle = await here.enqueue(root())
        for barrier in barriers.values():
            await barrier.reached()
        # No wake-up is sent, so the handler goes on, and its settlement is refused.
        await here.backend.cancel([hundred.id])
        barriers[100].go.set()
        await until(lambda: here.metrics.get("lease_lost") == 1)
        for n, work_ in ((10, ten), (1, one)):
            barriers[n].go.set()
            assert await here.handle(work_.id).result(PATIENCE) == n
        assert await handle.group(PATIENCE) == 11


# ---------------------------------------------------------------------------------------- the end of a group


async def test_a_group_is_done_once(make_app: MakeApp) -> None:
    """DESIGN §5.4: It is done when its last descendant has ended, and not earlier."""
    seen = Seen()

    @work(name="deep")
    async def deep(ctx: Context, n: int) -> Result[None, int]:
        return ctx.queue(deep(n - 1), deep(n - 1)) if n else ctx.queue(value(n))

    async with make_app(deep, value, on_event=seen) as app:
        handle = await app.enqueue(deep(3))
        assert await handle.group(PATIENCE) == 0
        group = await app.group(handle.id)
        assert group is not None
        assert (group.open, group.value) == (0, 0)
        assert group.ended_at is not None
    assert [event.id for event in seen.of(GroupDone)] == [handle.id]
    assert seen.names()[-1] == "GroupDone"


async def test_a_group_of_cancelled_members_raises_work_cancelled(make_app: MakeApp) -> None:
    """§17: A cancelled member contributes nothing."""
    barrier = Barrier()

    @work(name="held")
    async def held() -> int:
        await barrier.wait()
        return 1

    async with make_app(held) as app:
        handle = await app.enqueue(held())
        await barrier.reached()
        waiting = asyncio.ensure_future(failure(handle.group(PATIENCE)))
        await handle.cancel()
        assert isinstance(await waiting, WorkCancelled)
