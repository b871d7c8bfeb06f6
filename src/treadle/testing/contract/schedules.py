"""Schedules: stored once, seen often, fired once per occurrence."""

from __future__ import annotations

import asyncio

from treadle.backend import Backend
from treadle.item import Fire, Rejected, Schedule, Submitted

from .build import claim_ids, connections, exists, gate, item, near, only, submit
from .check import consistent
from .subject import Subject, needs


async def stored(backend: Backend, name: str = "s") -> Schedule:
    return only(one for one in await backend.schedules() if one.name == name)


async def fired(backend: Backend, fire: Fire) -> tuple[Submitted, ...]:
    answer = await backend.fire(fire)
    assert answer is not None
    assert not isinstance(answer, Rejected)
    return answer


class ScheduleCases:
    @needs("schedules")
    async def test_a_schedule_is_stored(self, backend: Backend) -> None:
        """A new one is taken as given, and seen now; all are shown, by name."""
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
    async def test_the_same_code_is_seen_again(self, subject: Subject) -> None:
        """The same `spec`: `seen_at` becomes now, the rest stays as stored."""
        backend = subject.backend
        await backend.put_schedule(Schedule(name="s", next_at=1000.0, spec=b"x"))
        await fired(backend, Fire(name="s", at=1000.0, next_at=2000.0))
        await backend.pause_schedule("s", True)
        await subject.advance(500)
        answer = await backend.put_schedule(Schedule(name="s", next_at=7777.0, spec=b"x"))
        assert (answer.next_at, answer.last_at, answer.paused) == (2000.0, 1000.0, True)
        assert answer.seen_at == near(await backend.now())
        assert await stored(backend) == answer

    @needs("schedules")
    async def test_changed_code_is_taken_as_given(self, backend: Backend) -> None:
        """Another `spec` replaces what was stored."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0, spec=b"x"))
        await fired(backend, Fire(name="s", at=1000.0, next_at=2000.0))
        answer = await backend.put_schedule(Schedule(name="s", next_at=7777.0, spec=b"y"))
        assert (answer.next_at, answer.spec, answer.last_at) == (7777.0, b"y", None)
        shown = await stored(backend)
        assert (shown.next_at, shown.spec, shown.last_at) == (7777.0, b"y", None)

    @needs("schedules")
    async def test_noting_that_it_was_seen_brings_nothing_back(self, backend: Backend) -> None:
        """With `next_at` None only the one of the same `spec` is touched: nothing is stored, or changed."""
        note = Schedule(name="s", next_at=None, spec=b"x")
        assert (await backend.put_schedule(note)).next_at is None
        assert list(await backend.schedules()) == []
        await backend.put_schedule(Schedule(name="s", next_at=1000.0, spec=b"y"))
        answer = await backend.put_schedule(note)
        assert (answer.next_at, answer.spec) == (1000.0, b"y")
        assert await stored(backend) == answer

    @needs("schedules")
    async def test_a_schedule_is_dropped(self, backend: Backend) -> None:
        """False if there was none."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        assert await backend.drop_schedule("s")
        assert not await backend.drop_schedule("s")
        assert list(await backend.schedules()) == []
        assert await backend.fire(Fire(name="s", at=1000.0, next_at=None, items=(item("a"),))) is None
        assert not await exists(backend, "a")

    @needs("schedules")
    async def test_a_schedule_is_paused(self, backend: Backend) -> None:
        """It does not fire, and goes on where it stood; False if there is none."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        assert await backend.pause_schedule("s", True)
        assert (await stored(backend)).paused
        fire = Fire(name="s", at=1000.0, next_at=2000.0, items=(item("a"),))
        assert await backend.fire(fire) is None
        assert (await stored(backend)).next_at == 1000.0
        assert await backend.pause_schedule("s", False)
        assert len(await fired(backend, fire)) == 1
        assert not await backend.pause_schedule("nobody", True)

    @needs("schedules")
    async def test_firing_submits_and_moves_on(self, backend: Backend) -> None:
        """In one step: the items are stored as by submit, `next_at` and `last_at` move."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0, spec=b"x"))
        answer = await fired(
            backend, Fire(name="s", at=1000.0, next_at=2000.0, items=(item("a"), gate("a", id="b")))
        )
        assert [(one.id, one.status, one.group_id) for one in answer] == [
            ("a", "ready", "a"),
            ("b", "blocked", "b"),
        ]
        shown = await stored(backend)
        assert (shown.next_at, shown.last_at, shown.spec) == (2000.0, 1000.0, b"x")
        assert await claim_ids(backend) == ["a"]
        await consistent(backend)

    @needs("schedules")
    async def test_another_occurrence_does_not_fire(self, backend: Backend) -> None:
        """Only what is due next: not an earlier one, not a later one, nothing without a schedule."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        for at in (999.0, 1000.5, 2000.0):
            assert await backend.fire(Fire(name="s", at=at, next_at=9.0, items=(item("a"),))) is None
        assert await backend.fire(Fire(name="none", at=1000.0, next_at=9.0, items=(item("a"),))) is None
        assert not await exists(backend, "a")
        assert (await stored(backend)).next_at == 1000.0

    @needs("schedules")
    async def test_firing_twice_fires_once(self, backend: Backend) -> None:
        """A fire may be repeated: what was done is not done twice."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        fire = Fire(name="s", at=1000.0, next_at=2000.0, items=(item("a"),))
        await fired(backend, fire)
        await backend.fire(fire)
        assert await claim_ids(backend) == ["a"]
        assert (await stored(backend)).next_at == 2000.0

    @needs("schedules")
    async def test_an_occurrence_may_submit_nothing(self, backend: Backend) -> None:
        """It moves on all the same."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        assert await fired(backend, Fire(name="s", at=1000.0, next_at=2000.0)) == ()
        assert (await stored(backend)).next_at == 2000.0

    @needs("schedules")
    async def test_the_last_occurrence(self, backend: Backend) -> None:
        """`next_at` None: it has ended, and fires no more."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        await fired(backend, Fire(name="s", at=1000.0, next_at=None, items=(item("a"),)))
        shown = await stored(backend)
        assert (shown.next_at, shown.last_at) == (None, 1000.0)
        assert await backend.fire(Fire(name="s", at=1000.0, next_at=None, items=(item("b"),))) is None
        assert not await exists(backend, "b")

    @needs("schedules", "batches")
    async def test_items_that_are_refused(self, backend: Backend) -> None:
        """As by submit: the answer says why, and nothing is stored."""
        await submit(backend, item("taken"))
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        answer = await backend.fire(
            Fire(name="s", at=1000.0, next_at=2000.0, items=(item("a"), item("taken")))
        )
        assert isinstance(answer, Rejected)
        assert (answer.why, answer.ids) == ("duplicate_id", ("taken",))
        assert not await exists(backend, "a")

    @needs("schedules")
    async def test_a_key_that_is_held(self, backend: Backend) -> None:
        """As by submit: the earlier item answers, and the schedule moves on."""
        await submit(backend, item("a", key="k"))
        await backend.put_schedule(Schedule(name="s", next_at=1000.0))
        answer = await fired(backend, Fire(name="s", at=1000.0, next_at=2000.0, items=(item("b", key="k"),)))
        assert [(one.id, one.existing) for one in answer] == [("a", True)]
        assert (await stored(backend)).next_at == 2000.0

    @needs("schedules")
    async def test_ten_fire_at_once_and_one_does(self, subject: Subject) -> None:
        """One fire per occurrence across the fleet."""
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
    async def test_many_say_the_same_at_once(self, subject: Subject) -> None:
        """Every process of a fleet puts its schedules when it starts: one is stored."""
        backends = await connections(subject, 5)
        answers = await asyncio.gather(
            *(
                backends[n % 5].put_schedule(Schedule(name="s", next_at=float(n + 1), spec=b"x"))
                for n in range(20)
            )
        )
        assert len({answer.next_at for answer in answers}) == 1
        assert (await stored(subject.backend)).next_at == answers[0].next_at

    @needs("schedules")
    async def test_a_new_schedule_is_seen_now(self, backend: Backend) -> None:
        """`seen_at` is the store's, not the caller's."""
        answer = await backend.put_schedule(Schedule(name="s", next_at=1000.0, seen_at=5.0))
        assert answer.seen_at == near(await backend.now())
