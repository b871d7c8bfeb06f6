"""Explain: the facts about items that are scheduled, ready, running or have ended."""

from __future__ import annotations

from treadle.backend import Backend

from .build import (
    apply,
    beat,
    begin,
    cancel,
    claim,
    claim_ids,
    claim_one,
    defer,
    dependent,
    die,
    end,
    item,
    items,
    near,
    only,
    pause,
    release,
    retry,
    start_one,
    state,
    submit,
    succeed,
)
from .explain import explain, named
from .subject import Subject, needs

STRICT = frozenset({"work"})


class ExplainWaitingCases:
    @needs("watching")
    async def test_a_scheduled_item_says_when_it_is_due(self, backend: Backend) -> None:
        """It is in no line yet."""
        await submit(backend, item("x", delay=100))
        found = await explain(backend, "x")
        assert (found.item.status, found.item.due_at) == ("scheduled", near(found.now + 100))
        assert (found.freed, found.given_back, found.ahead, found.lanes) == (False, False, 0, 0)

    @needs("watching")
    async def test_a_retry_and_a_deferral_are_neither_freed_nor_given_back(self, subject: Subject) -> None:
        """With a delay and without one."""
        backend = subject.backend
        for how in (retry, defer):
            for delay in (0, 100):
                lease = await start_one(backend, item())
                await subject.advance(10)
                await apply(backend, how(lease, delay))
                found = await explain(backend, lease.id)
                assert found.item.status == ("scheduled" if delay else "ready")
                assert (found.freed, found.given_back) == (False, False)

    @needs("watching")
    async def test_an_item_that_was_given_back_says_so(self, subject: Subject) -> None:
        """With a delay: as long as that lasts."""
        backend = subject.backend
        await submit(backend, item("now"), item("later"))
        await subject.advance(10)
        now, later = await claim(backend)
        await apply(backend, release(now), release(later, 100))
        for id, status in (("now", "ready"), ("later", "scheduled")):
            found = await explain(backend, id)
            assert (found.item.status, found.freed, found.given_back) == (status, False, True)

    @needs("watching")
    async def test_an_item_of_a_dead_worker_is_freed(self, subject: Subject) -> None:
        """Ready after the first loss, scheduled after the second."""
        backend = subject.backend
        await submit(backend, item("x"))
        for status in ("ready", "scheduled"):
            await subject.advance(40)
            await begin(backend, [await claim_one(backend, "mortal")])
            await subject.advance(10)
            await backend.remove_worker("mortal")
            found = await explain(backend, "x")
            assert (found.item.status, found.freed, found.given_back) == (status, True, False)

    @needs("watching", "begin")
    async def test_an_item_that_was_lost_and_then_given_back_is_given_back(self, subject: Subject) -> None:
        """What became of the last claim counts. A lease that has not begun counts as given back when its
        worker dies."""
        backend = subject.backend
        await submit(backend, item("x"))
        await begin(backend, [await claim_one(backend, "mortal")])
        await backend.remove_worker("mortal")
        await subject.advance(10)
        await apply(backend, release(await claim_one(backend)))
        found = await explain(backend, "x")
        assert (found.item.losses, found.freed, found.given_back) == (1, False, True)
        await subject.advance(10)
        assert not (await claim_one(backend, "mortal")).begun
        await backend.remove_worker("mortal")
        found = await explain(backend, "x")
        assert (found.item.losses, found.freed, found.given_back) == (1, False, True)

    @needs("watching")
    async def test_a_requeued_item_is_neither(self, subject: Subject) -> None:
        """As if it had never been claimed."""
        backend = subject.backend
        await end(backend, item("x"), how=die)
        await subject.advance(10)
        await backend.requeue(["x"])
        found = await explain(backend, "x")
        assert (found.item.status, found.freed, found.given_back) == ("ready", False, False)

    @needs("watching", "order")
    async def test_the_items_ahead_in_its_line_are_counted(self, backend: Backend) -> None:
        """By priority, then by age. Items of other lanes, tenants and queues are not ahead."""
        await submit(backend, item("a"), item("b"), item("urgent", priority=5), item("c"))
        await submit(backend, item(lane="other"), item(queue="other"), item("d", tenant="other"))
        ahead = {id: (await explain(backend, id)).ahead for id in ("urgent", "a", "b", "c", "d")}
        assert ahead == {"urgent": 0, "a": 1, "b": 2, "c": 3, "d": 0}
        await backend.cancel(["urgent", "b"])
        assert (await explain(backend, "c")).ahead == 1

    @needs("watching", "order")
    async def test_at_most_a_thousand_items_are_counted_as_ahead(self, backend: Backend) -> None:
        """However long the line is."""
        new = items(1200)
        await submit(backend, *new, item("x", priority=-1), item("y", priority=1))
        assert (await explain(backend, new[700].id)).ahead == 701
        assert (await explain(backend, new[-1].id)).ahead == 1000
        assert (await explain(backend, "x")).ahead == 1000

    @needs("watching", "order", "parking")
    async def test_parked_items_are_ahead_too(self, backend: Backend) -> None:
        """A parked item keeps its place. What a worker has set aside is parked."""
        await submit(backend, item("p1", "alien"), item("p2", "alien"), item("x"), item("y"))
        assert await claim_ids(backend, 1, types={"work": 1}) == ["x"]
        parked = await explain(backend, "p2")
        assert (parked.item.status, parked.ahead, parked.lanes) == ("ready", 1, 1)
        found = await explain(backend, "y")
        assert (found.ahead, found.lanes) == (2, 1)

    @needs("watching", "order", "parking")
    async def test_the_lines_of_its_queue_are_counted(self, backend: Backend) -> None:
        """Those with ready or parked items, of all tenants and lanes, paused or not, up to 100."""
        await submit(backend, item("p", "alien", lane="p"), item("w", lane="p"))
        assert await claim_ids(backend, 1, types={"work": 1}) == ["w"]
        assert (await explain(backend, "p")).lanes == 1
        await submit(backend, item("x"), item("z", delay=100, lane="later"), item(queue="other", lane="o"))
        assert (await explain(backend, "x")).lanes == 2
        await submit(backend, item(lane="b"), item(lane="b"), item(lane="p"), item("y", tenant="t"))
        assert (await explain(backend, "x")).lanes == 4
        await pause(backend, "default", tenant="t")
        assert [(await explain(backend, id)).lanes for id in ("x", "y", "p")] == [4, 4, 4]
        await submit(backend, *(item(lane=f"lane-{n}") for n in range(120)))
        assert (await explain(backend, "x")).lanes == 100

    @needs("watching", "strict")
    async def test_the_holder_of_its_strict_lane_is_named(self, backend: Backend) -> None:
        """The holder itself is not held up."""
        await submit(backend, item("a", lane="l"), item("b", lane="l"))
        assert (await explain(backend, "b")).lane_holder is None
        first = only(await claim(backend, 1, strict=STRICT))
        await submit(
            backend, item("c", lane="m"), item("d", lane="l", tenant="t"), item("e", "other", lane="l")
        )
        holders = [(await explain(backend, id)).lane_holder for id in ("a", "b", "c", "d", "e")]
        assert holders == [None, "a", None, None, None]
        await apply(backend, retry(first))
        holders = [(await explain(backend, id)).lane_holder for id in ("a", "b")]
        assert holders == [None, "a"]
        await backend.cancel(["a"])
        assert (await explain(backend, "b")).lane_holder is None


