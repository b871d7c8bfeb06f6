"""Statistics: each process adds what its workers counted to the store, once."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, Literal

import pytest

from tests.engine.kit import PATIENCE, Barrier, Errors, MakeApp, until, until_status
from treadle import Context, MemoryBackend, Retry, Treadle, Worker, work
from treadle.base.timing import SystemClock
from treadle.engine.upkeep.statistics import INTERVAL
from treadle.errors import InputError, UnsupportedError, WorkFailed
from treadle.metrics.names import SECONDS
from treadle.operate.operator import core_of
from treadle.ports import MemoryPubSub, MemoryQueue, MemoryStore, PortsBackend
from treadle.records import HOUR, Stat
from treadle.testing import CountingBackend, Faults, FaultyBackend, ManualClock


@work(name="echo", retry=Retry(attempts=3, base=0, jitter=0))
async def echo(n: int) -> int:
    if n < 0:
        raise ValueError(n)
    return n


def counts(stat: Stat) -> tuple[str, str, int, int, int, int, int, int]:
    ends = (stat.succeeded, stat.failed, stat.retried, stat.dead, stat.cancelled)
    return (stat.type, stat.queue, stat.started, *ends)


async def test_what_a_worker_counted_is_in_the_store_when_it_has_stopped(make_app: MakeApp) -> None:
    """By type and queue, by the store's clock, with how long items waited and ran."""
    began = time.time()
    app = make_app(echo)
    async with app:
        for handle in await app.enqueue_many([echo(n) for n in range(5)], queue="mail"):
            await handle.result(PATIENCE)
        with pytest.raises(WorkFailed):
            await app.enqueue(echo(-1)).result(PATIENCE)
        await app.cancel(await app.enqueue(echo(9), delay=3600, queue="mail"))
    reader = make_app()
    by_queue = await reader.statistics(began - HOUR, step=HOUR, by="queue")
    assert [counts(stat) for stat in by_queue] == [
        ("", "default", 3, 0, 3, 2, 1, 0),
        ("", "mail", 5, 5, 0, 0, 0, 1),
    ]
    (whole,) = await reader.statistics(began - 60, time.time() + 60, by="type", type="echo")
    assert counts(whole) == ("echo", "", 8, 5, 3, 2, 1, 1)
    assert (sum(whole.wait), sum(whole.run), len(SECONDS) + 1 >= len(whole.run)) == (8, 8, True)
    assert await reader.statistics(began - 60, queue="other") == []
    assert await reader.tenant("x").statistics(began - 60) == []


async def test_lost_attempts_are_counted_when_the_item_begins_again_or_dies_of_them(
    make_app: MakeApp,
) -> None:
    """A killed worker cannot count: the next that has the item does, under the item's queue."""
    barriers = [Barrier(), Barrier()]

    @work(name="killer", queue="mail", retry=Retry(attempts=1, max_losses=1))
    async def killer(ctx: Context) -> None:
        await barriers[ctx.attempt - 1].wait()

    handle = await make_app(killer).enqueue(killer())
    for n, barrier in enumerate(barriers):
        app = make_app(killer, worker_id=f"w-{n}")
        await app.start()
        await barrier.reached()
        await app.worker._runtime.loops.end("renew", "claim")  # type: ignore[union-attr]
        assert await app.backend.remove_worker(f"w-{n}") == 1
        await app.stop(drain=0)
    async with make_app(killer) as app:
        await until_status(app, handle.id, "scheduled", "dead")
        await app.trigger(handle.id)
        with pytest.raises(WorkFailed):
            await handle.result(PATIENCE)
    (stat,) = await make_app().statistics(time.time() - HOUR, step=HOUR, by="queue", queue="mail")
    assert (stat.started, stat.lost, stat.dead, stat.failed) == (2, 2, 1, 0)


