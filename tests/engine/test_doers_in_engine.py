"""Doers in a running worker: bounds, order, fleet limits, and doers of the user (SPEC §6, §17)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Barrier, Errors, MakeApp, until, until_status
from treadle import Treadle, UnsupportedError, work
from treadle.doers import balanced, concurrency, oldest, priority, rate_limited, unlimited
from treadle.testing import ManualClock

Task = Callable[[], Coroutine[Any, Any, None]]


class Crowd:
    """A type whose handlers wait at a barrier. It records their order and how many ran at once."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.running = self.peak = 0
        self.barrier = Barrier()

    def type(self, **options: Any) -> Any:
        @work(name="crowd", **options)
        async def crowd(name: str) -> str:
            self.order.append(name)
            self.running += 1
            self.peak = max(self.peak, self.running)
            try:
                await self.barrier.wait()
            finally:
                self.running -= 1
            return name

        return crowd


async def finished(handles: list[Any]) -> None:
    for handle in handles:
        await handle.result(PATIENCE)


async def test_unlimited_runs_everything_at_once(make_app: MakeApp) -> None:
    """§6: It is the default."""
    crowd = Crowd()
    type_ = crowd.type()
    async with make_app(type_, doer=unlimited()) as app:
        handles = await app.enqueue_many([type_(str(n)) for n in range(50)])
        await until(lambda: crowd.running == 50)
        crowd.barrier.go.set()
        await finished(handles)


@pytest.mark.parametrize("doer", [balanced, priority, oldest])
@pytest.mark.parametrize("where", ["app", "type"])
async def test_a_doer_limits_how_many_run_at_once(make_app: MakeApp, doer: Any, where: str) -> None:
    """T28, §6: For the app or for one type. All items run in the end."""
    crowd = Crowd()
    type_ = crowd.type(**({"doer": doer(3)} if where == "type" else {}))
    async with make_app(type_, **({"doer": doer(3)} if where == "app" else {})) as app:
        handles = await app.enqueue_many([type_(str(n)) for n in range(10)])
        await until(lambda: crowd.running == 3)
        await asyncio.sleep(0.05)
        assert crowd.running == 3
        crowd.barrier.go.set()
        await finished(handles)
    assert crowd.peak == 3
    assert sorted(crowd.order) == sorted(map(str, range(10)))


async def test_the_priority_doer_starts_the_highest_priority_first(make_app: MakeApp) -> None:
    """T29, A21: An item with priority 100 starts before 100 older items of its lane. Equal priorities
    start by age."""
    crowd = Crowd()
    type_ = crowd.type()
    async with make_app(type_, doer=priority(1)) as app:
        handles = [await app.enqueue(type_("running"))]
        await crowd.barrier.reached()
        handles += await app.enqueue_many([type_(f"low {n}") for n in range(100)])
        handles.append(await app.enqueue(type_("urgent"), priority=100))
        crowd.barrier.go.set()
        await finished(handles)
    assert crowd.order == ["running", "urgent", *(f"low {n}" for n in range(100))]


async def test_the_oldest_doer_ignores_priorities(make_app: MakeApp) -> None:
    """T29: Among the items that the doer has."""
    crowd = Crowd()
    type_ = crowd.type()
    async with make_app(type_, doer=oldest(1, buffer=10)) as app:
        handles = [await app.enqueue(type_("running"))]
        await crowd.barrier.reached()
        for n in range(3):
            handles.append(await app.enqueue(type_(str(n)), priority=n))
        await until(lambda: len(app.active()) == 4)
        crowd.barrier.go.set()
        await finished(handles)
    assert crowd.order == ["running", "0", "1", "2"]


async def test_lanes_are_served_in_rotation(make_app: MakeApp) -> None:
    """T30, §6: The first item of lane b starts in the first rotation, although lane a has many items."""
    crowd = Crowd()
    type_ = crowd.type()
    async with make_app(type_, doer=balanced(2)) as app:
        handles = await app.enqueue_many([type_(f"a{n}") for n in range(30)], lane="a")
        await until(lambda: crowd.running == 2)
        handles += await app.enqueue_many([type_("b0"), type_("b1")], lane="b")
        crowd.barrier.go.set()
        await finished(handles)
    assert crowd.order.index("b0") <= 3
    assert crowd.order.index("b1") <= 5


async def test_tenants_are_served_in_rotation(make_app: MakeApp) -> None:
    """A21, §6: The first item of tenant b starts in the next claim, although tenant a has 200 items."""
    crowd = Crowd()
    type_ = crowd.type()
    async with make_app(type_, doer=priority(1)) as app:
        handles = await app.tenant("a").enqueue_many([type_(f"a{n}") for n in range(200)])
        await crowd.barrier.reached()
        handles.append(await app.tenant("b").enqueue(type_("b")))
        crowd.barrier.go.set()
        await finished(handles)
    assert crowd.order.index("b") <= 2


async def test_free_room_is_filled_at_once(make_app: MakeApp) -> None:
    """A20, rule 23: short jobs behind a bound do not wait for the poll."""

    @work(name="short")
    async def short() -> None: ...

    async with make_app(short, doer=priority(2), poll_interval=5) as app:
        began = time.monotonic()
        await finished(await app.enqueue_many([short() for _ in range(60)]))
        assert time.monotonic() - began < 4


