"""Doers that bound one process: which tasks start, in which order, and that none is lost."""

import asyncio
import gc
import logging
import random
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from treadle import MemoryBackend, doers
from treadle.base.timing import SystemClock
from treadle.doers import Task, balanced, oldest, priority, unlimited
from treadle.doers.base import BaseDoer, managed
from treadle.doers.bounded import AHEAD, MOST_AHEAD, BalancedLine, WaitingTask
from treadle.errors import InputError


class Crowd:
    """Tasks that run until the test ends them. It records the order of their starts."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.peak = 0
        self._ends: dict[str, asyncio.Event] = {}
        self._running = 0

    def task(self, name: str) -> Task:
        async def run() -> None:
            self.started.append(name)
            self._running += 1
            self.peak = max(self.peak, self._running)
            await self._end_of(name).wait()
            self._running -= 1

        return run

    async def end(self, *names: str) -> None:
        for name in names or list(self.started):
            self._end_of(name).set()
        await run_tasks()

    def _end_of(self, name: str) -> asyncio.Event:
        return self._ends.setdefault(name, asyncio.Event())


async def run_tasks(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def done() -> None:
    return


# ------------------------------------------------------------------------------------------- every doer

EVERY: list[Callable[[], BaseDoer]] = [
    unlimited,
    lambda: balanced(2, buffer=0),
    lambda: priority(2, buffer=0),
    lambda: oldest(2, buffer=0),
]


@pytest.mark.parametrize("make", EVERY)
async def test_idle_returns_at_once_when_there_is_nothing(make: Callable[[], BaseDoer]) -> None:
    await asyncio.wait_for(make().idle(), 5)


@pytest.mark.parametrize("make", EVERY)
async def test_every_submitted_task_runs_and_idle_waits_for_them(make: Callable[[], BaseDoer]) -> None:
    doer, ran = make(), list[int]()

    def task(n: int) -> Task:
        async def run() -> None:
            await asyncio.sleep(0)
            ran.append(n)

        return run

    for n in range(20):
        doer.submit(task(n), lane="", priority=0, queued_at=0.0)
    await doer.idle()
    assert sorted(ran) == list(range(20))


@pytest.mark.parametrize("make", EVERY)
async def test_an_error_of_a_task_is_reported_and_frees_its_room(make: Callable[[], BaseDoer]) -> None:
    doer, errors = make(), list[Exception]()
    doer.on_error(lambda error, _: errors.append(error))

    async def broken() -> None:
        raise ValueError("boom")

    room = doer.available()
    for _ in range(5):
        doer.submit(broken)
    await doer.idle()
    assert [str(error) for error in errors] == ["boom"] * 5
    assert doer.available() == room


async def test_without_a_callback_an_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> None:
        raise ValueError("boom")

    doer = unlimited()
    doer.submit(broken)
    await doer.idle()
    assert [(record.name, record.levelno) for record in caplog.records] == [("treadle", logging.WARNING)]
    assert "boom" in caplog.text


async def test_callbacks_that_raise_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    doer = priority(1, buffer=0)

    def broken(*_: object) -> None:
        raise RuntimeError("hook")

    doer.on_free(broken)
    doer.on_error(broken)
    for _ in range(3):
        doer.submit(done)
    await doer.idle()
    assert doer.available() == 1
    assert "hook" in caplog.text


async def test_running_tasks_are_not_garbage_collected() -> None:
    """The event loop keeps weak references only. Nothing else refers to this task."""
    waiting: list[weakref.ref[asyncio.Future[None]]] = []

    async def task() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(weakref.ref(future))
        await future

    doer = unlimited()
    doer.submit(task)
    await run_tasks()
    gc.collect()
    future = waiting[0]()
    assert future is not None
    future.set_result(None)
    await asyncio.wait_for(doer.idle(), 5)


async def test_a_task_cancelled_before_its_first_step_does_not_hang_idle() -> None:
    doer = unlimited()
    before = asyncio.all_tasks()
    doer.submit(done)
    (task,) = asyncio.all_tasks() - before
    task.cancel()
    await asyncio.wait_for(doer.idle(), 5)


def test_bad_arguments_of_doers_are_refused() -> None:
    for make in (
        lambda: unlimited(0),
        lambda: balanced(0),
        lambda: priority(True),
        lambda: oldest(2.5),  # type: ignore[arg-type]
        lambda: balanced(1, buffer=-1),
    ):
        with pytest.raises(InputError, match="must be a whole number"):
            make()


# -------------------------------------------------------------------------------------------- unlimited


async def test_unlimited_always_has_room_for_one_batch() -> None:
    crowd, doer = Crowd(), unlimited(batch=3)
    for n in range(10):
        doer.submit(crowd.task(str(n)))
    await run_tasks()
    assert (doer.available(), crowd.peak) == (3, 10)
    assert unlimited().available() == 500
    await crowd.end()
    await doer.idle()


# ---------------------------------------------------------------------------------------------- bounded


async def test_at_most_max_run_at_once() -> None:
    crowd, doer = Crowd(), priority(2)
    for n in range(5):
        doer.submit(crowd.task(str(n)))
    await run_tasks()
    assert (crowd.peak, len(crowd.started), doer.available()) == (2, 2, 0)
    while len(crowd.started) < 5:
        await crowd.end()
    await crowd.end()
    await doer.idle()
    assert crowd.peak == 2


async def test_available_counts_running_and_waiting_tasks() -> None:
    crowd, doer = Crowd(), oldest(2, buffer=2)
    assert doer.available() == 4
    for n in range(2):
        doer.submit(crowd.task(str(n)))
    assert doer.available() == 2
    for n in range(2, 6):
        doer.submit(crowd.task(str(n)))
    assert doer.available() == 0, "it accepts more tasks but has no room for them"
    while len(crowd.started) < 6:
        await crowd.end()
    await crowd.end()
    await doer.idle()
    assert doer.available() == 4


async def test_free_room_is_reported_unless_a_waiting_task_fills_it() -> None:
    crowd, doer, freed = Crowd(), priority(1, buffer=0), list[int]()
    doer.on_free(lambda: freed.append(doer.available()))
    doer.submit(crowd.task("a"))
    doer.submit(crowd.task("b"))
    await run_tasks()
    await crowd.end("a")
    assert (crowd.started, freed) == (["a", "b"], [])
    await crowd.end("b")
    assert freed == [1]


async def test_the_buffer_follows_how_long_tasks_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is empty before the first task has ended. It is small where tasks take long, and for a while
    after."""
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    doer = priority(4)

    async def ended_after(seconds: float) -> int:
        nonlocal now
        crowd = Crowd()
        doer.submit(crowd.task("a"))
        await run_tasks()
        now += seconds
        await crowd.end()
        return doer.buffer

    assert doer.buffer == 0
    assert await ended_after(AHEAD / 10) == 40
    assert await ended_after(AHEAD / 2) == 8
    assert 8 < max([await ended_after(AHEAD / 10) for _ in range(10)]) < 40
    assert await ended_after(1.0) == 0
    assert await ended_after(AHEAD / 10) == 0
    assert priority(4, buffer=3).buffer == 3