async def test_changes_are_sent_at_intervals_by_one_worker_of_a_process(clock: ManualClock) -> None:
    """And nothing is sent while nothing has changed."""
    backend = CountingBackend(MemoryBackend(clock=clock))
    async with Treadle(backend, work=[echo], clock=clock) as app, Worker(app, id="second"):
        await app.enqueue(echo(1)).result(PATIENCE)
        assert backend.calls["add_stats"] == 0
        await clock.advance(INTERVAL)
        await until(lambda: backend.sizes["add_stats"] == [1])
        await clock.advance(5 * INTERVAL)
        assert backend.calls["add_stats"] == 1
        await app.enqueue(echo(2), queue="other").result(PATIENCE)
        await app.enqueue(echo(3), queue="other").result(PATIENCE)
        await clock.advance(INTERVAL)
        await until(lambda: backend.sizes["add_stats"] == [1, 1])
        (stat,) = await app.statistics(0, by="queue", queue="other", step=HOUR)
        assert (stat.started, stat.succeeded) == (2, 2)
    assert backend.calls["add_stats"] == 2
    assert sum(stat.started for stat in await app.statistics(0)) == 3
    await app.close()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_counts_whose_answer_was_lost_are_not_sent_again(
    clock: ManualClock, when: Literal["before", "after"]
) -> None:
    """It may have been carried out. The worker goes on, and the error is reported."""
    faults, errors = Faults(), Errors()
    fault = faults.fail("add_stats", when=when)
    backend = FaultyBackend(MemoryBackend(clock=clock), faults)
    async with Treadle(backend, work=[echo], clock=clock, on_error=errors) as app:
        await app.enqueue(echo(1)).result(PATIENCE)
        await clock.advance(INTERVAL)
        await errors.until("claim")
        assert await app.enqueue(echo(2)).result(PATIENCE) == 2
    assert sum(stat.started for stat in await app.statistics(0)) == (1 if when == "before" else 2)
    assert (fault.hits, len(errors.seen)) == (1, 1)
    await app.close()


async def test_a_stop_does_not_fail_when_statistics_cannot_be_sent(clock: ManualClock) -> None:
    faults, errors = Faults(), Errors()
    fault = faults.fail("add_stats", error=lambda: RuntimeError("broken"))
    backend = FaultyBackend(MemoryBackend(clock=clock), faults)
    async with Treadle(backend, work=[echo], clock=clock, on_error=errors) as app:
        await app.enqueue(echo(1)).result(PATIENCE)
    assert (fault.hits, [str(error) for error, _ in errors.seen]) == (1, ["broken"])


async def test_statistics_can_be_turned_off(clock: ManualClock) -> None:
    """With the setting, and where the store cannot keep them."""
    backend = CountingBackend(MemoryBackend(clock=clock))
    async with Treadle(backend, work=[echo], clock=clock, statistics=False) as app:
        await app.enqueue(echo(1)).result(PATIENCE)
        await clock.advance(3 * INTERVAL)
        assert await app.statistics(0) == []
    assert backend.calls["add_stats"] == 0
    ports = PortsBackend(MemoryQueue(SystemClock()), MemoryPubSub(), MemoryStore(SystemClock()))
    async with Treadle(ports, work=[echo], poll_interval=0.05) as app:
        await app.enqueue(echo(1)).result(PATIENCE)
        with pytest.raises(UnsupportedError, match="recording"):
            await app.statistics(0)
        with pytest.raises(UnsupportedError, match="recording"):
            await app.schedules.runs()


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"since": "yesterday"}, "since"),
        ({"until": "now"}, "until"),
        ({"step": 90}, "step"),
        ({"step": 0}, "step"),
        ({"step": 5400}, "step"),
        ({"step": 60.0}, "step"),
        ({"by": "tenant"}, "by"),
        ({"type": ""}, "type"),
        ({"queue": 7}, "queue"),
    ],
)
async def test_bad_arguments_are_named(bad: dict[str, Any], field: str) -> None:
    app = Treadle("memory://")
    with pytest.raises(InputError, match=rf"^{field}"):
        await app.statistics(**{"since": 0, **bad})


async def test_runs_of_schedules_are_read_by_name(clock: ManualClock) -> None:
    """A client of one tenant gets those of its own schedules, under their names."""
    async with Treadle(MemoryBackend(clock=clock), work=[echo], clock=clock) as app:
        app.schedule("beat", every=60, run=lambda: echo(1))
        app.schedule("never", every=timedelta(days=9), run=lambda: echo(1))
        app.tenant("x").schedule("own", every=60, run=lambda: None)
        await app.schedules.list()
        for _ in range(3):
            await clock.advance(60)
        await until(lambda: app.metrics.get("succeeded") == 3)
        found = await app.schedules.runs(count=2)
        assert {name: [run.status for run in runs] for name, runs in found.items()} == {
            "beat": ["success", "success"],
            "x/own": [None, None],
        }
        (own,) = (await app.tenant("x").schedules.runs(count=1)).items()
        assert (own[0], [run.name for run in own[1]]) == ("own", ["own"])
        with pytest.raises(InputError, match=r"^count"):
            await app.schedules.runs(count=0)


async def test_a_forked_process_sends_nothing_that_its_parent_counted(clock: ManualClock) -> None:
    """The parent sends it."""
    backend = CountingBackend(MemoryBackend(clock=clock))
    async with Treadle(backend, work=[echo], clock=clock) as app:
        await app.enqueue(echo(1)).result(PATIENCE)
        core_of(app).statistics.forget()  # as `Core.leave_dead_loop` does there
        await app.enqueue(echo(2)).result(PATIENCE)
    assert [stat.succeeded for stat in await app.statistics(0)] == [1]
    await app.close()
