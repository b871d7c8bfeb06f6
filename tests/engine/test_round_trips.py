"""How often the store is asked: in batches, and hardly at all while nothing happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.engine.kit import PATIENCE, MakeApp, MakeBackend
from treadle import Context, Result, Treadle, work
from treadle.backends.memory import MemoryBackend
from treadle.testing import CountingBackend, ManualClock

MakeCounted = Callable[..., tuple[Treadle, CountingBackend]]

PATH = ("submit", "claim", "settle", "ended")
"""The verbs of the path of work: everything but beats, signals and housekeeping."""


@work(name="noop")
async def noop(n: int) -> int:
    return n


@pytest.fixture
def make_counted(sound: None, make_app: MakeApp, store: MakeBackend) -> MakeCounted:
    """Makes apps on this test's store whose calls are counted. They poll rarely: nothing depends on it."""

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


async def test_enqueues_that_come_together_share_submits(make_counted: MakeCounted) -> None:
    """The first is written alone; while it is, the others collect."""
    app, counted = make_counted(noop)
    await app.connect()
    counted.reset()
    await asyncio.gather(*(app.enqueue(noop(n)) for n in range(500)))
    assert sum(counted.sizes["submit"]) == 500
    assert counted.calls["submit"] <= 3


async def test_one_job_alone(make_counted: MakeCounted) -> None:
    """One submit, one claim that finds it, one settle; and nobody asks for its result."""
    app, counted = make_counted(noop)
    async with app:
        await app.enqueue(noop(0)).result(PATIENCE)
        counted.reset()
        assert await app.enqueue(noop(1)).result(PATIENCE) == 1
        assert (counted.calls["submit"], counted.useful("claim"), counted.calls["settle"]) == (1, 1, 1)
        assert (counted.calls["ended"], counted.calls["get"]) == (0, 0)


async def test_many_jobs_share_claims_and_settles(make_counted: MakeCounted) -> None:
    """500 that are ready: 1/n of a claim and of a settle for each."""
    client, _ = make_counted(noop)
    handles = await client.enqueue_many([noop(n) for n in range(500)])
    app, counted = make_counted(noop)
    async with app:
        await asyncio.gather(*(app.handle(handle.id).result(PATIENCE) for handle in handles))
        assert sum(counted.sizes["claim"]) == sum(counted.sizes["settle"]) == 500
        assert counted.useful("claim") <= 4
        assert counted.calls["settle"] <= 6


async def test_a_fan_out_with_fan_in(make_counted: MakeCounted) -> None:
    """1,000 children and what waits for them: at most 30 calls in all."""
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


async def test_waiters_in_another_process_share_looks(make_counted: MakeCounted, make_app: MakeApp) -> None:
    """1,000 handles that are answered by signals: one look for many, not one for each."""
    client, counted = make_counted(noop)
    async with make_app(noop):
        handles = await client.enqueue_many([noop(n) for n in range(1000)])
        results = await asyncio.gather(*(handle.result(PATIENCE) for handle in handles))
        assert results == list(range(1000))
    assert counted.calls["ended"] <= 60
    assert counted.calls["get"] == 0


INTERVALS = 120


@pytest.mark.parametrize("waiting", [0, 1000])
async def test_an_idle_worker_asks_once_per_interval(waiting: int) -> None:
    """With 1,000 handles that are awaited: all verbs together, beats included, at the default settings."""
    clock = ManualClock()
    counted = CountingBackend(MemoryBackend(clock=clock))
    async with Treadle(counted, work=[noop], clock=clock) as app:
        handles = await app.enqueue_many([noop(n) for n in range(waiting)], delay=1e6) if waiting else []
        waiters = [asyncio.ensure_future(handle.result()) for handle in handles]
        await _pass(clock, 20)
        counted.reset()
        await _pass(clock, INTERVALS)
        assert counted.total() <= INTERVALS, counted.calls
        assert counted.calls["claim"] >= INTERVALS / 10  # the net is still there
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)


async def _pass(clock: ManualClock, intervals: int) -> None:
    """So many poll intervals, in small steps: as many wakes as there would be."""
    for _ in range(intervals * 4):
        await clock.advance(0.25)