async def test_the_buffer_is_refilled_when_half_of_it_has_started() -> None:
    """One claim serves many tasks."""
    crowd, doer = Crowd(), priority(1, buffer=4)
    free: list[int] = []
    for n in range(5):
        doer.submit(crowd.task(str(n)))
    await run_tasks()
    for n in range(5):
        await crowd.end(str(n))
        free.append(doer.available())
    assert free == [0, 2, 3, 4, 5]


async def test_short_tasks_leave_room_for_the_next_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store works on the next claim while the tasks of the last one run."""
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 0.0)
    crowd, doer = Crowd(), priority(20)
    doer.submit(done)
    await doer.idle()
    assert doer.buffer == MOST_AHEAD
    portion = doer.available()
    assert portion == (20 + MOST_AHEAD) // 2
    for n in range(portion):
        doer.submit(crowd.task(str(n)))
    assert doer.available() == portion
    for n in range(portion):
        doer.submit(crowd.task(str(portion + n)))
    assert doer.available() == 0
    assert len(doer.cancel_pending()) == 2 * portion


async def order_of(doer: BaseDoer, waiting: list[dict[str, Any]]) -> list[str]:
    """The order in which a doer with room for one task starts the others."""
    crowd = Crowd()
    doer.submit(crowd.task("first"), lane="-")
    for n, options in enumerate(waiting):
        doer.submit(crowd.task(options.pop("name", str(n))), **options)
    while len(crowd.started) <= len(waiting):
        await crowd.end()
    await crowd.end()
    await doer.idle()
    return crowd.started[1:]


async def test_priority_goes_by_priority_then_age_then_submission() -> None:
    waiting = [
        {"name": "low new", "priority": 1, "queued_at": 9.0},
        {"name": "low old", "priority": 1, "queued_at": 1.0},
        {"name": "high", "priority": 5, "queued_at": 99.0},
        {"name": "low old too", "priority": 1, "queued_at": 1.0},
    ]
    assert await order_of(priority(1, buffer=10), waiting) == ["high", "low old", "low old too", "low new"]


@pytest.mark.parametrize("make", [balanced, priority])
async def test_equal_tasks_start_in_the_order_of_the_store(make: Callable[..., BaseDoer]) -> None:
    """The store serves tenants and lanes in rotation. Age would put the newest tenant last."""
    waiting = [
        {"name": "a1", "tenant": "a", "queued_at": 1.0, "place": 1},
        {"name": "b1", "tenant": "b", "queued_at": 9.0, "place": 2},
        {"name": "a2", "tenant": "a", "queued_at": 2.0, "place": 3},
        {"name": "high", "tenant": "a", "queued_at": 3.0, "priority": 1, "place": 4},
    ]
    assert await order_of(make(1), waiting) == ["high", "a1", "b1", "a2"]


async def test_oldest_goes_by_age_then_submission() -> None:
    waiting = [
        {"name": "new", "priority": 9, "queued_at": 9.0},
        {"name": "old", "priority": 1, "queued_at": 1.0},
        {"name": "old too", "priority": 5, "queued_at": 1.0},
    ]
    assert await order_of(oldest(1, buffer=10), waiting) == ["old", "old too", "new"]


async def test_balanced_breaks_ties_by_priority_then_age_then_submission() -> None:
    waiting = [
        {"name": "c", "lane": "c", "priority": 1, "queued_at": 2.0},
        {"name": "b", "lane": "b", "priority": 1, "queued_at": 1.0},
        {"name": "b too", "lane": "b2", "priority": 1, "queued_at": 1.0},
        {"name": "a", "lane": "a", "priority": 5, "queued_at": 9.0},
    ]
    assert await order_of(balanced(1, buffer=10), waiting) == ["a", "b", "b too", "c"]


async def test_balanced_starts_the_lane_that_runs_the_fewest() -> None:
    crowd, doer = Crowd(), balanced(2, buffer=10)
    for name in ("a1", "a2", "a3", "b1"):
        doer.submit(crowd.task(name), lane=name[0], priority=9 if name == "a3" else 0)
    await run_tasks()
    await crowd.end("a1")
    assert crowd.started == ["a1", "a2", "b1"]
    await crowd.end("a2")
    assert crowd.started == ["a1", "a2", "b1", "a3"]
    await crowd.end("b1", "a3")
    await doer.idle()


async def test_balanced_distinguishes_equal_lanes_of_two_tenants() -> None:
    crowd, doer = Crowd(), balanced(2, buffer=10)
    for tenant, name in (("t", "a1"), ("t", "a2"), ("t", "a3"), ("u", "b1")):
        doer.submit(crowd.task(name), lane="same", tenant=tenant)
    await run_tasks()
    await crowd.end("a1")
    assert crowd.started[-1] == "b1"
    await crowd.end("a2", "a3", "b1")
    await crowd.end()
    await doer.idle()


async def test_tasks_that_have_not_started_can_be_cancelled() -> None:
    for doer in (balanced(1), priority(1), oldest(1)):
        crowd = Crowd()
        tasks = [crowd.task(str(n)) for n in range(4)]
        for task in tasks:
            doer.submit(task, lane="a")
        await run_tasks()
        assert doer.cancel_pending() == tasks[1:]
        assert doer.cancel_pending() == []
        await crowd.end("0")
        await doer.idle()
        assert crowd.started == ["0"]
        doer.submit(crowd.task("again"))
        await crowd.end("again")
        await doer.idle()
    assert unlimited().cancel_pending() == []


# ----------------------------------------------------------- the balanced line against the plain rule


class PlainLine:
    """The rule as it is documented, by comparing all waiting tasks."""

    def __init__(self) -> None:
        self.waiting: list[WaitingTask] = []
        self.running: dict[tuple[str, str], int] = {}

    def pop(self) -> WaitingTask:
        entry = min(self.waiting, key=lambda each: (self.running.get(each.lane, 0), each.order))
        self.waiting.remove(entry)
        return entry


@pytest.mark.parametrize("seed", range(20))
def test_the_balanced_line_chooses_as_the_rule_says(seed: int) -> None:
    draw = random.Random(seed)
    line, plain, running = BalancedLine(), PlainLine(), list[tuple[str, str]]()
    for seq in range(600):
        move = draw.random()
        if move < 0.5:
            lane = ("t", str(draw.randrange(5)))
            order = line.order(draw.randrange(3), float(draw.randrange(3)), None, seq)
            entry = WaitingTask(order, done, lane)
            line.push(entry)
            plain.waiting.append(entry)
        elif move < 0.8 and len(line):
            entry = line.pop()
            assert entry is plain.pop()
            line.started(entry.lane)
            plain.running[entry.lane] = plain.running.get(entry.lane, 0) + 1
            running.append(entry.lane)
        elif running:
            lane = running.pop(draw.randrange(len(running)))
            line.ended(lane)
            plain.running[lane] -= 1
        assert len(line) == len(plain.waiting)


def test_the_balanced_line_drops_idle_lanes_and_stays_small() -> None:
    line = BalancedLine()
    for n in range(10_000):
        lane = ("t", str(n % 3) if n < 5000 else str(n))
        line.push(WaitingTask((0, 0.0, n), done, lane))
        line.push(WaitingTask((0, 0.0, n + 0.5), done, ("t", "deep")))
        popped = line.pop()
        line.started(popped.lane)
        line.ended(popped.lane)
    assert len(line._ranks) <= 2 * len(line._lanes) + 65
    line.clear()
    assert (len(line), len(line._lanes)) == (0, 0)


# ------------------------------------------------------------------------------------- doers of users


class Own:
    """A small doer of a user: one task at a time, the newest first."""

    def __init__(self) -> None:
        self.stack: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self.seen: list[tuple[str, int, float]] = []
        self.current: asyncio.Task[None] | None = None

    def available(self) -> int:
        return 2 - len(self.stack) - (self.current is not None)

    def submit(self, task: Task, lane: str, priority: int, queued_at: float) -> None:
        if lane == "refused":
            raise RuntimeError("no")
        self.seen.append((lane, priority, queued_at))
        self.stack.append(task)
        self.next()

    def next(self, _: object = None) -> None:
        if self.current is None or self.current.done():
            self.current = asyncio.ensure_future(self.stack.pop()()) if self.stack else None
            if self.current is not None:
                self.current.add_done_callback(self.next)

    async def idle(self) -> None:
        while self.current is not None:
            await asyncio.wait([self.current])
            await asyncio.sleep(0)


async def test_a_users_doer_runs_tasks_reports_errors_and_tells_of_room() -> None:
    own = Own()
    doer, errors, freed = managed(own), list[Exception](), list[int]()
    doer.on_error(lambda error, _: errors.append(error))
    doer.on_free(lambda: freed.append(doer.available()))

    async def broken() -> None:
        raise ValueError("boom")

    doer.submit(broken, lane="l", priority=3, queued_at=4.0, tenant="t")
    await doer.idle()
    await run_tasks()
    assert own.seen == [("l", 3, 4.0)]
    assert [str(error) for error in errors] == ["boom"]
    assert freed == [2]


async def test_tasks_that_a_users_doer_has_not_started_can_be_cancelled() -> None:
    crowd, doer = Crowd(), managed(Own())
    tasks = [crowd.task(name) for name in "abc"]
    for task in tasks:
        doer.submit(task)
    await run_tasks()
    assert doer.cancel_pending() == tasks[1:]
    await crowd.end("a")
    await doer.idle()
    assert crowd.started == ["a"], "cancelled tasks do nothing when they are called later"


async def test_an_error_of_a_users_doer_reaches_the_engine() -> None:
    doer = managed(Own())
    with pytest.raises(RuntimeError, match="no"):
        doer.submit(done, lane="refused")
    assert doer.cancel_pending() == []


async def test_a_doer_of_the_user_can_take_tenants_and_report_its_own_room() -> None:
    seen = list[str]()
    callbacks = list[Callable[[], None]]()

    class Tenants:
        def available(self) -> int:
            return 1

        def submit(self, task: Task, *, tenant: str, **_: object) -> None:
            seen.append(tenant)

        async def idle(self) -> None: ...

        def on_free(self, callback: Callable[[], None]) -> None:
            callbacks.append(callback)

    doer, freed = managed(Tenants()), list[None]()
    doer.bind(MemoryBackend(), SystemClock(), "w")
    doer.on_free(lambda: freed.append(None))
    doer.submit(done, tenant="acme")
    callbacks[0]()
    assert (seen, freed) == (["acme"], [None])
    await doer.close()


def test_built_in_doers_are_not_wrapped() -> None:
    doer = unlimited()
    assert managed(doer) is doer


def test_an_object_without_the_methods_is_refused() -> None:
    class Half:
        def available(self) -> int:
            return 1

    with pytest.raises(InputError, match="has no method submit"):
        managed(Half())  # type: ignore[arg-type]


def test_all_exported_names_exist() -> None:
    assert [name for name in doers.__all__ if not hasattr(doers, name)] == []


def test_built_in_doers_satisfy_the_protocol() -> None:
    for make in EVERY:
        doer: doers.Doer = make()
        assert doer.available() > 0
