"""Schedules on a manual clock: several processes, a store that fails, and restarts."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from treadle import (
    Client,
    InputError,
    NotFound,
    ScheduleError,
    StoreUnavailable,
    Treadle,
    UnsupportedError,
    Work,
    next_after,
    work,
)
from treadle.backends.memory import MemoryBackend
from treadle.engine.schedule.scheduler import REFRESH, SAID, UNSEEN, Scheduler
from treadle.events import Queued
from treadle.item import Fire, Heartbeat, ItemState, Schedule
from treadle.schedule import Schedule as StatedSchedule
from treadle.schedule import ScheduleHandle
from treadle.store_metrics import StoreMetrics
from treadle.testing import ManualClock
from treadle.testing.inline import drain, run_inline

PATIENCE = 20.0


@work(name="tick")
async def tick(n: int = 0) -> int:
    return n


class Connection:
    """The connection of one process to the store. It fails on demand, before or after the verb, and
    records its calls."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()
        self.fired: list[Fire] = []
        self.fails: Callable[[str], str | None] = lambda verb: None
        """For a verb: "before", "after" or None."""
        self.has_fired = asyncio.Event()

    def down(self, *verbs: str, when: str = "before") -> None:
        self.fails = lambda verb: when if not verbs or verb in verbs else None

    def up(self) -> None:
        self.fails = lambda verb: None

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._inner, name)
        return self._verb(name, verb) if inspect.iscoroutinefunction(verb) else verb

    def _verb(self, name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            fault = self.fails(name)
            if fault == "before":
                raise StoreUnavailable(f"{name}: refused")
            answer = await verb(*args, **kwargs)
            if name == "fire" and isinstance(answer, tuple):
                self.fired.append(args[0])
                self.has_fired.set()
            if fault == "after":
                raise StoreUnavailable(f"{name}: the answer was lost")
            return answer

        return call


class Process:
    """The part of a process that schedules need: a client, and the scheduler that a worker runs."""

    def __init__(self, store: Any, clock: ManualClock, **settings: Any) -> None:
        self.connection = Connection(store)
        self.clock = clock
        self.queued: list[Queued] = []
        self.errors: list[tuple[BaseException, str]] = []
        settings = {"poll_interval": 1.0, "lease": 10.0, "random": random.Random(1), **settings}
        self.client = Client(
            self.connection,  # type: ignore[arg-type]
            clock=clock,
            on_event=self._on_event,
            on_error=lambda error, phase: self.errors.append((error, phase)),
            **settings,
        )

    def _on_event(self, event: object) -> None:
        if isinstance(event, Queued):
            self.queued.append(event)

    @property
    def scheduler(self) -> Scheduler:
        return self.client._core.scheduler

    @property
    def fired(self) -> list[float]:
        return [fire.at for fire in self.connection.fired if fire.items]

    def phases(self) -> set[str]:
        return {phase for _, phase in self.errors}

    async def start(self) -> None:
        await self.client.connect()
        self.scheduler.start("worker")
        await run_tasks()

    async def stop(self) -> None:
        await self.scheduler.stop("worker")

    async def items(self) -> list[ItemState]:
        return list((await self.client.list(limit=1000)).items)


async def run_tasks(count: int = 60) -> None:
    """Let other tasks run. In memory nothing else is needed."""
    for _ in range(count):
        await asyncio.sleep(0)


async def fires(processes: list[Process]) -> None:
    """Wait until one of the processes fires. For stores that answer from other threads."""
    waits = [asyncio.ensure_future(process.connection.has_fired.wait()) for process in processes]
    done, waiting = await asyncio.wait(waits, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    for wait in waiting:
        wait.cancel()
    assert done
    for process in processes:
        process.connection.has_fired.clear()


class Fleet:
    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.store: Any = MemoryBackend(clock=clock)
        self._processes: list[Process] = []

    def process(self, **settings: Any) -> Process:
        process = Process(self.store, self.clock, **settings)
        self._processes.append(process)
        return process

    async def processes(self, count: int, set_up: Callable[[Process], object]) -> list[Process]:
        found = [self.process() for _ in range(count)]
        for process in found:
            set_up(process)
            await process.start()
        return found

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await run_tasks()

    async def run_for(self, seconds: float, step: float = 1.0) -> None:
        """Let time pass in steps too small to count as a suspension."""
        for _ in range(int(seconds / step)):
            await self.advance(step)

    async def row(self, name: str = "s") -> Schedule:
        (row,) = [row for row in await self.store.schedules() if row.name == name]
        return row

    async def close(self) -> None:
        for process in self._processes:
            await process.stop()
            await process.client.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def fleet(clock: ManualClock) -> AsyncGenerator[Fleet]:
    fleet = Fleet(clock)
    yield fleet
    await fleet.close()


def every_minute(process: Process, **options: Any) -> ScheduleHandle:
    return process.client.schedule("s", every=60, run=tick, **options)


# ------------------------------------------------------------------------------------------- making schedules


async def test_it_is_stored_when_the_app_has_started(
    make_timed: Callable[..., Treadle], clock: ManualClock
) -> None:
    """Otherwise an occurrence right after the start would not count."""
    nightly = StatedSchedule("nightly", cron="0 3 * * *", run=tick)
    app = make_timed(tick, schedules=[nightly])
    async with run_inline(app):
        await clock.advance(86400)
        await drain(app)
        assert [item.status for item in (await app.list(type="tick")).items] == ["success"]


async def test_a_start_that_is_cancelled_while_it_stores_schedules_leaves_nothing_behind() -> None:
    store = Connection(MemoryBackend())
    reached, never = asyncio.Event(), asyncio.Event()

    async def schedules() -> None:
        reached.set()
        await never.wait()

    store.schedules = schedules  # type: ignore[attr-defined]
    app = Treadle(store, work=[tick], schedules=[StatedSchedule("often", every=5, run=tick)])  # type: ignore[arg-type]
    starting = asyncio.ensure_future(app.start())
    await asyncio.wait_for(reached.wait(), PATIENCE)
    assert not starting.done()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not app._core.scheduler.workers
    await app.close()


async def test_bad_arguments_are_refused(fleet: Fleet) -> None:
    client = fleet.process().client
    with pytest.raises(ScheduleError):
        client.schedule("s", run=tick)
    with pytest.raises(InputError, match="catch_up"):
        client.schedule("s", every=60, run=tick, catch_up="some")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="run"):
        client.schedule("s", every=60, run=tick())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="name"):
        client.schedule("", every=60, run=tick)
    with pytest.raises(TypeError, match="priority"):
        client.schedule("s", every=60, run=tick, prioriti=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="tx"):
        client.schedule("s", every=60, run=tick, tx=object())  # type: ignore[call-arg]
    assert client._core.scheduler.entries == {}


