"""The backlog of queues: sampled once a minute in the fleet; told as rates, a time to drain, a history."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from tests.engine.kit import PATIENCE, Errors, MakeApp, until
from treadle import MemoryBackend, Treadle, Worker, work
from treadle.base.timing import SystemClock
from treadle.bulk_runner import BulkRunner
from treadle.engine.upkeep.samples import merged, samples_of
from treadle.errors import InputError, UnsupportedError
from treadle.item import TELL_TYPE, Count, Order
from treadle.item_facts import Overview, QueueAge
from treadle.operate.backlog import backlog_text, rate
from treadle.operate.operator import core_of
from treadle.ports import MemoryPubSub, MemoryQueue, MemoryStore, PortsBackend
from treadle.records import HOUR, MINUTE, MOST_SAMPLED, QUARTER, BacklogSample, QueueBacklog, Stat
from treadle.testing import CountingBackend, Faults, FaultyBackend, ManualClock

NOW = 20_000 * 86_400.0 + 9 * HOUR
"""A whole hour."""


@work(name="echo")
async def echo(n: int) -> int:
    return n


def count(queue: str, status: Any, number: int, *, type: str = "echo", about: bool = False) -> Count:
    return Count("default", queue, type, status, number, about)


def sample(minute: float, queue: str, ready: float, running: float = 0.0, **more: Any) -> BacklogSample:
    return BacklogSample(at=NOW + minute * MINUTE, queue=queue, ready=ready, running=running, **more)


async def told(
    samples: list[BacklogSample],
    ends: int = 0,
    *,
    ready: int = 0,
    now: float = 5.5,
    about: bool = False,
    paused: int = 0,
) -> QueueBacklog:
    """What is said of a queue `q` with these samples, in which as many items ended in each minute."""
    clock = ManualClock(NOW + now * MINUTE)
    app = Treadle(MemoryBackend(clock=clock), clock=clock)
    looks = {each.at for each in samples}
    await app.backend.put_samples([BacklogSample(at=at) for at in looks] + samples)
    await app.backend.add_stats(
        [Stat(at=NOW + minute * MINUTE, type="echo", queue="q", succeeded=ends) for minute in range(-9, 6)]
    )
    counts = (count("q", "ready", ready, about=about), count("q", "ready", paused, type="slow"))
    pauses = (Order(kind="pause", type="slow"),) if paused else ()
    found = await app.backlogs(overview=Overview(now=clock.now(), counts=counts, paused=pauses))
    await app.close()
    return next(each for each in found if each.queue == "q")


# ------------------------------------------------------------------------------------------------ sampling


async def sampled(clock: ManualClock, backends: list[CountingBackend], samples: int) -> None:
    """A minute passes, in which the fleet has taken this many samples in all."""
    await clock.advance(MINUTE)
    await until(lambda: sum(each.calls["put_samples"] for each in backends) >= samples)


async def test_one_process_of_a_fleet_takes_a_sample_each_minute(clock: ManualClock) -> None:
    """By the store's clock. A queue that is empty again has no sample, and lowers its averages."""
    store = MemoryBackend(clock=clock)
    backends = [CountingBackend(store) for _ in range(3)]
    apps = [Treadle(backend, clock=clock, work=[echo]) for backend in backends]
    served = {"queues": ["none"]}
    async with (
        Worker(apps[0], **served),
        Worker(apps[1], **served),
        Worker(apps[2], **served),
        Worker(apps[2], **served, id="other"),
    ):
        await apps[0].enqueue_many([echo(n) for n in range(4)], queue="mail")
        await sampled(clock, backends, 1)
        await sampled(clock, backends, 2)
        await apps[0].cancel([each.id for each in (await apps[0].list(queue="mail")).items])
        await sampled(clock, backends, 3)
    assert sum(each.calls["put_samples"] for each in backends) == 3
    begin = clock.now() - HOUR
    rows = await store.samples(begin, queues=["mail"])
    assert [(each.ready, each.running, each.samples) for each in rows] == [(4, 0, 1), (4, 0, 1)]
    assert all(each.at % MINUTE == 0 and 0 < each.oldest <= 3 * MINUTE for each in rows)
    assert [each.ready for each in await store.samples(begin, queues=[""])] == [4, 4, 0]
    hours = await store.samples(begin - HOUR, step=HOUR, queues=["mail"])
    assert sum(each.ready * each.samples for each in hours) == pytest.approx(8)
    for app in apps:
        await app.close()


