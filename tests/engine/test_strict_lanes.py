"""Strict lanes: an item keeps its lane until it has ended, whatever happens to its attempts (SPEC §18)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, Barrier, MakeApp, until, until_status
from treadle import Context, Defer, Retry, Treadle, Worker, work
from treadle.doers import balanced, concurrency, rate_limited
from treadle.errors import InputError, UnsupportedError
from treadle.ports import PortsBackend, memory_pubsub, memory_queue, memory_store

LANE = concurrency(1, per="lane", strict=True)
POLL = 60.0
"""Longer than a test: what starts earlier was woken."""


@work(name="plain")
async def plain() -> None: ...


class Log:
    """What handlers did, in order, and how many ran at once in each lane."""

    def __init__(self) -> None:
        self.starts: list[tuple[str, int]] = []
        self.running: dict[str, int] = {}

    async def run(self, lane: str, n: int, seconds: float = 0.0) -> None:
        self.starts.append((lane, n))
        self.running[lane] = self.running.get(lane, 0) + 1
        assert self.running[lane] == 1, "two items of a lane run at once"
        try:
            await asyncio.sleep(seconds)
        finally:
            self.running[lane] -= 1

    def of(self, lane: str) -> list[int]:
        return [n for each, n in self.starts if each == lane]


async def test_a_failing_item_keeps_its_lane_until_it_has_succeeded(make_app: MakeApp) -> None:
    """In a fleet of three: each lane starts its items in order, with the retries of each before the next.
    Nothing waits for a poll."""
    log = Log()

    @work(name="step", doer=LANE, retry=Retry(attempts=3, base=0.05, jitter=0))
    async def step(ctx: Context, lane: str, n: int) -> int:
        await log.run(lane, n, 0.002)
        if n % 4 == 1 and ctx.attempt < 3:
            raise RuntimeError("not yet")
        return n

    apps = [make_app(step, poll_interval=POLL) for _ in range(3)]
    for app in apps:
        await app.start()
    lanes = "abcd"
    handles = [await apps[0].enqueue(step(lane, n), lane=lane) for n in range(8) for lane in lanes]
    for handle in handles:
        await handle.result(PATIENCE)
    for lane in lanes:
        assert log.of(lane) == [0, 1, 1, 1, 2, 3, 4, 5, 5, 5, 6, 7]


async def test_a_lane_goes_on_when_its_item_has_died(make_app: MakeApp) -> None:
    log = Log()

    @work(name="step", doer=LANE, retry=Retry(attempts=2, base=0.01, jitter=0))
    async def step(n: int) -> None:
        await log.run("", n)
        if n == 0:
            raise RuntimeError("never")

    async with make_app(step, poll_interval=POLL) as app:
        first, second = await app.enqueue_many([step(0), step(1)])
        await second.result(PATIENCE)
        assert (await first.state()).status == "dead"
    assert log.of("") == [0, 0, 1]


async def test_a_deferred_item_keeps_its_lane(make_app: MakeApp) -> None:
    log = Log()

    @work(name="step", doer=LANE)
    async def step(n: int) -> None:
        await log.run("", n)
        if n == 0 and len(log.starts) == 1:
            raise Defer(0.2)

    async with make_app(step, poll_interval=POLL) as app:
        _, second = await app.enqueue_many([step(0), step(1)])
        await second.result(PATIENCE)
    assert log.of("") == [0, 0, 1]


async def test_a_lane_stays_closed_after_its_worker_has_died(make_app: MakeApp) -> None:
    """The item runs again on another worker, and only then the next one."""
    barrier, log = Barrier(), Log()

    @work(name="step", doer=LANE)
    async def step(ctx: Context, n: int) -> None:
        if ctx.attempt == 1 and n == 0:
            await barrier.wait()
        await log.run("", n)

    doomed, heir = make_app(step), make_app(step, plain)
    worker = Worker(doomed, id="mortal")
    await worker.start()
    first, second = await heir.enqueue_many([step(0), step(1)])
    await barrier.reached()
    await heir.start()
    for _ in range(3):  # claims of the other worker
        await heir.enqueue(plain()).result(PATIENCE)
    assert log.starts == []
    await doomed.backend.remove_worker("mortal")
    await second.result(PATIENCE)
    assert log.of("") == [0, 1]
    assert (await first.state()).status == "success"


@pytest.mark.parametrize("verb", ["cancel", "complete", "delete"])
async def test_an_operator_who_ends_the_holder_starts_the_next(make_app: MakeApp, verb: str) -> None:
    """At once, also from a process that does not have the type."""
    barrier = Barrier()

    @work(name="step", doer=LANE, retry=Retry(base=1000, max=1000))
    async def step(n: int) -> int:
        barrier.count += 1
        barrier.started.set()
        if n == 0:
            raise RuntimeError("later")
        return n

    app, operator = make_app(step, poll_interval=POLL), make_app()
    async with app:
        await operator.connect()
        first, second = await app.enqueue_many([step(0), step(1)])
        await barrier.reached()
        await until_status(app, first.id, "scheduled")
        await getattr(operator, verb)(first.id)
        assert await second.result(PATIENCE) == 1


async def test_skip_queue_does_not_pass_a_strict_lane(make_app: MakeApp) -> None:
    """The item is stored and waits for its lane."""
    barrier, log = Barrier(), Log()

    @work(name="step", doer=LANE, skip_queue=True)
    async def step(n: int) -> None:
        await log.run("", n)
        if n == 0:
            await barrier.wait()

    async with make_app(step, poll_interval=POLL) as app:
        await app.enqueue(step(0))
        await barrier.reached()
        second = await app.enqueue(step(1))
        assert (await second.state()).status == "ready"
        barrier.go.set()
        await second.result(PATIENCE)
    assert log.of("") == [0, 1]


async def test_manual_leases_respect_strict_lanes(make_app: MakeApp) -> None:
    @work(name="step", doer=LANE)
    async def step(n: int) -> int:
        return n

    app = make_app(step)
    await app.enqueue_many([step(0), step(1)])
    first = await app.claim_one()
    assert first is not None
    assert await app.claim_one() is None
    await first.complete(0)
    second = await app.claim_one()
    assert second is not None
    assert second.input == {"n": 1}


@pytest.mark.parametrize("how", ["worker", "claim_one"])
async def test_lanes_of_an_earlier_name_are_strict(make_app: MakeApp, how: str) -> None:
    """They are lanes of their own."""
    barrier = Barrier()
    starts: list[tuple[str, int]] = []

    @work(name="step.old")
    async def old(n: int) -> int: ...  # type: ignore[empty-body]

    @work(name="step", aliases=["step.old"], doer=LANE)
    async def step(ctx: Context, n: int) -> int:
        starts.append((ctx.type, n))
        if n == 0:
            await barrier.wait()
        return n

    earlier = make_app(old)
    handles = [await earlier.enqueue(old(n), lane="a") for n in range(2)]
    app = make_app(step, poll_interval=POLL)
    if how == "worker":
        await app.start()
        await barrier.reached()
        assert await app.enqueue(step(5), lane="a").result(PATIENCE) == 5
        assert starts == [("step.old", 0), ("step", 5)]
        barrier.go.set()
        assert await app.handle(handles[1].id).result(PATIENCE) == 1
    else:
        first = await app.claim_one()
        assert first is not None
        assert await app.claim_one() is None
        await first.complete(0)
        assert await app.claim_one() is not None


async def test_a_strict_lane_with_a_rate_limit_keeps_its_order(make_app: MakeApp) -> None:
    """Whichever of the two is around the other."""
    log = Log()

    def stepped(name: str, doer: Any) -> Any:
        @work(name=name, doer=doer, retry=AT_ONCE)
        async def step(ctx: Context, n: int) -> None:
            await log.run(name, n)
            if ctx.attempt == 1:
                raise RuntimeError("once")

        return step

    inside = stepped("inside", concurrency(1, per="lane", strict=True, inner=rate_limited(100, 1)))
    outside = stepped("outside", rate_limited(100, 1, inner=concurrency(1, per="lane", strict=True)))
    async with make_app(inside, outside) as app:
        await app.enqueue_many([step(n) for n in range(4) for step in (inside, outside)])
        await until(lambda: len(log.starts) == 16)
    for name in ("inside", "outside"):
        assert log.of(name) == [n for n in range(4) for _ in range(2)]


async def test_the_lanes_of_an_app_can_be_strict(make_app: MakeApp) -> None:
    """Each type has lanes of its own."""
    barrier = Barrier()

    @work(name="one")
    async def one(n: int) -> None:
        await barrier.wait()

    @work(name="two")
    async def two(n: int) -> None:
        await barrier.wait()

    doer = concurrency(1, per="lane", strict=True, inner=balanced(8))
    async with make_app(one, two, plain, doer=doer, poll_interval=0.02) as app:
        await app.enqueue_many([make(n) for n in range(3) for make in (one, two)])
        await until(lambda: barrier.count == 2)
        for _ in range(3):  # further claims
            await app.enqueue(plain()).result(PATIENCE)
        assert barrier.count == 2
        barrier.go.set()
        await until(lambda: barrier.count == 6)


def test_strict_needs_one_item_per_lane() -> None:
    for wrong, problem in (
        ({"limit": 2, "per": "lane"}, "limit"),
        ({"limit": 1}, "per"),
        ({"limit": 1, "per": "tenant"}, "per"),
        ({"limit": 1, "per": "lane", "name": "shared"}, "name"),
    ):
        with pytest.raises(InputError, match="strict=True") as caught:
            concurrency(**{**wrong, "strict": True})  # type: ignore[arg-type]
        assert caught.value.parameters == (problem,)
        assert isinstance(caught.value, ValueError)


async def test_a_store_without_strict_lanes_is_refused_at_the_start() -> None:
    @work(name="step", doer=LANE)
    async def step(n: int) -> int:
        return n

    app = Treadle(PortsBackend(memory_queue(), memory_pubsub(), memory_store()), work=[step])
    with pytest.raises(UnsupportedError, match=r"strict lanes.*'step'") as caught:
        await app.start()
    assert caught.value.capability == "strict"