async def test_a_schedule_is_a_value_that_several_apps_may_have() -> None:
    """As that of a program, and those of its tests."""
    clock = ManualClock()
    nightly = StatedSchedule("nightly", cron="0 3 * * *", run=lambda: tick(7), queue="bulk")
    for _ in range(2):
        async with Treadle(work=[tick], schedules=[nightly], clock=clock) as app:
            handle = await app.schedules.trigger("nightly")
            assert handle is not None
            assert await handle.result(PATIENCE) == 7
            assert (await handle.state()).queue == "bulk"
            (state,) = await app.schedules.list()
            assert state.next_at == next_after("0 3 * * *", clock.now())


@pytest.mark.parametrize(
    ("schedules", "error", "message"),
    [
        (lambda: [hourly("s"), hourly("s")], ScheduleError, "this app has a schedule 's' already"),
        (lambda: [tick], InputError, "must be a Schedule"),
        (lambda: hourly("s"), TypeError, "schedules takes a list"),
        (lambda: [StatedSchedule("s", run=tick)], ScheduleError, "one of cron=, every= and next="),
        (lambda: [StatedSchedule("s", every=1, run=tick())], InputError, "must be a function"),
    ],
)
def test_bad_values_are_refused(schedules: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Treadle(work=[tick], schedules=schedules())


def hourly(name: str) -> StatedSchedule:
    return StatedSchedule(name, every=3600, run=tick)


async def test_a_schedule_needs_a_store_with_schedules(fleet: Fleet) -> None:
    process = fleet.process()
    process.connection.capabilities = frozenset()
    with pytest.raises(UnsupportedError):
        every_minute(process)


async def test_a_schedule_made_before_the_start_is_stored_at_the_start(fleet: Fleet) -> None:
    process = fleet.process()
    handle = every_minute(process)
    assert handle.next_at == fleet.clock.now() + 60
    await fleet.clock.advance(100)
    assert await fleet.store.schedules() == []
    await process.start()
    assert handle.next_at == fleet.clock.now() + 60 == (await fleet.row()).next_at


async def test_a_schedule_made_while_the_app_runs_is_stored_at_once(fleet: Fleet) -> None:
    process = fleet.process()
    await process.start()
    handle = every_minute(process)
    (state,) = await process.client.schedules.list()
    assert (state.name, state.next_at, state.timing) == ("s", handle.next_at, {"every": 60.0})
    await fleet.advance(60)
    assert len(process.fired) == 1


async def test_without_schedules_the_store_is_not_called(fleet: Fleet) -> None:
    process = fleet.process()
    await process.start()
    await fleet.run_for(3600, step=60)
    assert (
        process.connection.calls.total()
        - process.connection.calls["open"]
        - process.connection.calls["subscribe"]
        == 0
    )


async def test_waiting_makes_few_calls_to_the_store(fleet: Fleet) -> None:
    """A call or so for each ten poll intervals."""
    process = fleet.process()
    process.client.schedule("s", every=86400, run=tick)
    await process.start()
    process.connection.calls.clear()
    await fleet.run_for(600)
    assert process.connection.calls.total() < 600 / 10 * 1.4


# ----------------------------------------------------------------------------------------------------- firing


async def test_an_occurrence_submits_work_and_wakes_workers(fleet: Fleet) -> None:
    process = fleet.process()
    wakes: list[bool] = []
    handle = process.client.schedule("s", every=60, run=lambda: tick(7), priority=5, queue="q", workflow="w")
    await process.start()
    process.client._core.wakeups.listen(lambda wake: wakes.append(wake.ready))
    due = handle.next_at
    await fleet.advance(59)
    assert await process.items() == []
    await fleet.advance(1)
    (item,) = await process.items()
    assert (item.type, item.priority, item.queue, item.workflow, item.tenant) == (
        "tick",
        5,
        "q",
        "w",
        "default",
    )
    assert [event.id for event in process.queued] == [item.id]
    assert True in wakes
    assert handle.next_at == due + 60
    assert (await fleet.row()).last_at == due


async def test_the_id_of_the_work_is_kept(fleet: Fleet) -> None:
    made: list[Work[Any, Any]] = []

    def run() -> Work[int, int]:
        made.append(tick())
        return made[-1]

    process = fleet.process()
    process.client.schedule("s", every=60, run=run)
    await process.start()
    await fleet.advance(60)
    assert [item.id for item in await process.items()] == [made[0].id]


async def test_run_may_be_async_and_may_have_nothing_to_do(fleet: Fleet) -> None:
    count = 0

    async def run() -> Work[int, int] | None:
        nonlocal count
        count += 1
        await asyncio.sleep(0)
        return tick() if count % 2 else None

    process = fleet.process()
    process.client.schedule("s", every=60, run=run)
    await process.start()
    for _ in range(4):
        await fleet.advance(60)
    assert (count, len(await process.items()), process.errors) == (4, 2, [])


async def test_a_key_prevents_a_second_open_item(fleet: Fleet) -> None:
    """While one item is open, the next occurrences find it. Nothing new is stored or announced."""
    process = fleet.process()
    every_minute(process, key="only")
    await process.start()
    for _ in range(3):
        await fleet.advance(60)
    assert len(await process.items()) == 1
    assert len(process.queued) == 1
    assert len(process.connection.fired) == 3


@pytest.mark.parametrize(
    ("tz", "cron", "instants"),
    [
        ("Europe/Paris", "30 2 * * *", ["2024-03-30T01:30", "2024-03-31T01:00", "2024-04-01T00:30"]),
        ("Europe/Paris", "30 2 * * *", ["2024-10-26T00:30", "2024-10-27T00:30", "2024-10-28T01:30"]),
        ("America/New_York", "30 2 * * *", ["2024-03-09T07:30", "2024-03-10T07:00", "2024-03-11T06:30"]),
        ("America/New_York", "30 1 * * *", ["2024-11-02T05:30", "2024-11-03T05:30", "2024-11-04T06:30"]),
        ("UTC", "0 0 29 2 *", ["2024-02-29T00:00", "2028-02-29T00:00", "2032-02-29T00:00"]),
    ],
)
async def test_cron_through_daylight_saving_changes(
    fleet: Fleet, tz: str, cron: str, instants: list[str]
) -> None:
    """The clock goes forward and back. Every occurrence fires once, although three processes wait for it."""
    expected = [datetime.fromisoformat(f"{text}+00:00").timestamp() for text in instants]
    await fleet.clock.set(expected[0] - 60)
    processes = await fleet.processes(
        3, lambda process: process.client.schedule("s", cron=cron, tz=tz, run=tick)
    )
    for instant in expected:
        assert (await fleet.row()).next_at == instant
        await fleet.advance(instant - fleet.clock.now())
    assert sorted(at for process in processes for at in process.fired) == expected


async def test_the_clock_of_the_store_decides(fleet: Fleet) -> None:
    """A process whose own clock is hours wrong fires in time and no earlier."""
    wrong = ManualClock(fleet.clock.now() + 5 * 3600)
    process = Process(fleet.store, wrong)
    handle = every_minute(process)
    await process.start()
    assert handle.next_at == fleet.clock.now() + 60
    for _ in range(59):
        fleet.clock.advance(1)
        wrong.advance(1)
        await run_tasks()
    assert process.fired == []
    fleet.clock.advance(1)
    wrong.advance(1)
    await run_tasks()
    assert process.fired == [fleet.clock.now()]
    await process.stop()
    await process.client.close()


async def test_a_schedule_ends_when_next_returns_none(fleet: Fleet) -> None:
    process = fleet.process()
    start = fleet.clock.now()
    handle = process.client.schedule("s", next=lambda now: now + 60 if now < start + 120 else None, run=tick)
    await process.start()
    await fleet.run_for(600, step=10)
    assert process.fired == [start + 60, start + 120]
    assert handle.next_at is None
    assert (await fleet.row()).next_at is None


async def test_an_occurrence_whose_work_cannot_be_stored_is_skipped(fleet: Fleet) -> None:
    """The schedule returns the same Work twice. The error is reported."""
    same = tick()
    process = fleet.process()
    process.client.schedule("s", every=60, run=lambda: same)
    await process.start()
    await fleet.advance(60)
    await fleet.advance(60)
    assert len(await process.items()) == 1
    assert [type(error).__name__ for error, phase in process.errors if phase == "schedule"] == [
        "DuplicateIdError"
    ]
    assert (await fleet.row()).last_at == process.connection.fired[-1].at == fleet.clock.now()
    newest, first = (await process.client.schedules.runs())["s"]
    assert (first.error, newest.error.partition(":")[0]) == ("", "DuplicateIdError")


@pytest.mark.parametrize("wrong", [ValueError("no"), "tick", 5])
async def test_a_run_that_fails_is_reported_and_its_occurrence_is_skipped(fleet: Fleet, wrong: Any) -> None:
    answers = iter([wrong, None])

    def run() -> Any:
        answer = next(answers, tick())
        if isinstance(answer, Exception):
            raise answer
        return answer

    process = fleet.process()
    process.client.schedule("s", every=60, run=run)
    await process.start()
    for _ in range(3):
        await fleet.advance(60)
    assert [phase for _, phase in process.errors] == ["schedule"]
    assert len(process.connection.fired) == 3
    assert len(await process.items()) == 1


async def test_a_schedule_whose_run_failed_is_shown_as_failing(fleet: Fleet) -> None:
    """In lists, runs, `why`, problems and metrics, until a run does not fail. One that returns None has not
    failed."""
    answers: list[Any] = [None, ValueError("no"), None]

    def run() -> Any:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return answer

    app = Treadle(fleet.store, clock=fleet.clock)
    app.schedule("s", every=60, run=run)

    async def seen() -> list[Any]:
        (state,), why, problems = (
            await app.schedules.list(),
            await app.schedules.why("s"),
            await app.problems(),
        )
        gauge = f'treadle_schedule_failing{{schedule="s"}} {int(state.state == "failing")}\n'
        assert gauge in await StoreMetrics(app).prometheus()
        return [
            state.state,
            state.last_error,
            why.status,
            why.reasons[0].kind,
            [each.text for each in problems],
        ]

    async with app:
        await run_tasks()
        await fleet.run_for(61)
        assert await seen() == ["active", "", "active", "not_due", []]
        await fleet.run_for(61)
        text = "its last run failed, and submitted nothing: ValueError: no"
        assert await seen() == [
            "failing",
            "ValueError: no",
            "failing",
            "run_failed",
            [f"schedule s: {text}"],
        ]
        assert (await app.schedules.why("s")).reasons[0].text == text
        (problem,) = await app.problems()
        assert (problem.kind, problem.fix) == (
            "schedule_failed",
            "correct its `run`: treadle why --schedule s; then run it now: treadle schedules trigger s",
        )
        await fleet.run_for(61)
        assert await seen() == ["active", "", "active", "not_due", []]
        assert [run.error for run in (await app.schedules.runs())["s"]] == ["", "ValueError: no", ""]


async def test_a_run_that_hangs_delays_only_its_own_schedule(fleet: Fleet) -> None:
    hangs = asyncio.Event()

    async def run() -> Work[int, int]:
        await hangs.wait()
        return tick()

    process = fleet.process()
    process.client.schedule("hangs", every=60, run=run)
    every_minute(process)
    await process.start()
    for _ in range(3):
        await fleet.advance(60)
    assert [fire.name for fire in process.connection.fired] == ["s", "s", "s"]
    hangs.set()
    await run_tasks()
    assert [fire.name for fire in process.connection.fired].count("hangs") == 3


async def test_a_next_that_fails_is_called_again(fleet: Fleet) -> None:
    broken = True

    def later(now: float) -> float:
        if broken:
            raise ValueError("no idea")
        return now + 60

    process = fleet.process()
    process.client.schedule("s", next=later, run=tick)
    await process.start()
    await fleet.run_for(30)
    assert await fleet.store.schedules() == []
    assert process.phases() == {"schedule"}
    broken = False
    await fleet.run_for(10)
    due = (await fleet.row()).next_at
    broken = True
    await fleet.run_for(90)
    assert process.fired == []
    assert (await fleet.row()).next_at == due
    broken = False
    await fleet.run_for(10)
    assert process.fired[0] == due
    assert due is not None
    assert (await fleet.row()).last_at == due


# ----------------------------------------------------------------------------------------------------- fleets


FORMS: dict[str, dict[str, Any]] = {
    "cron": {"cron": "* * * * *", "tz": "Europe/Paris"},
    "every": {"every": 60},
    "next": {"next": lambda now: now + 60},
}


@pytest.mark.parametrize("form", FORMS)
async def test_each_occurrence_fires_once_in_a_fleet(fleet: Fleet, form: str) -> None:
    """Three processes and 100 occurrences give 100 fires and 100 calls of `run`."""
    calls: list[int] = []

    def run() -> Work[int, int]:
        calls.append(1)
        return tick()

    processes = await fleet.processes(3, lambda process: process.client.schedule("s", run=run, **FORMS[form]))
    for _ in range(100):
        await fleet.advance(60)
    fired = sorted(at for process in processes for at in process.fired)
    assert len(fired) == 100
    assert {after - at for at, after in itertools.pairwise(fired)} == {60.0}
    assert len(calls) == 100
    assert len(await processes[0].items()) == 100
    assert sum(len(process.queued) for process in processes) == 100
    assert [process.errors for process in processes] == [[], [], []]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("form", FORMS)
async def test_no_occurrence_is_lost_if_the_store_fails(fleet: Fleet, form: str, seed: int) -> None:
    """Every verb may fail before or after it was carried out. Each occurrence fires once and is announced
    once."""
    dice = random.Random(seed)

    def fails(verb: str) -> str | None:
        return dice.choice(["before", "after"]) if dice.random() < 0.4 else None

    processes = await fleet.processes(
        3, lambda process: process.client.schedule("s", run=tick, **FORMS[form])
    )
    first = (await fleet.row()).next_at
    assert first is not None
    for process in processes:
        process.connection.fails = fails
    for _ in range(40):
        await fleet.advance(60)
    for process in processes:
        process.connection.up()
    await fleet.run_for(30)
    fired = sorted(at for process in processes for at in process.fired)
    assert fired == [first + 60 * n for n in range(40)]
    items = [item.id for item in await processes[0].items()]
    assert len(items) == 40
    assert sorted(event.id for process in processes for event in process.queued) == sorted(items)


async def test_occurrences_during_an_outage_fire_late(fleet: Fleet) -> None:
    """The process was running, so no occurrence was missed. `catch_up` does not apply."""
    process = fleet.process()
    every_minute(process, catch_up="none")
    await process.start()
    process.connection.down()
    await fleet.run_for(5 * 60 + 30)
    assert process.fired == []
    assert process.phases() == {"schedule"}
    process.connection.up()
    await fleet.run_for(10)
    assert len(process.fired) == 5


async def test_occurrences_while_the_start_waits_for_the_store_fire_late(fleet: Fleet) -> None:
    """They were not missed either."""
    first = fleet.process()
    every_minute(first)
    await first.start()
    await first.stop()
    second = fleet.process()
    every_minute(second)
    second.connection.down("schedules", "now", "put_schedule")
    await second.start()
    await fleet.run_for(5 * 60 + 30)
    assert second.fired == []
    second.connection.up()
    await fleet.run_for(10)
    assert len(second.fired) == 5


async def test_another_process_takes_over_from_one_that_dies_while_it_fires(fleet: Fleet) -> None:
    """Within one lease."""
    first, second = await fleet.processes(2, every_minute)
    first.connection.down("fire")
    second.connection.down("claim_key")
    await fleet.advance(60)
    await first.stop()
    second.connection.up()
    await fleet.run_for(11)
    assert len(second.fired) == 1


async def test_a_stop_waits_for_a_fire_under_way(fleet: Fleet) -> None:
    process = fleet.process()
    every_minute(process)
    await process.start()
    writing, go = asyncio.Event(), asyncio.Event()
    fire = fleet.store.fire

    async def slow(given: Fire) -> Any:
        writing.set()
        await go.wait()
        return await fire(given)

    fleet.store.fire = slow
    fleet.clock.advance(60)
    await writing.wait()
    stopping = asyncio.ensure_future(process.stop())
    await run_tasks()
    assert not stopping.done()
    go.set()
    await stopping
    assert len(await process.items()) == len(process.queued) == 1


# -------------------------------------------------------------------------------------- restarts, catching up


async def test_a_restart_keeps_the_next_occurrence(fleet: Fleet) -> None:
    first = fleet.process()
    every_minute(first)
    await first.start()
    due = (await fleet.row()).next_at
    await fleet.advance(30)
    await first.stop()
    second = fleet.process()
    handle = every_minute(second)
    await second.start()
    assert handle.next_at == due
    await fleet.advance(30)
    assert second.fired == [due]


@pytest.mark.parametrize(
    ("catch_up", "downtime", "expected"),
    [
        ("none", 600, 0),
        ("one", 600, 1),
        ("all", 600, 10),
        ("none", 65, 1),  # less than one interval late is not missed
        ("all", 60 * 5000, 100),
        ("one", 60 * 5000, 1),
    ],
)
@pytest.mark.parametrize("form", ["every", "next"])
async def test_catch_up_after_downtime(
    fleet: Fleet, form: str, catch_up: Any, downtime: float, expected: int
) -> None:
    first = fleet.process()
    first.client.schedule("s", run=tick, **FORMS[form])
    await first.start()
    start = fleet.clock.now()
    await first.stop()
    await fleet.advance(downtime)
    processes = await fleet.processes(
        3, lambda process: process.client.schedule("s", run=tick, catch_up=catch_up, **FORMS[form])
    )
    await fleet.run_for(20)
    assert sum(len(process.fired) for process in processes) == expected
    row = await fleet.row()
    assert row.next_at == start + (int(downtime) // 60 + 1) * 60
    await fleet.run_for(60)
    assert sum(len(process.fired) for process in processes) == expected + 1


@pytest.mark.parametrize(("catch_up", "expected"), [("none", 1), ("one", 1), ("all", 10)])
async def test_catch_up_after_the_machine_was_suspended(fleet: Fleet, catch_up: Any, expected: int) -> None:
    """The process existed all the time. The late timer fires. `catch_up` decides about the occurrences
    after it."""
    process = fleet.process()
    every_minute(process, catch_up=catch_up)
    await process.start()
    await fleet.run_for(30)
    await fleet.advance(600)
    assert len(process.fired) == expected
    await fleet.run_for(60)
    assert len(process.fired) == expected + 1


async def test_a_monotonic_clock_that_stopped(fleet: Fleet) -> None:
    """As on Linux while the machine is suspended: only the wall clock tells."""
    process = fleet.process()
    process.client.schedule("s", every=3600, run=tick)
    await process.start()
    await fleet.advance(5)
    wall = fleet.clock.now() + 8 * 3600
    fleet.clock._now = wall
    await fleet.run_for(10)
    assert len(process.fired) == 1
    row = await fleet.row()
    assert row.next_at is not None
    assert wall < row.next_at <= wall + 3600


async def test_another_timing_replaces_the_schedule_and_keeps_its_pause(fleet: Fleet) -> None:
    first = fleet.process()
    every_minute(first)
    await first.start()
    await fleet.advance(60)
    await first.client.schedules.pause("s")
    await first.stop()
    second = fleet.process()
    handle = second.client.schedule("s", every=5, run=tick)
    await second.start()
    assert handle.next_at == fleet.clock.now() + 5
    row = await fleet.row()
    assert row.paused, "a deployment must keep an operator's pause"
    assert row.last_at == first.fired[0]


async def test_a_name_is_free_again_when_its_schedule_was_cancelled(fleet: Fleet) -> None:
    process = fleet.process()
    await process.start()
    first = process.client.schedule("s", next=lambda now: None, run=tick)
    await run_tasks()
    with pytest.raises(ScheduleError, match="this app has a schedule 's' already"):
        process.client.schedule("s", every=60, run=tick)
    await first.cancel()
    second = process.client.schedule("s", next=lambda now: now + 5, run=lambda: tick(2))
    await run_tasks()
    await second.cancel()
    last = process.client.schedule("s", next=lambda now: now + 10, run=lambda: tick(3))
    await run_tasks()
    assert last.next_at == fleet.clock.now() + 10
    await fleet.run_for(10)
    assert process.fired == [fleet.clock.now()]
    await last.cancel()
    over = process.client.schedule("s", next=lambda now: None, run=tick)
    await run_tasks()
    assert over.next_at is None
    assert await process.client.schedules.list() == []


async def test_old_code_does_not_fire_during_a_rolling_deployment(fleet: Fleet) -> None:
    old = fleet.process()
    every_minute(old)
    await old.start()
    new = fleet.process()
    new.client.schedule("s", every=20, run=tick)
    await new.start()
    await fleet.run_for(300)
    assert old.fired == []
    assert len(new.fired) == 15
    await new.stop()
    await fleet.run_for(UNSEEN * REFRESH + 180)
    assert old.fired, "no process has the new code any more"


# -------------------------------------------------------------------------------------------------- operating


async def test_cancel_is_for_the_whole_fleet(fleet: Fleet) -> None:
    handles: list[ScheduleHandle] = []
    processes = await fleet.processes(3, lambda process: handles.append(every_minute(process)))
    await fleet.advance(60)
    await handles[0].cancel()
    await fleet.run_for(300)
    assert sum(len(process.fired) for process in processes) == 1
    assert await processes[1].client.schedules.list() == []
    assert [handle.next_at for handle in handles] == [None] * 3
    await handles[0].cancel()
    with pytest.raises(NotFound):
        await processes[1].client.schedules.cancel("s")


async def test_a_cancelled_schedule_can_be_made_again(fleet: Fleet) -> None:
    first, second = await fleet.processes(2, every_minute)
    await first.client.schedules.cancel("s")
    await fleet.run_for(30)
    every_minute(first)
    await fleet.run_for(30)
    await first.stop()
    await fleet.run_for(60)
    assert len(second.fired) == 1, "every process with the code has it again"


async def test_a_schedule_cancelled_before_the_start_is_not_stored(fleet: Fleet) -> None:
    process = fleet.process()
    handle = every_minute(process)
    await handle.cancel()
    await process.start()
    assert await process.client.schedules.list() == []


async def test_a_schedule_cancelled_while_it_is_stored_is_removed(fleet: Fleet) -> None:
    process = fleet.process()
    await process.start()
    writing, go = asyncio.Event(), asyncio.Event()
    put = fleet.store.put_schedule

    async def slow(schedule: Schedule, **how: Any) -> Schedule:
        writing.set()
        await go.wait()
        return await put(schedule, **how)

    fleet.store.put_schedule = slow
    handle = every_minute(process)
    await writing.wait()
    await handle.cancel()
    go.set()
    await run_tasks()
    assert await fleet.store.schedules() == []


async def test_cancelled_while_another_process_marks_it_as_seen(fleet: Fleet) -> None:
    first, second = await fleet.processes(2, lambda p: p.client.schedule("s", every=86400, run=tick))
    put = fleet.store.put_schedule

    async def late(schedule: Schedule, **how: Any) -> Schedule:
        await fleet.store.drop_schedule("s")
        return await put(schedule, **how)

    fleet.store.put_schedule = late
    await fleet.run_for(3 * REFRESH)
    assert await fleet.store.schedules() == []
    assert not first.scheduler.busy
    assert second.errors == []


async def test_a_schedule_that_the_store_has_lost_is_stored_again(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """It was stored in changes that the store has forgotten. No occurrence is lost, and none fires twice."""
    processes = await fleet.processes(2, every_minute)
    began = fleet.clock.now()
    await fleet.run_for(50)
    fleet.store.store.schedules.clear()
    await fleet.run_for(130)
    fired = sorted(at - began for process in processes for at in process.fired)
    assert fired == [60.0, 120.0, 180.0]
    assert "the store has lost schedule 's'" in caplog.text


async def test_a_lost_schedule_is_paused_as_it_was(fleet: Fleet) -> None:
    processes = await fleet.processes(2, every_minute)
    await processes[0].client.schedules.pause("s")
    await fleet.run_for(20)
    fleet.store.store.schedules.clear()
    await fleet.run_for(300)
    assert (await fleet.row()).paused
    assert [process.fired for process in processes] == [[], []]


async def test_a_schedule_lost_while_it_is_marked_as_seen_is_stored_again(fleet: Fleet) -> None:
    process = (await fleet.processes(1, every_minute))[0]
    put = fleet.store.put_schedule

    async def lost(schedule: Schedule, **how: Any) -> Schedule:
        fleet.store.store.schedules.clear()
        fleet.store.put_schedule = put
        return await put(schedule, **how)

    fleet.store.put_schedule = lost
    await fleet.run_for(3 * REFRESH)
    assert fleet.store.put_schedule is put
    assert len(process.fired) == 3


async def test_what_an_operator_cancels_stays_so_until_a_process_starts(fleet: Fleet) -> None:
    """The processes that run do not take it for lost. One that starts brings it back, for all."""
    first, second = await fleet.processes(2, every_minute)
    assert await fleet.store.drop_schedule("s")
    await fleet.run_for(600)
    assert await fleet.store.schedules() == []
    (third,) = await fleet.processes(1, every_minute)
    await third.stop()
    await fleet.run_for(90)
    assert len(first.fired) + len(second.fired) == 1


async def test_an_interval_goes_on_when_the_clock_went_back(fleet: Fleet) -> None:
    """It does not wait for an hour until the clock shows the old time again."""
    processes = await fleet.processes(2, every_minute)
    await fleet.run_for(61)
    await fleet.clock.set(fleet.clock.now() - 3600)
    await fleet.run_for(300)
    fired = sorted(at for process in processes for at in process.fired)
    assert 4 <= len(fired[1:] + fired[:1]) - 1 <= 5
    assert all(0 < fleet.clock.now() - at <= 310 for at in fired[:-1])


async def test_a_time_of_the_calendar_fires_once_when_the_clock_went_back(fleet: Fleet) -> None:
    processes = await fleet.processes(2, lambda p: p.client.schedule("s", cron="* * * * *", run=tick))
    await fleet.run_for(61)
    count = sum(len(process.fired) for process in processes)
    await fleet.clock.set(fleet.clock.now() - 600)
    await fleet.run_for(500)
    assert sum(len(process.fired) for process in processes) == count
    await fleet.run_for(200)
    assert sum(len(process.fired) for process in processes) > count


async def test_occurrences_during_a_pause_are_missed(fleet: Fleet) -> None:
    """`catch_up` decides about them."""
    handles: list[ScheduleHandle] = []
    processes = await fleet.processes(2, lambda process: handles.append(every_minute(process)))
    await handles[0].pause()
    (state,) = await processes[1].client.schedules.list()
    assert state.paused
    await fleet.run_for(600)
    await processes[1].client.schedules.resume("s")
    await fleet.run_for(30)
    assert sum(len(process.fired) for process in processes) == 0
    await fleet.run_for(60)
    assert sum(len(process.fired) for process in processes) == 1


async def test_a_schedule_can_be_paused_before_the_start(fleet: Fleet) -> None:
    process = fleet.process()
    handle = every_minute(process)
    await handle.pause()
    await process.start()
    await fleet.run_for(120)
    assert process.fired == []


async def test_resume_catches_up(fleet: Fleet) -> None:
    process = fleet.process()
    handle = every_minute(process, catch_up="all")
    await process.start()
    await handle.pause()
    await fleet.run_for(605)
    await handle.resume()
    await fleet.run_for(5)
    assert len(process.fired) == 10


async def test_trigger_runs_an_extra_occurrence(fleet: Fleet) -> None:
    process = fleet.process()
    handle = every_minute(process, priority=3)
    await process.start()
    due = handle.next_at
    await handle.pause()
    triggered = await handle.trigger()
    assert triggered is not None
    (item,) = await process.items()
    assert (item.id, item.priority) == (triggered.id, 3)
    assert (await fleet.row()).next_at == due
    assert await process.client.schedules.trigger("s") is not None


async def test_trigger_returns_none_or_raises_as_run_does(fleet: Fleet) -> None:
    process = fleet.process()
    assert await process.client.schedule("s", every=60, run=lambda: None).trigger() is None
    assert await process.items() == []

    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await process.client.schedule("b", every=60, run=broken).trigger()


async def test_operations_on_an_unknown_schedule(fleet: Fleet) -> None:
    first, other = fleet.process(), fleet.process()
    every_minute(first)
    await first.start()
    for verb in ("pause", "resume", "trigger", "cancel"):
        with pytest.raises(NotFound):
            await getattr(other.client.schedules, verb)("missing")
    with pytest.raises(ScheduleError, match="not in this process"):
        await other.client.schedules.trigger("s")


async def test_a_schedule_without_code_is_shown_as_orphaned(fleet: Fleet) -> None:
    clock = fleet.clock
    with_it = Treadle(fleet.store, clock=clock)
    without = Treadle(fleet.store, clock=clock)
    operator = fleet.process().client
    with_it.schedule("s", every=60, run=tick)

    async def orphaned() -> list[bool]:
        views = [await app.schedules.list() for app in (operator, without)]
        return [state.orphaned for states in views for state in states]

    async with without:
        async with with_it:
            await run_tasks()
            assert await orphaned() == [False, False]
        assert await orphaned() == [False, False], "it was seen just now: a worker may not have said so yet"
        await fleet.run_for(SAID + 1)
        assert (await without.schedules.list())[0].orphaned, "the only worker left does not have the code"
        assert (await with_it.schedules.list())[0].orphaned, "code without a worker fires nothing"
        async with Treadle(fleet.store, clock=clock):
            assert await orphaned() == [True, True], "all workers say that they do not have the code"
        await fleet.store.beat(Heartbeat(worker="of an earlier version", lease=9999))
        assert await orphaned() == [False, False], "it may have the code"
        await fleet.run_for(UNSEEN * REFRESH + 5)
        assert await orphaned() == [True, True], "but no process has marked it as seen for long"


async def test_one_rule_says_how_a_schedule_stands(fleet: Fleet) -> None:
    """In lists, metrics and `why`."""
    app, silent = Treadle(fleet.store, clock=fleet.clock), Heartbeat(worker="w0", lease=9999)
    app.schedule("s", every=60, run=tick)

    async def standings() -> set[str]:
        (state,) = await app.schedules.list()
        why = await app.schedules.why("s")
        text = await StoreMetrics(app).prometheus()
        orphaned = 'treadle_schedule_orphaned{schedule="s"} 1' in text
        assert orphaned == (state.state == "orphaned") == state.orphaned
        assert (why.reasons[0].kind == "orphaned") == orphaned
        return {state.state, why.status}

    async with app:
        await run_tasks()
        assert await standings() == {"active"}
    assert await standings() == {"orphaned"}
    await fleet.store.beat(silent)
    assert await standings() == {"active"}, "that worker does not say which schedules it has"
    await fleet.run_for(70)
    assert await standings() == {"overdue"}
    assert [each.kind for each in (await app.schedules.why("s")).reasons] == ["overdue"]
    await fleet.run_for(UNSEEN * REFRESH)
    assert await standings() == {"orphaned"}


async def test_schedules_are_marked_as_seen_now_and_then(fleet: Fleet) -> None:
    processes = await fleet.processes(3, lambda p: p.client.schedule("s", every=86400, run=tick))
    for process in processes:
        process.connection.calls.clear()
    await fleet.run_for(7 * REFRESH)
    assert fleet.clock.now() - (await fleet.row()).seen_at < 2 * REFRESH
    assert sum(process.connection.calls["put_schedule"] for process in processes) <= 8


async def test_each_tenant_has_its_own_schedules(fleet: Fleet) -> None:
    process = fleet.process()
    operator = process.client
    acme, other = operator.tenant("acme"), operator.tenant("a/b")
    operator.schedule("s", every=60, run=tick)
    mine = acme.schedule("s", every=60, run=tick)
    other.schedule("s", every=60, run=tick)
    await process.start()
    await fleet.advance(60)
    assert sorted(item.tenant for item in await process.items()) == ["a/b", "acme", "default"]
    assert [state.name for state in await acme.schedules.list()] == ["s"]
    assert [state.name for state in await operator.schedules.list()] == ["a%2Fb/s", "acme/s", "s"]
    triggered = await operator.schedules.trigger("acme/s")
    assert triggered is not None
    assert (await triggered.state()).tenant == "acme"
    with pytest.raises(NotFound):
        await acme.schedules.cancel("acme/s")
    await mine.cancel()
    assert [state.name for state in await operator.schedules.list()] == ["a%2Fb/s", "s"]


# -------------------------------------------------------------------------------------------------- with apps


async def test_an_app_starts_and_stops_its_scheduler(fleet: Fleet) -> None:
    ran: list[int] = []

    @work(name="count")
    async def count() -> None:
        ran.append(1)

    app = Treadle(fleet.store, clock=fleet.clock, work=[count])
    app.schedule("s", every=60, run=count)
    for _ in range(2):
        async with app:
            await run_tasks()
            await fleet.advance(60)
            await run_tasks()
        before = len(ran)
        await fleet.run_for(30)
        assert len(ran) == before
    assert len(ran) == 2


async def test_drain_fires_due_occurrences(clock: ManualClock) -> None:
    ran: list[int] = []

    @work(name="count")
    async def count() -> None:
        ran.append(1)

    app = Treadle(clock=clock, work=[count])
    async with run_inline(app):
        handle = app.schedule("s", every=3600, run=count)
        await drain(app)
        assert handle.next_at == clock.now() + 3600
        clock.advance(3600)
        await drain(app)
        assert ran == [1]
        app.schedule("broken", next=lambda now: 1 / 0, run=count)
        await drain(app)


async def test_two_workers_of_one_process_share_a_scheduler(fleet: Fleet) -> None:
    process = fleet.process()
    every_minute(process)
    await process.start()
    process.scheduler.start("another")
    await process.stop()
    await fleet.advance(60)
    assert len(process.fired) == 1
    await process.scheduler.stop("another")
    await fleet.advance(60)
    assert len(process.fired) == 1


async def test_each_occurrence_fires_once_on_sqlite(clock: ManualClock, tmp_path: Path) -> None:
    """Three processes with one connection each. The store answers from another thread."""
    from treadle.backends.sqlite import SqliteBackend

    processes = [
        Process(SqliteBackend(tmp_path / "work.db", clock=clock, durability="normal"), clock)
        for _ in range(3)
    ]
    for process in processes:
        every_minute(process)
        await process.client.connect()
        process.scheduler.start("worker")
        await process.client.schedules.list()
    for _ in range(20):
        clock.advance(60)
        await fires(processes)
    fired = sorted(at for process in processes for at in process.fired)
    assert fired == [fired[0] + 60 * n for n in range(20)]
    assert len(await processes[0].items()) == 20
    for process in processes:
        await process.stop()
        await process.client.close()


async def test_each_occurrence_fires_once_in_real_time_on_every_backend(
    make_app: Callable[..., Treadle],
) -> None:
    """One of three apps fires it, and any of them runs it."""
    ran: asyncio.Queue[int] = asyncio.Queue()
    fired: Counter[str] = Counter()

    @work(name="regular")
    async def regular() -> None:
        ran.put_nowait(1)

    def seen(event: object) -> None:
        if isinstance(event, Queued):
            fired[event.id] += 1

    apps = [make_app(regular, on_event=seen) for _ in range(3)]
    await apps[0].connect()
    began = await apps[0].backend.now()
    entries = [app.schedule("s", every=0.05, run=regular)._entry for app in apps]
    for app in apps:
        await app.start()
    async with asyncio.timeout(PATIENCE):
        for _ in range(6):
            await ran.get()
        while any(entry.stored is None for entry in entries):  # one that came later would store it again
            await ran.get()
    await apps[0].schedules.cancel("s")
    (page, states) = (await apps[0].list(limit=1000)), await apps[1].schedules.list()
    assert states == []
    assert fired == Counter(item.id for item in page.items)
    span = max(item.queued_at for item in page.items) - began  # the first may be late, and the next one not
    assert len(page.items) - 1 <= span / 0.05 + 0.5, "an occurrence fired twice"


async def test_a_list_does_not_delay_a_schedule(make_app: Callable[..., Treadle]) -> None:
    """It stores schedules that are not stored yet. The loop that fires them used to notice that only at its
    next synchronization, ten poll intervals later."""
    ran = asyncio.Event()

    @work(name="listed")
    async def listed() -> None:
        ran.set()

    app = make_app(listed, poll_interval=10.0, lease=60.0)
    await app.start()
    app.schedule("s", every=0.2, run=listed)
    assert [state.name for state in await app.schedules.list()] == ["s"]
    async with asyncio.timeout(PATIENCE):
        await ran.wait()


async def test_a_list_that_fails_does_not_delay_a_schedule(fleet: Fleet) -> None:
    process = fleet.process(poll_interval=10.0, lease=60.0)
    await process.start()
    every_minute(process)
    process.connection.down("schedules")
    with pytest.raises(StoreUnavailable):
        await process.client.schedules.list()
    process.connection.up()
    await fleet.run_for(70)
    assert len(process.fired) == 1


# ------------------------------------------------------------------------------------------- start= and end=


async def test_a_schedule_occurs_from_start_to_end_and_is_shown_as_ended(fleet: Fleet) -> None:
    process = fleet.process()
    now = fleet.clock.now()
    handle = every_minute(process, start=now + 90, end=now + 210)
    assert handle.next_at == now + 90
    await process.start()
    (state,) = await process.client.schedules.list()
    assert (state.next_at, state.ended) == (now + 90, False)
    assert state.timing == {"every": 60.0, "start": now + 90, "end": now + 210}
    await fleet.run_for(400)
    assert process.fired == [now + 90, now + 150, now + 210]
    (state,) = await process.client.schedules.list()
    assert (state.next_at, state.ended, state.last_at) == (None, True, now + 210)
    assert handle.next_at is None


async def test_a_schedule_that_ended_before_it_is_made_is_not_stored(fleet: Fleet) -> None:
    process = fleet.process()
    handle = every_minute(process, end=fleet.clock.now() - 1)
    await process.start()
    await fleet.run_for(120)
    assert (handle.next_at, process.fired) == (None, [])
    assert await process.client.schedules.list() == []


async def test_new_code_with_an_earlier_end_ends_the_stored_schedule(fleet: Fleet) -> None:
    old = fleet.process()
    every_minute(old)
    await old.start()
    await old.stop()
    new = fleet.process()
    every_minute(new, end=fleet.clock.now() - 1)
    await new.start()
    await fleet.run_for(120)
    assert (old.fired, new.fired) == ([], [])
    assert await new.client.schedules.list() == []


async def test_an_end_before_the_start_is_refused(fleet: Fleet) -> None:
    with pytest.raises(ScheduleError, match="before start"):
        every_minute(fleet.process(), start=200.0, end=100.0)


async def test_a_nickname_is_a_cron_expression(fleet: Fleet) -> None:
    process = fleet.process()
    handle = process.client.schedule("s", cron="@hourly", run=tick)
    assert handle.next_at is not None
    assert handle.next_at % 3600 == 0
    await process.start()
    assert (await process.client.schedules.list())[0].timing == {"cron": "@hourly", "tz": "UTC"}