async def test_samples_and_rates_on_every_store(make_app: MakeApp) -> None:
    """Two minutes, by processes that do not know what the other has stored."""
    app, other = make_app(echo), make_app(echo)
    await other.connect()
    await app.connect()
    minute = (await app.backend.now()) // MINUTE * MINUTE
    await app.enqueue_many([echo(n) for n in range(5)], queue="mail")
    await app.enqueue(echo(1), queue="later", delay=3600)
    await core_of(app).samples.run_once(minute - MINUTE, "a")
    await core_of(other).samples.run_once(minute - MINUTE, "b")
    await app.enqueue_many([echo(n) for n in range(3)], queue="mail")
    await core_of(other).samples.run_once(minute, "b")
    await core_of(app).samples.run_once(minute, "a")
    await app.backend.add_stats([Stat(at=minute - MINUTE, type="echo", queue="mail", succeeded=40)])
    (mail,) = await app.backlogs()
    assert (mail.queue, mail.ready, mail.growth, mail.ends, mail.arrivals) == ("mail", 8, 3, 40, 43)
    assert backlog_text(mail) == "grows by 3 a minute (last 60 s)"
    history = await app.backlog_history(minute - MINUTE, queue="mail")
    assert [(each.at, each.ready, each.samples) for each in history] == [
        (minute - MINUTE, 5, 1),
        (minute, 8, 1),
    ]
    for step in (QUARTER, HOUR):
        kept = await app.backlog_history(minute - 2 * HOUR, step=step, queue="mail")
        assert sum(each.ready * each.samples for each in kept) == pytest.approx(13)
        assert sum(each.samples for each in kept) == 2


async def test_a_store_that_fails_costs_a_minute(clock: ManualClock) -> None:
    faults, errors = Faults(), Errors()
    faults.fail("put_samples", times=1)
    store = MemoryBackend(clock=clock)
    backend = FaultyBackend(store, faults)
    async with Treadle(backend, clock=clock, work=[echo], on_error=errors) as app:
        await app.enqueue(echo(1)).result(PATIENCE)
        await clock.advance(MINUTE + 3)
        await errors.until("claim")
        await clock.advance(MINUTE)
        await until(lambda: bool(store.store.samples[MINUTE]))
        assert [each.queue for each in await app.backend.samples(0.0)] == [""]


async def test_no_samples_are_taken_without_statistics(clock: ManualClock) -> None:
    backend = CountingBackend(MemoryBackend(clock=clock))
    async with Treadle(backend, clock=clock, work=[echo], statistics=False) as app:
        await clock.advance(3 * MINUTE)
        assert (backend.calls["put_samples"], await app.backlog_history(0)) == (0, [])
    ports = PortsBackend(MemoryQueue(SystemClock()), MemoryPubSub(), MemoryStore(SystemClock()))
    async with Treadle(ports, work=[echo], poll_interval=0.05) as app:
        await app.enqueue(echo(1)).result(PATIENCE)
        with pytest.raises(UnsupportedError, match="recording"):
            await app.backlog_history(0)
        with pytest.raises(UnsupportedError, match="watching"):
            await app.backlogs()


