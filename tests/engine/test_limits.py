"""Fleet-wide limits beside other work: a limit holds back its own items only (SPEC §10)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Barrier, Errors, MakeApp, until
from treadle import work
from treadle.doers import Doer, balanced, concurrency, permit_queue, rate_limited
from treadle.testing import Faults, ManualClock, drain

pytestmark = pytest.mark.every_store

HOUR = 3600


@work(name="plain")
async def plain(n: int) -> int:
    return n


async def test_a_limit_does_not_hold_back_other_types(make_app: MakeApp) -> None:
    """All of them are in the default lane."""

    @work(name="limited", doer=rate_limited(1, HOUR))
    async def limited(n: int) -> int:
        return n

    async with make_app(limited, plain) as app:
        handles = await app.enqueue_many([limited(n) for n in range(4)])
        assert await handles[0].result(PATIENCE) == 0
        assert await app.enqueue(plain(7)).result(PATIENCE) == 7
        await until(lambda: not app.active())
        states = [await handle.state() for handle in handles]
        assert [(state.status, state.attempt) for state in states[1:]] == [("ready", 0)] * 3


async def test_a_limit_per_lane_does_not_hold_back_other_types_of_the_lane(make_app: MakeApp) -> None:
    @work(name="limited", doer=concurrency(1, per="lane"))
    async def limited(n: int) -> int:
        await asyncio.Event().wait()
        return n

    async with make_app(limited, plain) as app:
        for n in range(3):
            await app.enqueue(limited(n), lane="busy")
        await until(app.active)
        assert await app.enqueue(plain(7), lane="busy").result(PATIENCE) == 7
        await app.stop(drain=0)


async def test_two_limits_beside_each_other_reach_their_rates(
    make_timed: MakeApp, clock: ManualClock
) -> None:
    """Neither waits for the other, whose permits come in between."""
    starts = {"one": 0, "two": 0}

    @work(name="one", doer=rate_limited(2, 1))
    async def one(n: int) -> None:
        starts["one"] += 1

    @work(name="two", doer=rate_limited(2, 1))
    async def two(n: int) -> None:
        starts["two"] += 1

    async with make_timed(one, two, poll_interval=60) as app:
        await app.enqueue_many([one(n) for n in range(50)])
        await until(lambda: starts["one"] == 2)
        await clock.advance(0.25)
        await app.enqueue_many([two(n) for n in range(50)])
        await until(lambda: starts["two"] == 2)
        for n in range(3, 8):
            await clock.advance(0.25)
            await until(lambda: starts["one"] == n)  # noqa: B023
            await clock.advance(0.25)
            await until(lambda: starts["two"] == n)  # noqa: B023


async def test_two_limits_and_a_plain_type_do_not_wait_for_a_poll(make_app: MakeApp) -> None:
    """On each store: what a limit holds back starts as soon as there is a permit. Neither limit is
    exceeded."""
    starts: dict[str, list[float]] = {"one": [], "two": [], "plain": []}

    def limited(name: str, limit: int, window: float) -> Any:
        @work(name=name, doer=rate_limited(limit, window))
        async def limited(n: int) -> None:
            starts[name].append(time.monotonic())

        return limited

    one, two = limited("one", 2, 0.2), limited("two", 1, 0.04)

    @work(name="plain")
    async def plain(n: int) -> None:
        starts["plain"].append(time.monotonic())

    async with make_app(one, two, plain, poll_interval=60) as app:
        await app.enqueue_many([make(n) for n in range(10) for make in (one, two, plain)])
        await until(lambda: all(len(times) == 10 for times in starts.values()))
    assert starts["plain"][-1] < starts["one"][-1], "the plain items wait for no limit"
    for name, least in (("one", 8 / 10), ("two", 9 / 25)):
        assert starts[name][-1] - starts[name][0] > least / 2


@pytest.mark.parametrize("verb", ["take_permits", "return_permits"])
async def test_a_store_that_gives_no_permits_is_reported(
    make_faulty: MakeApp, faults: Faults, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    """As an error of claiming. The item runs once the store answers."""
    errors = Errors()

    @work(name="limited", doer=concurrency(1))
    async def limited(n: int) -> int:
        return n

    async with make_faulty(limited, on_error=errors) as app:
        faults.fail(verb)
        first, second = await app.enqueue_many([limited(1), limited(2)])
        assert (await first.result(PATIENCE), await second.result(PATIENCE)) == (1, 2)
    assert errors.phases() == ["claim"]
    assert f"fault injected: {verb}" in caplog.text


async def test_a_new_lane_starts_beside_many_that_are_at_their_limit(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are more than a worker may hold, and an item waits in each."""
    monkeypatch.setattr(permit_queue, "MOST_HELD", 120)
    lanes = [f"l{n}" for n in range(150)]
    started: set[str] = set()

    @work(name="limited", doer=rate_limited(1, HOUR, per="lane"))
    async def limited(lane: str) -> None:
        started.add(lane)

    async with make_app(limited) as app:
        for _ in range(2):
            await asyncio.gather(*(app.enqueue(limited(lane), lane=lane) for lane in lanes))
            await until(lambda: len(started) == len(lanes))
        await app.enqueue(limited("new"), lane="new").result(PATIENCE)
        await until(lambda: not app.active())