class ExplainRunningCases:
    @needs("watching")
    async def test_a_running_item_shows_its_worker(self, subject: Subject) -> None:
        """A worker whose lease has lapsed is shown until it is removed."""
        backend = subject.backend
        await submit(backend, item("x"))
        await claim_one(backend, "mine", lease=100)
        found = await explain(backend, "x")
        assert (found.item.status, found.item.worker, found.verdict) == ("running", "mine", None)
        worker = only(found.workers)
        assert (worker.id, worker.running, worker.until) == ("mine", 1, near(found.now + 100))
        await subject.advance(150)
        found = await explain(backend, "x")
        assert (found.item.status, found.item.worker) == ("running", "mine")
        assert only(found.workers).until < found.now

    @needs("watching")
    async def test_an_item_that_waits_in_its_worker_has_not_begun(self, backend: Backend) -> None:
        """Until its attempt is counted."""
        await submit(backend, item("x"))
        assert (await explain(backend, "x")).begun
        lease = await claim_one(backend, buffered=frozenset({"work"}))
        assert not (await explain(backend, "x")).begun
        await begin(backend, [lease])
        assert (await explain(backend, "x")).begun

    @needs("watching")
    async def test_all_workers_are_named(self, backend: Backend) -> None:
        """With their types."""
        await submit(backend, item("x"))
        await beat(backend, "b", types=("work", "other"))
        await beat(backend, "a")
        found = await explain(backend, "x")
        assert [(one.id, one.types and sorted(one.types)) for one in found.workers] == [
            ("a", None),
            ("b", ["other", "work"]),
        ]
        assert set(found.workers) == set(await backend.workers())

    @needs("watching")
    async def test_a_type_that_no_live_worker_has_says_since_when(self, subject: Subject) -> None:
        """None as long as one has it, and if there never was one. A lapsed worker is not alive."""
        backend = subject.backend
        await submit(backend, item("x"))
        assert (await explain(backend, "x")).unknown_since is None
        await beat(backend, "other", types=("other",))
        await beat(backend, "w", 100, types=("work",))
        assert (await explain(backend, "x")).unknown_since is None
        await subject.advance(150)
        found = await explain(backend, "x")
        assert found.unknown_since == near(found.now - 50)
        await backend.remove_worker("w")
        await subject.advance(50)
        found = await explain(backend, "x")
        assert found.unknown_since == near(found.now - 50)
        await beat(backend, "all")
        assert (await explain(backend, "x")).unknown_since is None
        await subject.advance(50)
        await backend.remove_worker("all")
        found = await explain(backend, "x")
        assert found.unknown_since == near(found.now)

    @needs("watching")
    async def test_an_ended_item_is_shown_as_get_shows_it(self, backend: Backend) -> None:
        """With its history. Nothing is said about what it waited for."""
        for how, status in ((succeed, "success"), (die, "dead"), (cancel, "cancelled")):
            await end(backend, item(status), how=how)
            found = await explain(backend, status)
            assert found.item == await state(backend, status)
            assert (found.item.status, found.verdict, found.unknown_since) == (status, None, None)
            assert (found.ahead, found.lanes, found.lane_holder, found.prerequisites) == (0, 0, None, ())
        assert [one.error_type for one in (await explain(backend, "dead")).item.history] == ["Oops"]

    @needs("watching")
    async def test_an_explanation_changes_nothing(self, subject: Subject) -> None:
        """It removes no worker, and makes nothing ready, doomed or expired."""
        backend = subject.backend
        await submit(backend, item("due", delay=50), item("late", expires_in=50), item("x"))
        lease = only(await claim(backend, 1, "mortal", lease=50))
        await subject.advance(100)
        for id in ("due", "late", "x", "due"):
            await explain(backend, id)
            await backend.overview()
        assert [one.id for one in await backend.workers()] == ["mortal"]
        found = [(await explain(backend, id)) for id in ("due", "late", "x")]
        assert {one.verdict for one in found} == {None}
        assert found[0].item.status == "scheduled"
        assert (await explain(backend, lease.id)).item.status == "running"

    @needs("watching")
    async def test_other_tenants_look_as_if_they_did_not_exist(self, backend: Backend) -> None:
        """Their items, their prerequisites and their lines."""
        await submit(backend, item("x", tenant="a"), item("x", "theirs", tenant="b"), item("p", tenant="b"))
        await submit(backend, dependent("p", id="y", tenant="a"), item(tenant="b", lane="l"))
        assert await backend.explain("p", tenant="a") is None
        assert (await explain(backend, "x", "b")).item.type == "theirs"
        found = await explain(backend, "x", "a")
        assert (found.item.type, found.ahead, found.lanes) == ("work", 0, 1)
        assert (await explain(backend, "x")).lanes == 3
        assert named(await explain(backend, "y", "a")) == [("p", "missing", "")]