def test_a_sample_has_what_is_due() -> None:
    """Ready and running items by queue, without messages about problems; estimates are marked."""
    counts = (
        count("a", "ready", 3),
        count("a", "running", 2),
        count("a", "scheduled", 50),
        count("b", "ready", 2_000_000, about=True),
        count("c", "ready", 7, type=TELL_TYPE),
        count("d", "dead", 7),
    )
    overview = Overview(now=NOW, counts=counts, ages=(QueueAge("a", NOW - 30), QueueAge("b", NOW + 1)))
    whole, b, a = samples_of(overview, NOW - 5)
    assert (whole.queue, whole.ready, whole.running, whole.oldest, whole.estimated) == (
        "",
        2_000_003,
        2,
        30,
        True,
    )
    assert (b.queue, b.ready, b.oldest, b.estimated, b.at) == ("b", 2_000_000, 0, True, NOW - 5)
    assert (a.queue, a.ready, a.running, a.oldest, a.estimated) == ("a", 3, 2, 30, False)
    many = tuple(count(f"q{n}", "ready", n + 1) for n in range(MOST_SAMPLED + 5))
    found = samples_of(Overview(now=NOW, counts=many), NOW)
    assert len(found) == MOST_SAMPLED + 1
    assert min(each.ready for each in found) == 6


def test_a_sample_of_many_queues_is_made_in_one_pass() -> None:
    """The event loop waits for it."""
    counts = tuple(count(f"q{n}", status, 1) for n in range(5000) for status in ("ready", "running"))
    began = time.process_time()
    samples_of(Overview(now=NOW, counts=counts), NOW)
    assert time.process_time() - began < 1


def test_quarters_and_hours_have_averages_and_the_longest_wait() -> None:
    """A queue without a sample was empty then."""
    quarter: list[BacklogSample] = []
    for minute in (
        [sample(0, "", 10, 2, oldest=5.0), sample(0, "a", 10, 2, oldest=5.0, estimated=True)],
        [sample(1, "", 0)],
        [sample(2, "", 5, oldest=9.0), sample(2, "a", 2, oldest=1.0), sample(2, "b", 3, oldest=9.0)],
    ):
        quarter = merged(quarter, minute, NOW, QUARTER)
    assert [(each.queue, each.samples, each.ready, each.oldest, each.estimated) for each in quarter] == [
        ("", 3, 5.0, 9.0, False),
        ("a", 3, 4.0, 5.0, True),
        ("b", 3, 1.0, 9.0, False),
    ]
    assert {(each.at, each.step) for each in quarter} == {(NOW, QUARTER)}
    assert quarter[1].running == pytest.approx(2 / 3)


# --------------------------------------------------------------------------------------------------- rates


async def test_a_queue_that_grows_says_by_how_much() -> None:
    found = await told([sample(n, "q", 1000 + 120 * n, 8) for n in range(6)], ends=300, ready=1650)
    assert (found.growth, found.ends, found.arrivals, found.over) == (120, 300, 420, 300)
    assert (found.drains_in, found.waited, found.rough) == (None, True, False)
    assert backlog_text(found) == "grows by 120 a minute"
    assert found.seconds == pytest.approx(330)


async def test_a_queue_that_shrinks_says_when_it_is_drained() -> None:
    """Items that are running count: workers that take more at once do not drain it sooner."""
    samples = [sample(0, "q", 6000, 0), *(sample(n, "q", 5000 - 500 * n, 1000) for n in range(1, 6))]
    found = await told(samples, ends=600, ready=2500)
    assert (found.growth, found.ends, found.arrivals) == (-500, 600, 100)
    assert found.drains_in == pytest.approx(300)
    assert backlog_text(found) == "drains in 5 min"


async def test_what_is_paused_does_not_drain() -> None:
    """The time is that of the others. If all that is left is paused, there is none."""
    samples = [sample(n, "q", 5000 - 500 * n) for n in range(6)]
    part = await told(samples, ends=600, ready=2000, paused=500)
    assert (part.ready, part.paused, part.drains_in, part.seconds) == (2500, 500, 240, 200)
    assert backlog_text(part) == "drains in 4 min, but for 500 paused"
    whole = await told(samples, ends=600, paused=2500)
    assert (whole.drains_in, whole.seconds, backlog_text(whole)) == (None, 0.0, "paused")
    more = await told([sample(n, "q", 100 * n + 1) for n in range(6)], paused=501)
    assert backlog_text(more) == "paused, grows by 100 a minute"
    grows = await told([sample(n, "q", 100 * n + 1) for n in range(6)], ready=450, paused=50)
    assert backlog_text(grows) == "grows by 100 a minute, 50 paused"


