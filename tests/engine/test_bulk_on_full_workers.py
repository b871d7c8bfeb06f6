"""A worker runs bulk actions beside its doer: also when the doer is full, one portion at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from tests.engine.kit import PATIENCE, Barrier, MakeApp, MakeBackend, until
from treadle import Client, Treadle, work
from treadle.backends.memory import MemoryBackend
from treadle.bulk_action import BULK_QUEUE, BULK_TYPE, PORTION, BulkState
from treadle.doers import Doer, balanced, concurrency, rate_limited
from treadle.engine.core import Core
from treadle.flow_control import BackpressureInfo
from treadle.handle import Handle
from treadle.item import Lease
from treadle.operate.operator import core_of
from treadle.testing import CountingBackend, ManualClock

T = TypeVar("T")


@work(name="later")
async def later(n: int) -> int:
    return n


def blocking() -> tuple[Any, Barrier]:
    """A type whose handlers wait until the test lets them go."""
    barrier = Barrier()

    async def wait(n: int) -> int:
        await barrier.wait()
        return n

    return work(name="wait")(wait), barrier


async def ended(client: Client, action: BulkState) -> BulkState:
    await client.handle(action.id).group(PATIENCE)
    state = await client.bulk.state(action.id)
    assert state is not None
    return state


@asynccontextmanager
async def full(app: Treadle, wait: Any, barrier: Barrier, count: int = 1) -> AsyncGenerator[Handle[int]]:
    """The worker of this app runs `count` items, and has no room for more. Gives another that waits."""
    async with app:
        await app.enqueue_many([wait(n) for n in range(count)])
        await until(lambda: barrier.count >= count)
        waiting = await app.enqueue(wait(-1))
        try:
            yield waiting
        finally:
            barrier.go.set()


@pytest.mark.every_store
async def test_a_full_worker_runs_a_bulk_action(make_app: MakeApp, store: MakeBackend, sound: None) -> None:
    """A wake-up tells it: the poll is far away. Portion follows portion."""
    wait, barrier = blocking()
    app = make_app(wait, later, doer=balanced(1, buffer=0), poll_interval=60, lease=120)
    async with full(app, wait, barrier) as waiting, Client(store(), work=[later]) as client:
        await client.enqueue_many([later(n) for n in range(PORTION + 1)], delay=600)
        await asyncio.sleep(0.01)  # what is submitted at the instant of the start is left out
        cancelled = await ended(client, await client.bulk.start("cancel", type="later"))
        assert (cancelled.state, cancelled.changed) == ("done", PORTION + 1)
        held = await ended(client, await client.bulk.start("hold", type="wait"))
        assert (held.state, held.changed) == ("done", 1)
        assert (await waiting.state()).held
        assert barrier.count == 1


@pytest.mark.every_store
async def test_a_full_worker_looks_without_a_wake_up(
    make_app: MakeApp, store: MakeBackend, sound: None
) -> None:
    wait, barrier = blocking()
    app = make_app(wait, doer=balanced(2))
    async with full(app, wait, barrier, 2), Client(store(), work=[wait], poll_interval=0.05) as client:
        core_of(app).wakeups.close()  # from now on they do not arrive
        assert (await ended(client, await client.bulk.start("hold", type="wait"))).state == "done"
        assert barrier.count == 2


FULL_OF: dict[str, tuple[Callable[[], Doer], dict[str, Any]]] = {
    "buffer": (lambda: balanced(1), {}),
    "concurrency": (lambda: concurrency(1), {}),
    "rate": (lambda: rate_limited(1, 3600), {}),
    "strict": (lambda: concurrency(1, per="lane", strict=True, inner=balanced(1, buffer=0)), {}),
    "queues": (lambda: balanced(1, buffer=0), {"queues": ["mail", "default", BULK_QUEUE]}),
    "threads": (lambda: balanced(1, buffer=0), {"threads": 1}),
}


@pytest.mark.parametrize(("doer", "settings"), FULL_OF.values(), ids=FULL_OF)
async def test_whatever_the_worker_is_full_of(
    make_app: MakeApp, sound: None, doer: Callable[[], Doer], settings: dict[str, Any]
) -> None:
    wait, barrier = blocking()
    app = make_app(wait, later, doer=doer(), poll_interval=60, lease=120, **settings)
    async with full(app, wait, barrier):
        await app.enqueue(wait(7), skip_queue=True)
        await app.pause(type="later")
        action = await ended(app, await app.bulk.start("cancel", type="wait", status="ready"))
        assert (action.state, action.changed) == ("done", 2)
        assert barrier.count == 1


async def test_several_bulk_actions_and_two_full_workers(
    make_app: MakeApp, store: MakeBackend, sound: None
) -> None:
    """Each worker runs one portion at a time."""
    wait, barrier = blocking()
    apps = [make_app(wait, later, doer=balanced(1, buffer=0), poll_interval=60, lease=120) for _ in range(2)]
    most: dict[Treadle, int] = {}

    def watch(app: Treadle) -> None:
        core, here = core_of(app), [0]
        run = core.run_portion
        assert run is not None

        async def run_watched(core: Core, lease: Lease) -> Any:
            here[0] += 1
            most[app] = max(most.get(app, 0), here[0])
            await asyncio.sleep(0.02)
            try:
                return await run(core, lease)
            finally:
                here[0] -= 1

        core.run_portion = run_watched

    for app in apps:
        watch(app)
    async with full(apps[0], wait, barrier), apps[1], Client(store(), work=[later]) as client:
        await until(lambda: barrier.count == 2)  # the other worker runs what waited
        await client.enqueue_many([later(n) for n in range(PORTION + 1)], delay=600)
        await asyncio.sleep(0.01)
        actions = [await client.by(f"ana{n}").bulk.start("cancel", type="later") for n in range(4)]
        states = [await ended(client, action) for action in actions]
        assert sum(state.changed for state in states) == PORTION + 1
        assert {state.state for state in states} == {"done"}
        assert set(most.values()) == {1}
        barrier.go.set()


async def test_a_full_worker_that_stops_takes_no_portion(make_app: MakeApp, store: MakeBackend) -> None:
    """It waits for its handlers. Another worker goes on."""
    wait, barrier = blocking()
    app = make_app(wait, doer=balanced(1, buffer=0), heartbeat=0.02)
    async with full(app, wait, barrier) as waiting, Client(store(), work=[wait]) as client:
        stopping = asyncio.ensure_future(app.stop(drain=PATIENCE))
        await until_reason(client, waiting, "no_worker")
        action = await client.bulk.start("hold", type="wait")
        assert "is stopping" in (await still_waits(client, action)).waits
        async with make_app(later):
            assert (await ended(client, action)).state == "done"
        barrier.go.set()
        await stopping


async def test_bulk_actions_can_be_paused(make_app: MakeApp, sound: None) -> None:
    """Those of all tenants, or of one, whether or not the worker is full."""
    wait, barrier = blocking()
    app = make_app(wait, doer=balanced(1, buffer=0))
    acme = app.tenant("acme")
    async with full(app, wait, barrier):
        await acme.pause(type=BULK_TYPE)
        mine = await acme.bulk.start("hold", type="wait")
        assert (await ended(app, await app.bulk.start("hold", type="wait"))).state == "done"
        assert "paused" in (await still_waits(acme, mine)).waits
        await acme.resume(type=BULK_TYPE)
        assert (await ended(acme, mine)).state == "done"
        await app.pause(type=BULK_TYPE)
        barrier.go.set()
        await app.worker.drain()  # now there is room
        mine = await acme.bulk.start("cancel", type="wait")
        assert "paused" in (await still_waits(acme, mine)).waits
        await app.resume(type=BULK_TYPE)
        assert (await ended(acme, mine)).state == "done"


async def still_waits(client: Client, action: BulkState) -> BulkState:
    await asyncio.sleep(0.1)
    state = await client.bulk.state(action.id)
    assert state
    assert state.state == "waiting"
    return state


async def test_a_worker_at_rest_takes_no_portion(make_app: MakeApp, store: MakeBackend, sound: None) -> None:
    """`backpressure` says that nothing is to be claimed: perhaps the store has too much to do."""
    rest, asked = [0.0], asyncio.Event()

    def backpressure(_: BackpressureInfo) -> float:
        if rest[0]:
            asked.set()
        return rest[0]

    wait, barrier = blocking()
    app = make_app(wait, doer=balanced(1), backpressure=backpressure)
    async with full(app, wait, barrier), Client(store(), work=[wait], poll_interval=0.05) as client:
        rest[0] = 0.5
        await asked.wait()
        rest[0] = 0.0
        action = await client.bulk.start("hold", type="wait")
        await still_waits(client, action)
        assert (await ended(client, action)).state == "done"


async def test_a_full_worker_is_no_reason_why_it_waits(make_app: MakeApp, store: MakeBackend) -> None:
    wait, barrier = blocking()
    app = make_app(wait, later, doer=balanced(1, buffer=0), heartbeat=0.05)
    async with full(app, wait, barrier) as waiting, Client(store(), work=[later]) as client:
        await until_reason(client, waiting, "worker_full")
        await client.enqueue_many([later(n) for n in range(3)], delay=600)
        await asyncio.sleep(0.01)
        action = await client.bulk.start("cancel", type="later", rate=10)
        assert action.waits == ""
        while (state := await client.bulk.state(action.id)) and not state.ended_at:
            assert state.waits == ""
            await asyncio.sleep(0.02)
        assert state
        assert state.changed == 3


async def until_reason(client: Client, item: Handle[int], kind: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while kind not in [reason.kind for reason in (await client.why(item)).reasons]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class ClaimsSeen(CountingBackend):
    """Counts the claims for portions alone, too."""

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        if verb == "claim":
            self.calls["portions" if args[0].queues == (BULK_QUEUE,) else "others"] += 1
        return await super().around(verb, args, call)


async def test_a_full_worker_makes_one_small_claim_per_poll() -> None:
    """However many wake-ups come. A worker with room makes none."""
    clock = ManualClock()
    counted = ClaimsSeen(MemoryBackend(clock=clock))
    wait, barrier = blocking()
    async with Treadle(counted, work=[wait], clock=clock, doer=balanced(2, buffer=0)) as app:
        await app.enqueue(wait(0))
        await until(lambda: barrier.count == 1)
        await pass_intervals(clock, 5)
        assert counted.calls["portions"] == 0
        await app.enqueue_many([wait(n) for n in range(9)])
        await until(lambda: barrier.count == 2)
        counted.reset()
        await pass_intervals(clock, 20)
        assert 10 <= counted.calls["portions"] <= counted.calls["others"] + 1 <= 30, counted.calls
        counted.reset()
        for n in range(50):  # each wakes the worker
            await app.enqueue(wait(n))
            await clock.advance(0.001)
        assert counted.calls["portions"] <= 1, counted.calls
        assert counted.calls["others"] >= 50
        counted.reset()
        action = await app.bulk.start("hold", type="wait")
        await until_held(app, action, clock)
        assert 1 <= counted.calls["portions"] <= 4, counted.calls
        barrier.go.set()


async def until_held(app: Treadle, action: BulkState, clock: ManualClock) -> None:
    async with asyncio.timeout(PATIENCE):
        while (state := await app.bulk.state(action.id)) and not state.ended_at:
            await clock.advance(0.01)


async def pass_intervals(clock: ManualClock, intervals: int) -> None:
    """Let this many poll intervals pass in small steps, so that every timer fires."""
    for _ in range(intervals * 4):
        await clock.advance(0.25)
