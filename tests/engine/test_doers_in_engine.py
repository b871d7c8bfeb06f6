"""Doers at work: bounds, orders, limits of the fleet, doers of one's own (SPEC §6, §17)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.engine.kit import PATIENCE, Errors, Gate, MakeApp, until
from treadle import Treadle, UnsupportedError, work
from treadle.doers import balanced, concurrency, oldest, priority, rate_limited, unlimited

Task = Callable[[], Coroutine[Any, Any, None]]


class Crowd:
    """A handler that lets one run after the other, and remembers who did."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.running = self.peak = 0
        self.gate = Gate()

    def type(self, **options: Any) -> Any:
        @work(name="crowd", **options)
        async def crowd(name: str) -> str:
            self.order.append(name)
            self.running += 1
            self.peak = max(self.peak, self.running)
            try:
                await self.gate.passing()
            finally:
                self.running -= 1
            return name

        return crowd


async def finished(handles: list[Any]) -> None:
    for handle in handles:
        await handle.result(PATIENCE)


async def test_unlimited(make_app: MakeApp) -> None:
    """§6: the default: all that there is, at once."""
    crowd = Crowd()
    type_ = crowd.type()
    async with make_app(type_, doer=unlimited()) as app:
        handles = await app.enqueue_many([type_(str(n)) for n in range(50)])
        await until(lambda: crowd.running == 50)
        crowd.gate.go.set()
        await finished(handles)


@pytest.mark.parametrize("doer", [balanced, priority, oldest])
@pytest.mark.parametrize("where", ["app", "type"])
async def test_at_most_so_many(make_app: MakeApp, doer: Any, where: str) -> None:
    """T28, §6: app-wide, or per type; all of them run in the end."""
    crowd = Crowd()
    type_ = crowd.type(**({"doer": doer(3)} if where == "type" else {}))
    async with make_app(type_, **({"doer": doer(3)} if where == "app" else {})) as app:
        handles = await app.enqueue_many([type_(str(n)) for n in range(10)])
        await until(lambda: crowd.running == 3)
        await asyncio.sleep(0.05)
        assert crowd.running == 3
        crowd.gate.go.set()
        await finished(handles)
    assert crowd.peak == 3
    assert sorted(crowd.order) == sorted(map(str, range(10)))


async def test_priority_first(make_app: MakeApp) -> None:
    """T29, A21: a priority-100 item behind 100 others of its lane starts first; then by age."""
    crowd = Crowd()
    type_ = crowd.type()
    async with make_app(type_, doer=priority(1)) as app:
        handles = [await app.enqueue(type_("running"))]
        await crowd.gate.reached()
        handles += await app.enqueue_many([type_(f"low {n}") for n in range(100)])
        handles.append(await app.enqueue(type_("urgent"), priority=100))
        crowd.gate.go.set()
        await finished(handles)
    assert crowd.order == ["running", "urgent", *(f"low {n}" for n in range(100))]


async def test_oldest_first(make_app: MakeApp) -> None:
    """T29: whatever the priority says, among what the doer holds."""
    crowd = Crowd()
    type_ = crowd.type()
    async with make_app(type_, doer=oldest(1, buffer=10)) as app:
        handles = [await app.enqueue(type_("running"))]
        await crowd.gate.reached()
        for n in range(3):
            handles.append(await app.enqueue(type_(str(n)), priority=n))
        await until(lambda: len(app.active()) == 4)
        crowd.gate.go.set()
        await finished(handles)
    assert crowd.order == ["running", "0", "1", "2"]


async def test_lanes_take_turns(make_app: MakeApp) -> None:
    """T30, §6: lane b's first item starts in the first rotation, however deep lane a is."""
    crowd = Crowd()
    type_ = crowd.type()
    async with make_app(type_, doer=balanced(2)) as app:
        handles = await app.enqueue_many([type_(f"a{n}") for n in range(30)], lane="a")
        await until(lambda: crowd.running == 2)
        handles += await app.enqueue_many([type_("b0"), type_("b1")], lane="b")
        crowd.gate.go.set()
        await finished(handles)
    assert crowd.order.index("b0") <= 3
    assert crowd.order.index("b1") <= 5