async def test_rates_begin_when_items_began_to_wait() -> None:
    """What came at once is not what comes in a minute, and workers without work say nothing of how much they
    can do. A shorter time is said."""
    samples = [sample(0, "q", 0, 1), sample(2, "other", 1), sample(3, "q", 900), sample(4, "q", 600)]
    found = await told(samples, ends=300, ready=450, now=4.5)
    assert (found.growth, found.over, found.waited) == (-300, 60, True)
    assert backlog_text(found) == "drains in 90 s (last 60 s)"
    just_now = await told(samples[:3], ends=10, ready=850, now=3.1)
    assert (just_now.waited, just_now.ends, just_now.over) == (False, 10, 180)
    assert (backlog_text(just_now), just_now.drains_in, just_now.seconds) == ("", None, 0.0)


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param([], id="none"),
        pytest.param([sample(5, "q", 9)], id="one"),
        pytest.param([sample(1, "q", 9), sample(2, "q", 8)], id="old"),
    ],
)
async def test_what_is_not_known_is_not_said(samples: list[BacklogSample]) -> None:
    found = await told(samples, ends=5, ready=9)
    assert (found.growth, found.ends, found.arrivals, found.over) == (None, None, None, 0)
    assert (backlog_text(found), found.drains_in) == ("", None)


async def test_a_queue_beyond_those_that_are_sampled_has_no_rates() -> None:
    many = [sample(n, f"other{i}", 10) for n in (4, 5) for i in range(MOST_SAMPLED)]
    clock = ManualClock(NOW + 5.5 * MINUTE)
    app = Treadle(MemoryBackend(clock=clock), clock=clock)
    await app.backend.put_samples([sample(4, "", 1), sample(5, "", 1), *many])
    overview = Overview(now=clock.now(), counts=(count("q", "ready", 3), count("other1", "ready", 3)))
    found = {each.queue: each.growth for each in await app.backlogs(overview=overview)}
    assert (found["q"], found["other1"]) == (None, 0)
    await app.close()


async def test_estimates_are_marked() -> None:
    samples = [sample(n, "q", 3e6 - 1e5 * n, estimated=True) for n in range(6)]
    found = await told(samples, ends=90_000, ready=2_512_345, about=True)
    assert (found.estimated, found.rough) == (True, True)
    assert backlog_text(found) == "drains in ≈25 min"
    grows = await told([sample(n, "q", 2e6 + 12_345 * n, estimated=True) for n in range(6)], ready=9)
    assert backlog_text(grows, "~") == "grows by ~12,300 a minute"
    steady = await told([sample(n, "q", 50) for n in range(6)], ends=10, ready=50)
    assert backlog_text(steady) == "neither grows nor drains"
    assert steady.seconds == 300


async def test_items_that_code_moves_do_not_make_arrivals_negative() -> None:
    """No audit entry says so. The rates are marked."""
    found = await told([sample(n, "q", 5000 - 900 * n) for n in range(6)], ends=100, ready=500)
    assert (found.arrivals, found.growth, found.rough) == (0, -900, True)
    assert backlog_text(found).startswith("drains in ≈")
    late = await told([sample(n, "q", 5000 - 105 * n) for n in range(6)], ends=100, ready=500)
    assert (late.arrivals, late.rough) == (0, False)


async def test_a_rate_that_has_changed_strongly_is_that_of_the_last_minutes() -> None:
    """A mean of both is the rate of neither."""
    slower = [*(sample(n, "q", 5000 - 100 * n) for n in range(4)), sample(4, "q", 4690), sample(5, "q", 4680)]
    found = await told(slower, ends=100, ready=100)
    assert (found.growth, found.ends, found.arrivals, found.over) == (-10, 100, 90, 120)
    assert backlog_text(found) == "drains in 10 min (last 2 min)"
    alike = [*(sample(n, "q", 5000 - 100 * n) for n in range(4)), sample(4, "q", 4650), sample(5, "q", 4580)]
    assert (await told(alike, ends=100, ready=100)).over == 300