async def test_a_drain_waits_for_a_limit(make_timed: MakeApp, clock: ManualClock) -> None:
    """Everything that is due runs, in the windows that it takes."""
    ran: list[int] = []

    @work(name="limited", doer=rate_limited(1, HOUR))
    async def limited(n: int) -> None:
        ran.append(n)

    # No lease ends while the clock jumps, which on a busy machine may be before an item is settled.
    async with make_timed(limited, lease=3 * HOUR) as app:
        await app.enqueue_many([limited(n) for n in range(3)])
        await until(lambda: ran)
        draining = asyncio.ensure_future(drain(app))
        for n in (2, 3):
            await asyncio.sleep(0.05)
            assert not draining.done()
            await clock.advance(HOUR)
            await until(lambda: len(ran) == n)  # noqa: B023
        async with asyncio.timeout(PATIENCE):
            await draining
    assert ran == [0, 1, 2]


@pytest.mark.parametrize("window", [0.9, HOUR])
async def test_stop_gives_back_at_once_what_waits_for_a_limit(make_app: MakeApp, window: float) -> None:
    """Nothing runs, so there is nothing to wait for. No attempt is counted."""
    ran: list[int] = []

    @work(name="limited", doer=rate_limited(1, window))
    async def limited(n: int) -> None:
        ran.append(n)

    app = make_app(limited)
    await app.start()
    handles = await app.enqueue_many([limited(n) for n in range(40)])
    await until(lambda: ran)
    began = time.monotonic()
    await app.stop(drain=60)
    assert time.monotonic() - began < PATIENCE
    states = [await app.handle(handle.id).state() for handle in handles]
    assert all((state.status, state.attempt) == ("ready", 0) for state in states[-30:])


@pytest.mark.parametrize(
    "doer",
    [balanced(1, buffer=9), concurrency(1), concurrency(9, inner=balanced(1, buffer=9))],
    ids=["room", "permit", "room with a permit"],
)
async def test_stop_gives_back_at_once_what_waits_beside_a_handler(make_app: MakeApp, doer: Doer) -> None:
    """The handler still runs. What waits behind it can start in another worker."""
    barrier, began = Barrier(), list[int]()

    @work(name="job", doer=doer)
    async def job(n: int) -> None:
        began.append(n)
        await barrier.wait()

    app = make_app(job)
    await app.start()
    handles = await app.enqueue_many([job(n) for n in range(3)])
    await barrier.reached()
    stopping = asyncio.ensure_future(app.stop(drain=60))
    wanted = ["running", "ready", "ready"]
    async with asyncio.timeout(PATIENCE):
        while [(await each.state()).status for each in handles] != wanted:  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.01)
        barrier.go.set()
        await stopping
    assert began == [0]
