"""The number of calls to the store: calls are combined, and an idle worker makes very few."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.engine.kit import PATIENCE, MakeApp, MakeBackend, until
from treadle import Context, Result, Treadle, work
from treadle.backends.memory import MemoryBackend
from treadle.doers import balanced
from treadle.testing import CountingBackend, ManualClock

pytestmark = pytest.mark.every_store

MakeCounted = Callable[..., tuple[Treadle, CountingBackend]]

PATH = ("submit", "claim", "settle", "ended")
"""The verbs that move items: everything except heartbeats, wake-ups and upkeep."""


@work(name="noop")
async def noop(n: int) -> int:
    return n


@pytest.fixture
def make_counted(sound: None, make_app: MakeApp, store: MakeBackend) -> MakeCounted:
    """Make apps on this test's store whose calls are counted. They poll rarely, because no test depends on
    the poll."""

    def make(*work: object, **settings: object) -> tuple[Treadle, CountingBackend]:
        counted = CountingBackend(store())
        return make_app(*work, backend=counted, **{"poll_interval": 30, "lease": 60, **settings}), counted

    return make


async def test_one_enqueue_is_one_submit(make_counted: MakeCounted) -> None:
    app, counted = make_counted(noop)
    await app.connect()
    counted.reset()
    await app.enqueue(noop(1))
    assert (counted.total(*PATH), counted.calls["submit"]) == (1, 1)
    await app.enqueue_many([noop(n) for n in range(100)])
    assert (counted.total(*PATH), counted.calls["submit"]) == (2, 2)


async def test_concurrent_enqueues_share_submits(make_counted: MakeCounted) -> None:
    """The first is written alone. The others collect in the meantime."""
    app, counted = make_counted(noop)
    await app.connect()
    counted.reset()
    await asyncio.gather(*(app.enqueue(noop(n)) for n in range(500)))
    assert sum(counted.sizes["submit"]) == 500
    assert counted.calls["submit"] <= 3


async def test_one_item_takes_one_submit_one_claim_and_one_settle(make_counted: MakeCounted) -> None:
    """Its result takes no query."""
    app, counted = make_counted(noop)
    async with app:
        await app.enqueue(noop(0)).result(PATIENCE)
        counted.reset()
        assert await app.enqueue(noop(1)).result(PATIENCE) == 1
        assert (counted.calls["submit"], counted.useful("claim"), counted.calls["settle"]) == (1, 1, 1)
        assert (counted.calls["ended"], counted.calls["get"]) == (0, 0)


async def test_a_claim_that_fills_the_worker_is_not_repeated(make_counted: MakeCounted) -> None:
    """What is doomed came with it. There is nothing to ask for until a handler ends."""
    running, go_on = list[int](), asyncio.Event()

    @work(name="waits")
    async def waits(n: int) -> None:
        running.append(n)
        await go_on.wait()

    app, counted = make_counted(waits, doer=balanced(2, buffer=0))
    await app.enqueue_many([waits(n) for n in range(4)])
    async with app:
        await until(lambda: len(running) == 2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert counted.calls["claim"] == 1
        go_on.set()
        await app.worker.drain()
    assert sorted(running) == [0, 1, 2, 3]


async def test_a_lone_item_pays_no_second_claim(make_counted: MakeCounted) -> None:
    """A claim that found less than there is room for left nothing: the next one waits for a wake-up."""
    client, _ = make_counted(noop)
    app, counted = make_counted(noop, poll_interval=60)
    async with app:
        await client.enqueue(noop(0)).result(PATIENCE)
        await app.worker.drain()
        counted.reset()
        for n in range(5):
            assert await client.enqueue(noop(n)).result(PATIENCE) == n
        await app.worker.drain()
        assert counted.sizes["claim"] == [1, 1, 1, 1, 1, 0]  # the last one is of the drain


async def test_many_items_share_claims_and_settles(make_counted: MakeCounted) -> None:
    """500 ready items."""
    client, _ = make_counted(noop)
    handles = await client.enqueue_many([noop(n) for n in range(500)])
    app, counted = make_counted(noop)
    async with app:
        await asyncio.gather(*(app.handle(handle.id).result(PATIENCE) for handle in handles))
        assert sum(counted.sizes["claim"]) == sum(counted.sizes["settle"]) == 500
        assert counted.useful("claim") <= 4
        assert counted.calls["settle"] <= 6


async def test_a_fan_out_of_1000_takes_at_most_30_calls(make_counted: MakeCounted) -> None:
    """1,000 children, and the work that waits for them."""
    seen: list[int] = []

    @work(name="last")
    async def last(ctx: Context) -> int:
        seen.append(len(ctx.dependencies))
        return len(ctx.dependencies)

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue([noop(n) for n in range(1000)]).next(last())

    app, counted = make_counted(noop, root, last)
    async with app:
        counted.reset()
        assert await app.enqueue(root()).group(PATIENCE) == 1000
        assert counted.total(*PATH) <= 30, counted.calls
        assert (counted.calls["submit"], sum(counted.sizes["settle"])) == (1, 1002)
    assert seen == [1000]


async def test_waiters_in_another_process_share_queries(make_counted: MakeCounted, make_app: MakeApp) -> None:
    """Wake-ups tell 1,000 handles. One query answers many of them."""
    client, counted = make_counted(noop)
    async with make_app(noop):
        handles = await client.enqueue_many([noop(n) for n in range(1000)])
        results = await asyncio.gather(*(handle.result(PATIENCE) for handle in handles))
        assert results == list(range(1000))
    assert counted.calls["ended"] <= 60
    assert counted.calls["get"] == 0


INTERVALS = 120


@pytest.mark.parametrize("waiting", [0, 1000])
async def test_an_idle_worker_makes_at_most_one_call_per_interval(waiting: int) -> None:
    """Also with 1,000 awaited handles. All verbs count, heartbeats included, at the default settings."""
    clock = ManualClock()
    counted = CountingBackend(MemoryBackend(clock=clock))
    async with Treadle(counted, work=[noop], clock=clock) as app:
        handles = await app.enqueue_many([noop(n) for n in range(waiting)], delay=1e6) if waiting else []
        waiters = [asyncio.ensure_future(handle.result()) for handle in handles]
        await _pass(clock, 70)  # the first sample of the backlog reads what there was before
        counted.reset()
        await _pass(clock, INTERVALS)
        assert counted.total() <= INTERVALS, counted.calls
        assert counted.calls["claim"] >= INTERVALS / 10  # the worker still polls
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)


async def _pass(clock: ManualClock, intervals: int) -> None:
    """Let this many poll intervals pass in small steps, so that every timer fires."""
    for _ in range(intervals * 4):
        await clock.advance(0.25)


async def test_handlers_that_read_at_the_same_time_share_reads(make_counted: MakeCounted) -> None:
    """The first read is made alone. The others collect in the meantime, and each gets a state of its own."""
    begun = asyncio.Event()
    waiting: set[int] = set()

    @work(name="reader")
    async def reader(ctx: Context, n: int) -> int:
        waiting.add(n)
        if len(waiting) == 100:
            begun.set()
        await asyncio.wait_for(begun.wait(), PATIENCE)
        mine, same = await asyncio.gather(ctx.results([source.id]), ctx.states([source.id, "missing"]))
        assert [each and each.result for each in same] == [7, None]
        return mine[0]

    app, counted = make_counted(noop, reader)
    async with app:
        source = await app.enqueue(noop(7))
        assert await source.result(PATIENCE) == 7
        counted.reset()
        handles = await app.enqueue_many([reader(n) for n in range(100)])
        assert [await handle.result(PATIENCE) for handle in handles] == [7] * 100
    assert counted.calls["get"] <= 5