class Shift(NamedTuple):
    """An app whose clock is some minutes after `NOW`, and what operators do there."""

    app: Treadle
    clock: ManualClock

    async def sampled(self, minute: float) -> None:
        await self.until(minute + 0.01)
        await core_of(self.app).samples.run_once(NOW + minute * MINUTE, "a")

    async def until(self, minute: float) -> None:
        await self.clock.advance(NOW + minute * MINUTE - self.clock.now())

    async def backlog(self, queue: str = "mail") -> QueueBacklog:
        return next(each for each in await self.app.backlogs() if each.queue == queue)

    async def text(self) -> str:
        return backlog_text(await self.backlog())


@pytest.fixture
async def shift() -> AsyncIterator[Shift]:
    """Each minute 10 items come to `mail`, and 40 end, as workers counted."""
    clock = ManualClock(NOW)
    app = Treadle(MemoryBackend(clock=clock), clock=clock, work=[echo])
    await app.connect()
    await app.backend.add_stats(
        [Stat(at=NOW + minute * MINUTE, type="echo", queue="mail", succeeded=40) for minute in range(9)]
    )
    yield Shift(app, clock)
    await app.close()


async def come(app: Treadle, count: int) -> list[str]:
    return [each.id for each in await app.enqueue_many([echo(n) for n in range(count)], queue="mail")]


async def test_items_that_operators_move_are_neither_arrivals_nor_ends(shift: Shift) -> None:
    """The minute in which they did is left out. If there is no other, it is not known what came."""
    app, operator = shift.app, shift.app.by("ann")
    ids = await come(app, 500)
    for minute in range(3):
        await shift.sampled(minute)
        await come(app, 10)
    assert (await shift.backlog()).growth == 10
    await shift.until(2.5)
    await operator.update(ids[:400], run_at=shift.clock.now() + 3600)
    await shift.sampled(3)
    found = await shift.backlog()
    assert (found.growth, found.ends, found.arrivals, found.over) == (10, 40, 50, 120)
    assert await shift.text() == "grows by 10 a minute (last 2 min)"
    for minute, verb in (
        (4, operator.trigger),
        (5, operator.hold),
        (6, operator.unhold),
        (7, operator.cancel),
    ):
        await shift.until(minute - 0.5)
        await verb(ids[:400])
        await shift.sampled(minute)
    found = await shift.backlog()
    assert (found.growth, found.arrivals, found.ends, found.drains_in) == (None, None, 40, None)
    assert await shift.text() == ""
    await shift.sampled(8)
    assert await shift.text() == "neither grows nor drains (last 60 s)"


async def test_single_items_that_operators_move_change_no_rate(shift: Shift) -> None:
    ids = await come(shift.app, 50)
    await shift.sampled(0)
    await shift.until(0.5)
    await shift.app.by("ann").cancel(ids[:2])
    await shift.sampled(1)
    assert await shift.text() == "drains in 24 min (last 60 s)"


async def test_rates_begin_after_the_last_order(shift: Shift) -> None:
    """A mean of a pause and of the time after it is the rate of neither."""
    await come(shift.app, 50)
    await shift.app.by("ann").pause("mail")
    for minute in range(3):
        await shift.sampled(minute)
    await shift.app.by("ann").resume("mail")
    assert (await shift.backlog()).growth is None
    await shift.sampled(3)
    await come(shift.app, 20)
    await shift.sampled(4)
    assert await shift.text() == "grows by 20 a minute (last 60 s)"
    await shift.until(4.5)
    await shift.app.by("ann").pause("other")
    assert await shift.text() == "grows by 20 a minute (last 60 s)"
    await shift.app.by("ann").set_limit(type="echo", limit=1)
    assert await shift.text() == ""


