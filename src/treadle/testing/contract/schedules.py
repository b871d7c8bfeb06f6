"""Schedules: each is stored once and fires once per occurrence."""

from __future__ import annotations

import asyncio

from treadle.backend import Backend
from treadle.item import Fire, Rejected, Schedule, Submitted
from treadle.records import KEPT_REMOVALS

from .build import claim_ids, connections, dependent, exists, item, near, only, submit
from .check import consistent
from .subject import Subject, needs


async def stored_schedule(backend: Backend, name: str = "s") -> Schedule:
    return only(one for one in await backend.schedules() if one.name == name)


async def fire_due(backend: Backend, fire: Fire) -> tuple[Submitted, ...]:
    answer = await backend.fire(fire)
    assert answer is not None
    assert not isinstance(answer, Rejected)
    return answer


class ScheduleCases:
    @needs("schedules")
    async def test_a_new_schedule_is_stored_as_given(self, backend: Backend) -> None:
        """`schedules` lists all schedules by name."""
        assert list(await backend.schedules()) == []
        for name in ("b", "a"):
            answer = await backend.put_schedule(Schedule(name=name, next_at=5000.25, spec=b"\x00x\xff"))
            assert (answer.name, answer.next_at, answer.spec) == (name, 5000.25, b"\x00x\xff")
            assert (answer.paused, answer.last_at) == (False, None)
        found = await backend.schedules()
        assert [one.name for one in found] == ["a", "b"]
        assert {(one.next_at, one.spec, one.paused, one.last_at) for one in found} == {
            (5000.25, b"\x00x\xff", False, None)
        }

    @needs("schedules")
    async def test_putting_the_same_spec_only_updates_seen_at(self, subject: Subject) -> None:
        """The rest stays as stored."""
        backend = subject.backend
        await backend.put_schedule(Schedule(name="s", next_at=1000.0, spec=b"x"))
        await fire_due(backend, Fire(name="s", at=1000.0, next_at=2000.0))
        await backend.pause_schedule("s", True)
        await subject.advance(500)
        answer = await backend.put_schedule(Schedule(name="s", next_at=7777.0, spec=b"x"))
        assert (answer.next_at, answer.last_at, answer.paused) == (2000.0, 1000.0, True)
        assert answer.seen_at == near(await backend.now())
        assert await stored_schedule(backend) == answer

    @needs("schedules")
    async def test_putting_another_spec_replaces_the_schedule(self, backend: Backend) -> None:
        """`next_at` is the new one, and `last_at` is None again."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0, spec=b"x"))
        await fire_due(backend, Fire(name="s", at=1000.0, next_at=2000.0))
        answer = await backend.put_schedule(Schedule(name="s", next_at=7777.0, spec=b"y"))
        assert (answer.next_at, answer.spec, answer.last_at) == (7777.0, b"y", None)
        shown = await stored_schedule(backend)
        assert (shown.next_at, shown.spec, shown.last_at) == (7777.0, b"y", None)

    @needs("schedules")
    async def test_putting_without_next_at_stores_nothing(self, backend: Backend) -> None:
        """`next_at` None only updates `seen_at` of a stored schedule with the same `spec`."""
        note = Schedule(name="s", next_at=None, spec=b"x")
        assert (await backend.put_schedule(note)).next_at is None
        assert list(await backend.schedules()) == []
        await backend.put_schedule(Schedule(name="s", next_at=1000.0, spec=b"y"))
        answer = await backend.put_schedule(note)
        assert (answer.next_at, answer.spec) == (1000.0, b"y")
        assert await stored_schedule(backend) == answer

    @needs("schedules")
    async def test_a_dropped_schedule_does_not_fire(self, backend: Backend) -> None:
        """Dropping returns False if there is no such schedule."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        assert await backend.drop_schedule("s")
        assert not await backend.drop_schedule("s")
        assert list(await backend.schedules()) == []
        assert await backend.fire(Fire(name="s", at=1000.0, next_at=None, items=(item("a"),))) is None
        assert not await exists(backend, "a")

    @needs("schedules")
    async def test_a_missed_schedule_is_stored_again_unless_it_was_dropped(self, backend: Backend) -> None:
        """`again`: a process had stored it, and misses it. The store has lost it, or it was dropped."""
        missed = Schedule(name="s", next_at=1000.0, spec=b"x", paused=True, last_at=900.0)
        answer = await backend.put_schedule(missed, again=True)
        assert (answer.next_at, answer.paused, answer.last_at) == (1000.0, True, 900.0)
        assert await stored_schedule(backend) == answer
        await backend.drop_schedule("s")
        assert (await backend.put_schedule(missed, again=True)).next_at is None
        assert list(await backend.schedules()) == []

    @needs("schedules")
    async def test_that_a_schedule_was_dropped_is_known_until_it_is_stored(self, backend: Backend) -> None:
        """A process that starts stores it. Those that missed it may then do so too."""
        schedule = Schedule(name="s", next_at=1000.0, spec=b"x")
        for _ in range(2):
            assert not await backend.drop_schedule("s")
            assert (await backend.put_schedule(schedule, again=True)).next_at is None
            assert (await backend.put_schedule(schedule)).next_at == 1000.0
            assert (await backend.put_schedule(schedule, again=True)).next_at == 1000.0
            assert await backend.drop_schedule("s")

    @needs("schedules")
    async def test_a_missed_schedule_does_not_replace_another(self, backend: Backend) -> None:
        """One with another spec was stored meanwhile: the answer is that one."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0, spec=b"new"))
        missed = Schedule(name="s", next_at=500.0, spec=b"old")
        answer = await backend.put_schedule(missed, again=True)
        assert (answer.next_at, answer.spec) == (1000.0, b"new")
        assert await stored_schedule(backend) == answer

    @needs("schedules", "recording")
    async def test_that_a_schedule_was_dropped_is_pruned(self, subject: Subject) -> None:
        """It is known for `KEPT_REMOVALS` seconds."""
        backend, missed = subject.backend, Schedule(name="s", next_at=1000.0, spec=b"x")
        await backend.drop_schedule("s")
        await subject.advance(KEPT_REMOVALS - 100)
        await backend.prune()
        assert (await backend.put_schedule(missed, again=True)).next_at is None
        await subject.advance(200)
        await backend.prune()
        assert (await backend.put_schedule(missed, again=True)).next_at == 1000.0

    @needs("schedules")
    async def test_a_paused_schedule_does_not_fire(self, backend: Backend) -> None:
        """It continues where it stopped. Pausing returns False if there is no such schedule."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        assert await backend.pause_schedule("s", True)
        assert (await stored_schedule(backend)).paused
        fire = Fire(name="s", at=1000.0, next_at=2000.0, items=(item("a"),))
        assert await backend.fire(fire) is None
        assert (await stored_schedule(backend)).next_at == 1000.0
        assert await backend.pause_schedule("s", False)
        assert len(await fire_due(backend, fire)) == 1
        assert not await backend.pause_schedule("missing", True)

    @needs("schedules")
    async def test_fire_submits_the_items_and_moves_to_the_next_occurrence(self, backend: Backend) -> None:
        """In one step: the items are stored as by submit, `next_at` and `last_at` change."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0, spec=b"x"))
        answer = await fire_due(
            backend, Fire(name="s", at=1000.0, next_at=2000.0, items=(item("a"), dependent("a", id="b")))
        )
        assert [(one.id, one.status, one.group_id) for one in answer] == [
            ("a", "ready", "a"),
            ("b", "blocked", "b"),
        ]
        shown = await stored_schedule(backend)
        assert (shown.next_at, shown.last_at, shown.spec) == (2000.0, 1000.0, b"x")
        assert await claim_ids(backend) == ["a"]
        await consistent(backend)

    @needs("schedules")
    async def test_fire_accepts_only_the_next_occurrence(self, backend: Backend) -> None:
        """Neither an earlier nor a later one, and none without a schedule."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        for at in (999.0, 1000.5, 2000.0):
            assert await backend.fire(Fire(name="s", at=at, next_at=9.0, items=(item("a"),))) is None
        assert await backend.fire(Fire(name="none", at=1000.0, next_at=9.0, items=(item("a"),))) is None
        assert not await exists(backend, "a")
        assert (await stored_schedule(backend)).next_at == 1000.0

    @needs("schedules")
    async def test_repeating_a_fire_submits_nothing_twice(self, backend: Backend) -> None:
        """A fire may be repeated with the same arguments."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        fire = Fire(name="s", at=1000.0, next_at=2000.0, items=(item("a"),))
        await fire_due(backend, fire)
        await backend.fire(fire)
        assert await claim_ids(backend) == ["a"]
        assert (await stored_schedule(backend)).next_at == 2000.0

    @needs("schedules")
    async def test_an_occurrence_may_submit_nothing(self, backend: Backend) -> None:
        """The schedule moves to the next occurrence."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        assert await fire_due(backend, Fire(name="s", at=1000.0, next_at=2000.0)) == ()
        assert (await stored_schedule(backend)).next_at == 2000.0

    @needs("schedules")
    async def test_next_at_none_ends_the_schedule(self, backend: Backend) -> None:
        """It does not fire again."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        await fire_due(backend, Fire(name="s", at=1000.0, next_at=None, items=(item("a"),)))
        shown = await stored_schedule(backend)
        assert (shown.next_at, shown.last_at) == (None, 1000.0)
        assert await backend.fire(Fire(name="s", at=1000.0, next_at=None, items=(item("b"),))) is None
        assert not await exists(backend, "b")

    @needs("schedules", "batches")
    async def test_fire_reports_refused_items(self, backend: Backend) -> None:
        """As for submit: the answer says why, and nothing is stored."""
        await submit(backend, item("taken"))
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        answer = await backend.fire(
            Fire(name="s", at=1000.0, next_at=2000.0, items=(item("a"), item("taken")))
        )
        assert isinstance(answer, Rejected)
        assert (answer.why, answer.ids) == ("duplicate_id", ("taken",))
        assert not await exists(backend, "a")

    @needs("schedules")
    async def test_fire_returns_the_existing_item_of_a_key(self, backend: Backend) -> None:
        """As for submit. The schedule moves to the next occurrence."""
        await submit(backend, item("a", key="k"))
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        answer = await fire_due(
            backend, Fire(name="s", at=1000.0, next_at=2000.0, items=(item("b", key="k"),))
        )
        assert [(one.id, one.existing) for one in answer] == [("a", True)]
        assert (await stored_schedule(backend)).next_at == 2000.0

    @needs("schedules")
    async def test_ten_concurrent_fires_submit_once(self, subject: Subject) -> None:
        """One fire per occurrence in the whole fleet."""
        backends = await connections(subject, 5)
        await subject.backend.put_schedule(Schedule(name="s", next_at=0.5))
        for occurrence in range(10):
            at, after = occurrence + 0.5, occurrence + 1.5
            answers = await asyncio.gather(
                *(
                    backends[n % 5].fire(
                        Fire(name="s", at=at, next_at=after, items=(item(f"{occurrence}-{n}"),))
                    )
                    for n in range(10)
                )
            )
            assert sum(answer is not None for answer in answers) == 1
        assert len(await claim_ids(subject.backend)) == 10
        await consistent(subject.backend)

    @needs("schedules")
    async def test_concurrent_puts_of_one_schedule_store_it_once(self, subject: Subject) -> None:
        """Every process of a fleet puts its schedules when it starts."""
        backends = await connections(subject, 5)
        answers = await asyncio.gather(
            *(
                backends[n % 5].put_schedule(Schedule(name="s", next_at=float(n + 1), spec=b"x"))
                for n in range(20)
            )
        )
        assert len({answer.next_at for answer in answers}) == 1
        assert (await stored_schedule(subject.backend)).next_at == answers[0].next_at

    @needs("schedules")
    async def test_seen_at_is_set_by_the_store(self, backend: Backend) -> None:
        """The caller's `seen_at` is ignored."""
        answer = await backend.put_schedule(Schedule(name="s", next_at=1000.0, seen_at=5.0))
        assert answer.seen_at == near(await backend.now())