async def test_tenants_take_turns(make_app: MakeApp) -> None:
    """A21, §6: tenant b's first item behind hundreds of a's starts in the next claim."""
    crowd = Crowd()
    type_ = crowd.type()
    async with make_app(type_, doer=priority(1)) as app:
        handles = await app.tenant("a").enqueue_many([type_(f"a{n}") for n in range(200)])
        await crowd.gate.reached()
        handles.append(await app.tenant("b").enqueue(type_("b")))
        crowd.gate.go.set()
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
        await own.gate.reached()
        await finished(await app.enqueue_many([free(str(n)) for n in range(5)]))
        assert own.running == 1
        own.gate.go.set()
        await finished(held)
    assert own.peak == 1


# -------------------------------------------------------------------------------------------- fleet limits


async def test_a_rate_holds_across_the_fleet(make_app: MakeApp) -> None:
    """T32, §6: three per window, on two workers; none is lost."""
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
    # In any 0.3 s there are at most as many starts as two windows that meet can hold.
    assert starts[6] - starts[0] >= 0.3
    for n in range(len(starts) - 6):
        assert starts[n + 6] - starts[n] >= 0.25


async def test_a_concurrency_holds_across_the_fleet(make_app: MakeApp) -> None:
    """§6: `concurrency(2)`: two at once, on two workers together, which may well be in one process."""
    running, peak = [0], [0]
    gate = Gate()

    @work(name="limited", doer=concurrency(2))
    async def limited(n: int) -> int:
        running[0] += 1
        peak[0] = max(peak[0], running[0])
        await gate.passing()
        running[0] -= 1
        return n

    async with make_app(limited) as app, make_app(limited):
        handles = await app.enqueue_many([limited(n) for n in range(6)])
        await until(lambda: running[0] == 2)
        await asyncio.sleep(0.1)
        gate.go.set()
        await finished(handles)
    assert peak[0] == 2


async def test_one_at_a_time_per_lane(make_app: MakeApp) -> None:
    """§6: `concurrency(1, per="lane")`: in each lane one after the other, lanes side by side."""
    running: dict[str, int] = {"a": 0, "b": 0}
    peak = [0]
    together = Gate()

    @work(name="laned", doer=concurrency(1, per="lane"))
    async def laned(lane: str) -> None:
        running[lane] += 1
        peak[0] = max(peak[0], running[lane])
        if running["a"] and running["b"]:
            together.go.set()
        await together.passing()
        running[lane] -= 1

    async with make_app(laned) as app:
        handles = [await app.enqueue(laned(lane), lane=lane) for lane in "aaabbb"]
        await finished(handles)
    assert peak[0] == 1


async def test_limits_need_a_store_that_has_them(make_app: MakeApp) -> None:
    """§6: refused at the start, not later."""
    app: Treadle = make_app(doer=rate_limited(1))
    await app.connect()
    app.backend.capabilities = app.backend.capabilities - {"limits"}
    with pytest.raises(UnsupportedError, match="limits"):
        await app.start()


# ---------------------------------------------------------------------------------------- one of one's own


class OneByOne:
    """The least that a doer can be."""

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


async def test_a_doer_of_ones_own(make_app: MakeApp) -> None:
    """§17: three methods; the end of a task is noticed."""
    crowd, doer = Crowd(), OneByOne()
    type_ = crowd.type()
    async with make_app(type_, doer=doer, poll_interval=5) as app:
        crowd.gate.go.set()
        handles = await app.enqueue_many([type_(str(n)) for n in range(10)], lane="l", priority=3)
        await finished(handles)
    assert crowd.peak == 1
    assert doer.seen == [("l", 3)] * 10


async def test_a_doer_that_raises_gives_the_lease_back(make_app: MakeApp) -> None:
    """§17: reported; the attempt is not counted."""
    doer, errors = OneByOne(), Errors()
    doer.refuse = 1

    @work(name="value")
    async def value(n: int) -> int:
        return n

    async with make_app(value, doer=doer, on_error=errors) as app:
        handle = await app.enqueue(value(1))
        assert await handle.result(PATIENCE) == 1
        assert ((await handle.state()).attempt, (await handle.state()).history) == (1, ())
    assert [str(error) for error, _ in errors.seen] == ["refused"]