async def test_items_that_a_bulk_action_moves_are_no_arrivals(shift: Shift) -> None:
    """Also while it is under way, if nobody has said who he is."""
    app = shift.app
    await come(app, 600)
    await shift.sampled(0)
    await shift.sampled(1)
    assert (await shift.backlog()).arrivals == 40
    await shift.until(1.5)
    later = {"run_at": shift.clock.now() + 3600}
    await app.bulk.start("update", changes=later, everything=True, rate=500)
    await shift.sampled(2)
    assert (await shift.backlog()).over == 120, "it waits, and has moved nothing"
    await shift.until(2.5)
    await BulkRunner(app).run_once()
    await shift.sampled(3)
    found = await shift.backlog()
    assert (found.ready, found.growth, found.over) == (100, 0, 60)
    await app.bulk.stop((await app.bulk.list())[0].id)
    await shift.until(3.4)
    await app.by("ann").bulk.start("cancel", everything=True)
    while await BulkRunner(app).run_once() is not None:
        await shift.clock.advance(1)
    await shift.until(4.2)
    assert [each.state for each in await app.bulk.list()] == ["done", "stopped"]
    assert ((await shift.backlog()).growth, (await shift.backlog()).over) == (0, 60)


async def test_a_client_of_one_tenant_gets_its_items_without_rates(clock: ManualClock) -> None:
    app = Treadle(MemoryBackend(clock=clock), clock=clock, work=[echo])
    await app.tenant("acme").enqueue(echo(1), queue="mail")
    await app.enqueue(echo(1), queue="other")
    await clock.advance(7)
    minute = clock.now() // MINUTE * MINUTE
    both = [BacklogSample(at=at, queue=q) for at in (minute - 60, minute) for q in ("", "mail", "other")]
    await app.backend.put_samples(both)
    (own,) = await app.tenant("acme").backlogs()
    assert (own.queue, own.ready, own.growth, own.oldest) == ("mail", 1, None, pytest.approx(7))
    assert await app.tenant("acme").backlog_history(0) == []
    assert [each.queue for each in await app.backlogs()] == ["mail", "other"]
    await app.close()


# ------------------------------------------------------------------------------------------------- history


async def test_the_history_has_an_empty_queue_as_zero_and_no_step_without_a_look(clock: ManualClock) -> None:
    app = Treadle(MemoryBackend(clock=clock), clock=clock)
    hours = [
        BacklogSample(at=NOW + n * HOUR, step=HOUR, samples=seen, queue=queue, ready=ready, oldest=oldest)
        for n, queue, seen, ready, oldest in (
            *((0, "", 60, 30.0, 9.0), (0, "q", 60, 10.0, 7.0), (1, "", 30, 5.0, 2.0)),
            *((5, "", 60, 1.0, 1.0), (6, "", 60, 4.0, 3.0), (6, "q", 60, 4.0, 3.0)),
        )
    ]
    await app.backend.put_samples(hours)
    found = await app.backlog_history(NOW, step=6 * HOUR, queue="q")
    assert [(each.at - NOW, each.samples, each.ready, each.oldest) for each in found] == [
        (-3 * HOUR, 90, pytest.approx(10 * 60 / 90), 7.0),
        (3 * HOUR, 120, 2.0, 3.0),
    ]
    (first, *_) = await app.backlog_history(NOW, NOW + HOUR, HOUR)
    assert (first.queue, first.ready, first.step) == ("", 30.0, HOUR)
    by_hour = await app.backlog_history(NOW, step=HOUR, queue="q")
    assert [each.ready for each in by_hour] == [10.0, 0.0, 0.0, 4.0]
    for bad in ({"step": 90}, {"queue": ""}, {"until": "now"}):
        with pytest.raises(InputError):
            await app.backlog_history(**{"since": 0, **bad})
    await app.close()


def test_a_rate_has_a_digit_if_it_is_small() -> None:
    assert [rate(each) for each in (0.0, 0.01, 3.44, 4.0, 12.6, 54_321.0)] == [
        *("0", "< 0.1", "3.4", "4", "13", "54,321")
    ]
    assert (rate(54_321.0, "≈"), rate(2.5, "~")) == ("≈54,300", "~2.5")
