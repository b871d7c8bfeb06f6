"""Statistics: what workers counted, and samples of the backlog, kept by minute and by hour. And the last runs
of schedules."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import asdict, replace

from treadle.backend import Backend
from treadle.item import Fire, Schedule
from treadle.records import (
    HOUR,
    KEPT_HOURS,
    KEPT_MINUTES,
    KEPT_RUNS,
    MINUTE,
    QUARTER,
    BacklogSample,
    ScheduleRun,
    Stat,
)

from .build import apply, claim_one, connections, item, near, only, submit, succeed
from .schedules import fire_due
from .subject import Subject, needs

DAY = 86_400.0
BEGIN = 20_000 * DAY
"""A midnight."""


def at(minutes: float) -> float:
    return BEGIN + minutes * MINUTE


class StatisticsCases:
    @needs("recording")
    async def test_counts_are_added_to_their_minute_and_hour(self, backend: Backend) -> None:
        """For each type and queue: also by several calls, and several times in one call. Histograms are added
        element by element; an empty one has no values."""
        big = 10**11
        first = Stat(
            at=at(59),
            type="a",
            queue="q",
            started=3,
            succeeded=1,
            failed=2,
            retried=1,
            dead=1,
            cancelled=4,
            lost=5,
            wait=(1, 0, big),
            run=(0, 2),
        )
        await backend.add_stats(
            [first, Stat(at=at(59), type="a", queue="q", started=1, lost=1, run=(1, 0, 0, 5))]
        )
        await backend.add_stats([Stat(at=at(60), type="a", queue="q", started=5, wait=(0, 1))])
        await backend.add_stats([Stat(at=at(59), type="a", queue="q", succeeded=big, wait=(2, 0, 1, 7))])
        await backend.add_stats([])
        hour = Stat(
            at=at(0),
            started=4,
            succeeded=big + 1,
            failed=2,
            retried=1,
            dead=1,
            cancelled=4,
            lost=6,
            wait=(3, 0, big + 1, 7),
            run=(1, 2, 0, 5),
        )
        other = Stat(at=at(60), started=5, wait=(0, 1))
        minute = replace(hour, at=at(59))
        assert [plain(stat) for stat in await backend.stats(at(0))] == [plain(minute), plain(other)]
        assert [plain(stat) for stat in await backend.stats(at(0), step=HOUR)] == [plain(hour), plain(other)]

    @needs("recording")
    async def test_statistics_are_summed_up_by_step_type_or_queue(self, backend: Backend) -> None:
        """Steps begin at multiples of their length. Those without counts are left out. `since` is included,
        `until` is not. A type or a queue that was asked for is named."""
        await backend.add_stats(
            [
                Stat(at=at(minute), type=type, queue=queue, started=count, run=(count,))
                for minute, type, queue, count in (
                    (0, "a", "p", 1),
                    (4, "a", "q", 2),
                    (5, "b", "p", 4),
                    (121, "b", "q", 8),
                    (125, "a", "p", 16),
                )
            ]
        )
        assert await counted(backend, at(0), step=300) == [
            (0, "", "", 3),
            (5, "", "", 4),
            (120, "", "", 8),
            (125, "", "", 16),
        ]
        assert await counted(backend, at(4), until=at(125)) == [
            (4, "", "", 2),
            (5, "", "", 4),
            (121, "", "", 8),
        ]
        assert await counted(backend, at(0), by="type") == [(0, "a", "", 19), (0, "b", "", 12)]
        assert await counted(backend, at(1), by="queue", until=at(125)) == [(1, "", "p", 4), (1, "", "q", 10)]
        for step in (QUARTER, 1200, 2 * QUARTER):
            assert await counted(backend, at(0), step=step) == [(0, "", "", 7), (120, "", "", 24)]
        assert await counted(backend, at(0), step=2 * HOUR) == [(0, "", "", 7), (120, "", "", 24)]
        assert await counted(backend, at(60), step=HOUR, by="type") == [(60, "a", "", 16), (60, "b", "", 8)]
        assert await counted(backend, at(0), step=HOUR, type="a") == [(0, "a", "", 3), (120, "a", "", 16)]
        assert await counted(backend, at(0), by="queue", type="a", queue="p") == [(0, "a", "p", 17)]
        assert await counted(backend, at(0), by="type", queue="q") == [(0, "a", "q", 2), (0, "b", "q", 8)]
        assert await counted(backend, at(200)) == []
        assert await counted(backend, at(0), type="none") == []

    @needs("recording")
    async def test_concurrent_additions_all_count(self, subject: Subject) -> None:
        """In any order that processes name them in."""
        names = [f"type-{n}" for n in range(20)]
        backends = await connections(subject, 4)

        async def add(backend: Backend, order: list[str]) -> None:
            for minute in range(3):
                await backend.add_stats(
                    [Stat(at=at(minute), type=name, started=1, wait=(1,)) for name in order]
                )

        await asyncio.gather(
            *(add(backend, names[n * 5 :] + names[: n * 5]) for n, backend in enumerate(backends)),
            *(add(backend, names[::-1]) for backend in backends),
        )
        found = await subject.backend.stats(at(0), by="type")
        assert {(stat.type, stat.started, stat.wait[0]) for stat in found} == {
            (name, 24, 24) for name in names
        }
        assert only(await subject.backend.stats(at(0), step=HOUR)).started == 24 * 20

    @needs("recording")
    async def test_samples_of_the_backlog_are_stored_as_they_are(self, backend: Backend) -> None:
        """Each in place of the one of the same step, instant and queue. They are apart from statistics."""
        await backend.put_samples([])
        first = BacklogSample(at=at(1), queue="ä", ready=12.5, running=0.25, oldest=7.75, estimated=True)
        whole = BacklogSample(at=at(1), samples=1, ready=13.0)
        later = BacklogSample(at=at(2), queue="b", ready=1e9)
        quarter = BacklogSample(at=at(0), step=QUARTER, queue="ä", samples=15, ready=1 / 3)
        hour = BacklogSample(at=at(0), step=HOUR, queue="ä", samples=60)
        await backend.add_stats([Stat(at=at(1), type="t", queue="ä", started=1)])
        await backend.put_samples([later, whole, replace(first, ready=99.0), quarter, hour])
        await backend.put_samples([first])
        assert list(await backend.samples(at(0))) == [whole, first, later]
        assert list(await backend.samples(at(1), until=at(2), queues=["ä"])) == [first]
        assert list(await backend.samples(at(0), queues=[""])) == [whole]
        both = await backend.samples(at(1) - 1, until=at(2) + 1, queues=["ä", "none", ""])
        assert list(both) == [whole, first]
        assert list(await backend.samples(at(2))) == [later]
        assert list(await backend.samples(at(0), step=QUARTER)) == [quarter]
        assert list(await backend.samples(at(0), step=HOUR, queues=["ä"])) == [hour]
        assert list(await backend.samples(at(3))) == []
        assert only(await backend.stats(at(0))).started == 1

    @needs("recording")
    async def test_prune_removes_old_statistics(self, subject: Subject) -> None:
        """Minutes and quarters of an hour after a day, hours after 90 days. And samples of the backlog."""
        backend = subject.backend
        now = await backend.now() // MINUTE * MINUTE
        samples = [BacklogSample(at=now, step=step, queue="q") for step in (MINUTE, QUARTER, HOUR)]
        await backend.add_stats([Stat(at=now, type="t", started=1)])
        await backend.put_samples(samples)
        await backend.prune()
        assert len(await backend.stats(now)) == 1
        assert [only(await backend.samples(now, step=each.step)) for each in samples] == samples
        await subject.advance(KEPT_MINUTES + 2 * MINUTE)
        await backend.prune()
        assert (await backend.stats(0.0), await backend.stats(0.0, step=QUARTER)) == ([], [])
        assert only(await backend.stats(0.0, step=HOUR)).started == 1
        assert [list(await backend.samples(0.0, step=each.step)) for each in samples] == [[], [], samples[2:]]
        await subject.advance(KEPT_HOURS)
        await backend.prune()
        assert (await backend.stats(0.0, step=HOUR), list(await backend.samples(0.0, step=HOUR))) == ([], [])


class ScheduleRunCases:
    @needs("recording", "schedules")
    async def test_each_occurrence_leaves_a_run(self, subject: Subject) -> None:
        """With its first item, or none if it submitted nothing. Newest first, by name of the schedule, up to
        `count` each, with the status of the item now."""
        backend = subject.backend
        assert list(await backend.schedule_runs()) == []
        for name in ("b", "a"):
            await backend.put_schedule(Schedule(name=name, next_at=1000.0))
        new = (item("z", tenant="x"), item("y", tenant="x"))
        await fire_due(backend, Fire(name="a", at=1000.0, next_at=1010.0, items=new))
        await fire_due(backend, Fire(name="a", at=1010.0, next_at=1020.0))
        await fire_due(backend, Fire(name="a", at=1020.0, next_at=None, items=(item("z"),)))
        await fire_due(backend, Fire(name="b", at=1000.0, next_at=1010.0))
        found = list(await backend.schedule_runs())
        now = await backend.now()
        assert all(run.fired_at == near(now) for run in found)
        assert [shown(run) for run in found] == [
            ("a", 1020.0, "z", "default", "ready"),
            ("a", 1010.0, None, None, None),
            ("a", 1000.0, "z", "x", "ready"),
            ("b", 1000.0, None, None, None),
        ]
        lease = await claim_one(backend, tenants=("default",))
        assert [run.status for run in await backend.schedule_runs(count=1)] == ["running", None]
        await apply(backend, succeed(lease))
        assert [run.status for run in await backend.schedule_runs(count=1)] == ["success", None]

    @needs("recording", "schedules")
    async def test_a_run_that_failed_keeps_its_error(self, backend: Backend) -> None:
        """Others have none, also one that submitted nothing, and one in place of a failed one."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        await fire_due(backend, Fire(name="s", at=1000.0, next_at=2000.0))
        await fire_due(backend, Fire(name="s", at=2000.0, next_at=3000.0, error="ValueError: größer"))
        await fire_due(backend, Fire(name="s", at=3000.0, next_at=2000.0, items=(item("a"),)))
        found = [(run.at, run.id, run.error) for run in await backend.schedule_runs()]
        assert found == [(3000.0, "a", ""), (2000.0, None, "ValueError: größer"), (1000.0, None, "")]
        await fire_due(backend, Fire(name="s", at=2000.0, next_at=4000.0))
        assert [run.error for run in await backend.schedule_runs()] == ["", "", ""]

    @needs("recording", "schedules", "operating")
    async def test_a_run_whose_item_is_gone_has_no_status(self, backend: Backend) -> None:
        """And one that was answered by an earlier item, by its key, has that item."""
        await submit(backend, item("old", key="k"))
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        fire = Fire(name="s", at=1000.0, next_at=2000.0, items=(item("new", key="k"), item("more")))
        await fire_due(backend, fire)
        assert [shown(run) for run in await backend.schedule_runs()] == [
            ("s", 1000.0, "old", "default", "ready")
        ]
        await backend.delete(["old"])
        assert [shown(run) for run in await backend.schedule_runs()] == [
            ("s", 1000.0, "old", "default", None)
        ]

    @needs("recording", "schedules", "batches")
    async def test_only_what_was_fired_leaves_a_run(self, backend: Backend) -> None:
        """Not a refused, a repeated or an outdated fire."""
        await submit(backend, item("taken"))
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        await backend.fire(Fire(name="s", at=1000.0, next_at=2000.0, items=(item("taken"),)))
        await backend.fire(Fire(name="s", at=999.0, next_at=2000.0, items=(item("b"),)))
        assert list(await backend.schedule_runs()) == []
        fire = Fire(name="s", at=1000.0, next_at=2000.0, items=(item("a"),))
        await fire_due(backend, fire)
        await backend.fire(fire)
        assert [shown(run) for run in await backend.schedule_runs()] == [
            ("s", 1000.0, "a", "default", "ready")
        ]

    @needs("recording", "schedules")
    async def test_the_newest_runs_are_kept_until_the_schedule_is_dropped(self, backend: Backend) -> None:
        """50 of each schedule. A changed schedule keeps its runs."""
        for name in ("s", "t"):
            await backend.put_schedule(Schedule(name=name, next_at=0.0))
        await fire_due(backend, Fire(name="t", at=0.0, next_at=None))
        for n in range(KEPT_RUNS + 3):
            await fire_due(backend, Fire(name="s", at=float(n), next_at=float(n + 1)))
        await backend.put_schedule(Schedule(name="s", next_at=5000.0, spec=b"other"))
        found = [run.at for run in await backend.schedule_runs(count=100) if run.name == "s"]
        assert found == [float(n) for n in range(KEPT_RUNS + 2, 2, -1)]
        assert await backend.drop_schedule("s")
        assert [run.name for run in await backend.schedule_runs()] == ["t"]
        await backend.put_schedule(Schedule(name="s", next_at=1.0))
        assert [run.name for run in await backend.schedule_runs()] == ["t"]


def plain(stat: Stat) -> dict[str, object]:
    """A Stat with histograms of one length: a store may leave out zeros at the end."""
    padded = {name: (*getattr(stat, name), *[0] * 20)[:20] for name in ("wait", "run")}
    return {**asdict(stat), **padded}


async def counted(backend: Backend, since: float, **options: Any) -> list[tuple[float, str, str, int]]:
    """What was started: (minute, type, queue, count). The histograms have the same sums."""
    found = await backend.stats(since, **options)
    assert all(sum(stat.run) == stat.started and not stat.wait for stat in found)
    return [((stat.at - BEGIN) / MINUTE, stat.type, stat.queue, stat.started) for stat in found]


def shown(run: ScheduleRun) -> tuple[object, ...]:
    return run.name, run.at, run.id, run.tenant, run.status