async def test_types_with_and_without_a_doer(make_app: MakeApp) -> None:
    """§6: a type's own doer does not use the room of the app's doer, nor wait for it."""
    own, shared = Crowd(), Crowd()
    limited = own.type(doer=priority(1))

    @work(name="free")
    async def free(name: str) -> str:
        shared.order.append(name)
        return name

    async with make_app(limited, free, doer=priority(2)) as app:
        held = await app.enqueue_many([limited("1"), limited("2")])
        await own.barrier.reached()
        await finished(await app.enqueue_many([free(str(n)) for n in range(5)]))
        assert own.running == 1
        own.barrier.go.set()
        await finished(held)
    assert own.peak == 1


# -------------------------------------------------------------------------------------------- fleet limits


async def test_a_rate_limit_holds_across_the_fleet(make_app: MakeApp) -> None:
    """T32, §6: Three per window on two workers. Every item runs."""
    starts: list[float] = []

    def limited() -> Any:
        @work(name="limited", doer=rate_limited(3, 0.3, "fixed_window"))
        async def limited(n: int) -> int:
            starts.append(time.monotonic())
            return n

        return limited

    first, second = limited(), limited()
    async with make_app(first) as app, make_app(second):
        handles = await app.enqueue_many([first(n) for n in range(7)])
        assert [await handle.result(PATIENCE) for handle in handles] == list(range(7))
    # In any 0.3 s there are at most as many starts as two adjacent windows allow.
    assert starts[6] - starts[0] >= 0.3
    for n in range(len(starts) - 6):
        assert starts[n + 6] - starts[n] >= 0.25


async def test_a_concurrency_limit_holds_across_the_fleet(make_app: MakeApp) -> None:
    """§6: `concurrency(2)` allows two at once on two workers together. Both workers may be in one process."""
    running, peak = [0], [0]
    barrier = Barrier()

    @work(name="limited", doer=concurrency(2))
    async def limited(n: int) -> int:
        running[0] += 1
        peak[0] = max(peak[0], running[0])
        await barrier.wait()
        running[0] -= 1
        return n

    async with make_app(limited) as app, make_app(limited):
        handles = await app.enqueue_many([limited(n) for n in range(6)])
        await until(lambda: running[0] == 2)
        await asyncio.sleep(0.1)
        barrier.go.set()
        await finished(handles)
    assert peak[0] == 2


async def test_one_at_a_time_per_lane(make_app: MakeApp) -> None:
    """§6: `concurrency(1, per="lane")` runs one item of each lane at a time. Lanes run at the same time."""
    running: dict[str, int] = {"a": 0, "b": 0}
    peak = [0]
    together = Barrier()

    @work(name="laned", doer=concurrency(1, per="lane"))
    async def laned(lane: str) -> None:
        running[lane] += 1
        peak[0] = max(peak[0], running[lane])
        if running["a"] and running["b"]:
            together.go.set()
        await together.wait()
        running[lane] -= 1

    async with make_app(laned) as app:
        handles = [await app.enqueue(laned(lane), lane=lane) for lane in "aaabbb"]
        await finished(handles)
    assert peak[0] == 1


async def test_limits_need_a_store_that_has_them(make_app: MakeApp) -> None:
    """§6: The start of the app is refused."""
    app: Treadle = make_app(doer=rate_limited(1))
    await app.connect()
    app.backend.capabilities = app.backend.capabilities - {"limits"}
    with pytest.raises(UnsupportedError, match="limits"):
        await app.start()


# ------------------------------------------------------------------------------------------- doers of users


class OneByOne:
    """A doer with the three required methods and nothing else."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.refuse = 0

    def available(self) -> int:
        return 1 - len(self._tasks)

    def submit(self, task: Task, *, lane: str, priority: int, queued_at: float) -> None:
        if self.refuse:
            self.refuse -= 1
            raise RuntimeError("refused")
        assert queued_at > 0
        self.seen.append((lane, priority))
        running = asyncio.get_running_loop().create_task(task())
        self._tasks.add(running)
        running.add_done_callback(self._tasks.discard)

    async def idle(self) -> None:
        while self._tasks:
            await asyncio.wait(set(self._tasks))


async def test_a_doer_of_the_user_needs_three_methods(make_app: MakeApp) -> None:
    """§17: The worker notices the end of each task."""
    crowd, doer = Crowd(), OneByOne()
    type_ = crowd.type()
    async with make_app(type_, doer=doer, poll_interval=5) as app:
        crowd.barrier.go.set()
        handles = await app.enqueue_many([type_(str(n)) for n in range(10)], lane="l", priority=3)
        await finished(handles)
    assert crowd.peak == 1
    assert doer.seen == [("l", 3)] * 10


async def test_a_doer_that_raises_gives_the_lease_back(make_timed: MakeApp, clock: ManualClock) -> None:
    """§17: The error is reported, and the attempt is not counted. The item starts a second later."""
    doer, errors = OneByOne(), Errors()
    doer.refuse = 1

    @work(name="value")
    async def value(n: int) -> int:
        return n

    async with make_timed(value, doer=doer, on_error=errors) as app:
        handle = await app.enqueue(value(1))
        await until_status(app, handle.id, "scheduled")
        await clock.advance(1)
        assert await handle.result(PATIENCE) == 1
        assert ((await handle.state()).attempt, (await handle.state()).history) == (1, ())
    assert [(str(error), phase) for error, phase in errors.seen] == [("refused", "hook")]
