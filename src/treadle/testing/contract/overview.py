"""Overview: how the store stands, at a cost that does not depend on how many items are kept."""

from __future__ import annotations

from collections import Counter
from typing import Any

from treadle.backend import Backend
from treadle.item import Count, Heartbeat
from treadle.item_facts import Overview, UnservedType
from treadle.worker_info import WorkerInfo, encode_worker_info

from .build import (
    LEASE,
    beat,
    cancel,
    claim,
    claim_ids,
    dependent,
    die,
    end,
    item,
    items,
    near,
    only,
    pause,
    start_one,
    submit,
    verdicts,
)
from .subject import Subject, needs


async def assert_exact(backend: Backend) -> None:
    found = (await backend.overview()).counts
    assert _counted(found) == _counted(await backend.counts())
    assert not any(one.estimated for one in found)


async def ages(backend: Backend, **options: Any) -> dict[str, float]:
    """For each queue: for how many seconds its oldest item has been ready."""
    found = await backend.overview(**options)
    return {age.queue: found.now - age.oldest_ready for age in found.ages}


class OverviewCases:
    @needs("watching")
    async def test_an_empty_store_has_an_empty_overview(self, backend: Backend) -> None:
        """But for the time."""
        found = await backend.overview()
        assert found == Overview(now=found.now)
        assert found.now == near(await backend.now())

    @needs("watching")
    async def test_open_and_dead_items_are_counted(self, backend: Backend) -> None:
        """By tenant, queue, type and status, as by `counts`. Not those that succeeded or were cancelled."""
        await end(backend, item("p"), item("q"))
        await end(backend, item(type="t"), item(type="t", queue="q"), how=die)
        await end(backend, item(), how=cancel)
        await submit(backend, *items(3), *items(2, queue="q", type="t"), item(tenant="x", delay=100))
        await submit(backend, dependent("later"), dependent("later", queue="q"))
        await start_one(backend, item(lane="l"))
        found = await backend.overview()
        assert {(one.tenant, one.queue, one.type, one.status): one.count for one in found.counts} == {
            ("default", "default", "t", "dead"): 1,
            ("default", "q", "t", "dead"): 1,
            ("default", "default", "work", "ready"): 3,
            ("default", "q", "t", "ready"): 2,
            ("x", "default", "work", "scheduled"): 1,
            ("default", "default", "work", "blocked"): 1,
            ("default", "q", "work", "blocked"): 1,
            ("default", "default", "work", "running"): 1,
        }
        assert not any(one.estimated for one in found.counts)
        assert _counted(found.counts) == _counted(await backend.counts())

    @needs("watching", "parking")
    async def test_parked_and_doomed_items_are_counted_as_what_they_are_shown(self, subject: Subject) -> None:
        """Also while a doomed item is leased with its verdict."""
        backend = subject.backend
        await submit(backend, item("alien", "alien"), item("x"), item("late", expires_in=50, delay=900))
        await submit(backend, dependent("p", id="stuck", expires_in=50), item("old", expires_in=50, lane="l"))
        await subject.advance(60)
        assert len(await verdicts(backend, types={"work": 1})) == 3
        await claim(backend, 1, types={"work": 1})
        found = await backend.overview()
        assert {(one.type, one.status): one.count for one in found.counts} == {
            ("alien", "ready"): 1,
            ("work", "ready"): 1,
            ("work", "running"): 1,
            ("work", "scheduled"): 1,
            ("work", "blocked"): 1,
        }
        assert _counted(found.counts) == _counted(await backend.counts())

    @needs("watching")
    async def test_counts_of_thousands_of_items_are_exact(self, backend: Backend) -> None:
        """Of those that there are many of, and of those that there are few of."""
        many = items(10_500)
        for first in range(0, len(many), 1_500):
            await submit(backend, *many[first : first + 1_500])
        await submit(backend, *items(300, queue="q", type="t"), *items(9, queue="q", delay=500))
        await submit(backend, *(dependent("later") for _ in range(8)))
        await assert_exact(backend)

    @needs("watching")
    async def test_a_quick_look_says_which_counts_are_estimates(self, backend: Backend) -> None:
        """It finds every queue, type and status. Counts that it does not call estimates are exact."""
        await submit(backend, *items(900), *items(50, queue="q", type="t"), *items(400, delay=500))
        await submit(backend, *(dependent("later", queue="r") for _ in range(300)))
        await end(backend, *items(600, type="u"), *items(3, queue="q"), how=die)
        found = await backend.overview(quick=True)
        exact = _counted(await backend.counts())
        assert _counted(found.counts).keys() == exact.keys()
        sure = [one for one in found.counts if not one.estimated]
        assert _counted(sure).items() <= exact.items()
        assert {("q", "ready"), ("q", "dead")} <= {(one.queue, one.status) for one in sure}
        assert all(one.count > 0 for one in found.counts)

    @needs("watching")
    async def test_a_brief_look_says_which_counts_are_not_whole(self, backend: Backend) -> None:
        """A queue and status with a count that is no estimate is counted to its end. If counts of a status
        are left out, another one of it is an estimate."""
        await submit(backend, *items(900), *items(50, queue="q", type="t"), *items(400, delay=500))
        await submit(backend, *(dependent("later", queue="r") for _ in range(300)), item("x", tenant="a"))
        await end(backend, *items(600, type="u"), *items(3, queue="q"), how=die)
        await claim(backend, 40, types={"t": 40})
        for tenant in (None, "default", "a"):
            found = await backend.overview(tenant=tenant, brief=True)
            exact = _counted(await backend.counts(tenant=tenant))
            guessed = {(one.queue, one.status) for one in found.counts if one.estimated}
            sure = {(one.queue, one.status) for one in found.counts} - guessed
            assert _counted(one for one in found.counts if (one.queue, one.status) in sure) == {
                key: count for key, count in exact.items() if (key[1], key[3]) in sure
            }
            cut = {status for _, status in guessed}
            assert {(key[1], key[3]) for key in exact if key[3] not in cut} <= sure
            assert ("q", "ready") in sure or tenant == "a"
            assert all(one.count > 0 for one in found.counts)

    @needs("watching")
    async def test_one_tenant_sees_only_itself(self, backend: Backend) -> None:
        """Its items, ages and types; all workers."""
        await submit(backend, *items(9, tenant="b", type="theirs"), item(tenant="a", type="mine"))
        await submit(backend, item(tenant="b", queue="q"))
        await end(backend, *items(3, tenant="b"), how=die)
        found = await backend.overview(tenant="a")
        assert found.counts == (Count("a", "default", "mine", "ready", 1),)
        assert [age.queue for age in found.ages] == ["default"]
        await beat(backend, "w", types=("other",))
        found = await backend.overview(tenant="a")
        assert [one.type for one in found.unserved] == ["mine"]
        assert [worker.id for worker in found.workers] == ["w"]
        assert {one.tenant for one in (await backend.overview(tenant="b")).counts} == {"b"}
        assert (await backend.overview(tenant="none")).counts == ()

    @needs("watching")
    async def test_workers_are_named(self, backend: Backend) -> None:
        """With their types and how many items they run."""
        await submit(backend, *items(3))
        await claim(backend, 2, types={"work": 2})
        found = await backend.overview()
        assert found.workers == tuple(await backend.workers())
        worker = only(found.workers)
        assert (worker.id, worker.types, worker.running) == ("w", ("work",), 2)


class QueueAgeCases:
    @needs("watching")
    async def test_a_queue_says_since_when_its_oldest_item_is_ready(self, subject: Subject) -> None:
        """The first of each line counts. Items that are due later, blocked or running do not wait."""
        backend = subject.backend
        await submit(backend, item(delay=1000, queue="later"), dependent("p", queue="stuck"))
        await submit(backend, item("a", queue="q", lane="x"))
        await start_one(backend, item(queue="busy"))
        await subject.advance(100)
        await submit(backend, item("b", queue="q"), item("c", queue="r"), item("d", queue="r"))
        await subject.advance(100)
        assert await ages(backend) == {"q": near(200), "r": near(100)}
        await backend.cancel(["a", "c"])
        assert await ages(backend) == {"q": near(100), "r": near(100)}

    @needs("watching")
    async def test_an_item_that_was_due_waits_since_then(self, subject: Subject) -> None:
        """Once a claim has made it ready, or met it."""
        backend = subject.backend
        await submit(backend, item("x", delay=100))
        await subject.advance(300)
        await claim(backend, 0)
        assert await ages(backend) == {"default": near(200)}

    @needs("watching", "parking")
    async def test_parked_and_paused_items_wait_too(self, subject: Subject) -> None:
        """They count for the age of their queues."""
        backend = subject.backend
        await submit(
            backend, item("old", "alien"), item("x"), item(queue="idle"), item(queue="t", tenant="t")
        )
        await pause(backend, "idle")
        await pause(backend, "t", tenant="t")
        assert await claim_ids(backend, types={"work": 9}) == ["x"]
        await subject.advance(100)
        await submit(backend, item("young"))
        assert await ages(backend) == {"default": near(100), "idle": near(100), "t": near(100)}
        assert await ages(backend, tenant="t") == {"t": near(100)}

    @needs("watching", "parking")
    async def test_parking_does_not_change_the_age_of_a_queue(self, subject: Subject) -> None:
        """The first item of each line counts, parked or not."""
        backend = subject.backend
        await submit(backend, item("a"), item("b"), item(lane="x"), item(queue="q", lane="x"))
        await subject.advance(100)
        await submit(backend, item("alien", "alien", priority=9), item(type="other", lane="x", priority=5))
        await submit(backend, item(type="other", queue="q", lane="x", priority=5))
        await subject.advance(100)
        before = {"default": near(100), "q": near(100)}
        assert await ages(backend) == before
        assert await claim_ids(backend, 1, types={"work": 9}) == ["a"]
        assert await ages(backend) == before
        await subject.advance(50)
        assert await claim_ids(backend, 1, types={"alien": 9}) == ["alien"]
        assert await ages(backend) == {"default": near(250), "q": near(150)}

    @needs("watching")
    async def test_a_doomed_item_does_not_wait(self, subject: Subject) -> None:
        """It is handed out, but does not run."""
        backend = subject.backend
        await submit(backend, item("x", expires_in=50))
        await subject.advance(100)
        await verdicts(backend)
        assert await ages(backend) == {}

    @needs("watching")
    async def test_queues_with_many_lines_have_an_age(self, backend: Backend) -> None:
        """Not all lines are looked at."""
        await submit(backend, *(item(lane=f"l{n}", tenant=f"t{n % 7}") for n in range(500)))
        assert await ages(backend) == {"default": near(0)}
        (age,) = (await backend.overview()).ages
        assert (age.queue, age.oldest_ready) == ("default", near(await backend.now()))

    @needs("watching")
    async def test_the_age_of_a_queue_may_say_which_item_it_is_of(self, subject: Subject) -> None:
        """The tenant and the type of the one that waits for the longest time, or nothing."""
        backend = subject.backend
        await submit(backend, item("x", type="late", tenant="acme", lane="a"))
        await subject.advance(10)
        await submit(
            backend, item("y", type="new", tenant="acme", lane="b", priority=5), item("z", type="new")
        )
        for tenant in (None, "acme"):
            (age,) = (await backend.overview(tenant=tenant)).ages
            assert (age.tenant, age.type) in (("acme", "late"), ("", ""))


class UnservedTypeCases:
    @needs("watching")
    async def test_types_that_no_worker_has_are_named(self, subject: Subject) -> None:
        """With the number of their ready items. Since when: if a worker had them once."""
        backend = subject.backend
        await beat(backend, "gone", types=("left", "work"))
        await submit(backend, *items(3, type="never"), *items(5, type="left", tenant="t"), *items(2))
        await submit(backend, item(type="later", delay=500), dependent("p", type="stuck"))
        await beat(backend, "w", types=("work",))
        assert [one.type for one in (await backend.overview()).unserved] == ["never"]
        await subject.advance(100)
        await backend.remove_worker("gone")
        await subject.advance(100)
        found = await backend.overview()
        assert found.unserved == (
            UnservedType("left", 5, near(found.now - 100)),
            UnservedType("never", 3, None),
        )
        assert [one.type for one in (await backend.overview(tenant="t")).unserved] == ["left"]
        await beat(backend, "all")
        assert (await backend.overview()).unserved == ()

    @needs("watching", "parking")
    async def test_parked_items_of_such_types_are_counted(self, backend: Backend) -> None:
        """With those that no claim has met yet."""
        await submit(backend, *items(2, type="alien"), item("x"))
        assert await claim_ids(backend, types={"work": 5}) == ["x"]
        await submit(backend, item(type="alien"))
        assert (await backend.overview()).unserved == (UnservedType("alien", 3, None),)

    @needs("watching")
    async def test_a_lapsed_worker_serves_nothing(self, subject: Subject) -> None:
        """Since its lease has lapsed, also before a claim has removed it."""
        backend = subject.backend
        await beat(backend, "mortal", 100)
        await submit(backend, item("x"))
        assert (await backend.overview()).unserved == ()
        await subject.advance(150)
        found = await backend.overview()
        assert found.unserved == (UnservedType("work", 1, near(found.now - 50)),)
        assert [worker.id for worker in found.workers] == ["mortal"]

    @needs("watching")
    async def test_a_worker_that_claims_nothing_more_serves_nothing(self, backend: Backend) -> None:
        """One that is stopping, and a manual lease."""
        await submit(backend, item("x"))
        for id, info in (("stops", WorkerInfo(draining=True)), ("by hand", WorkerInfo(manual=True))):
            said = encode_worker_info(info)
            await backend.beat(Heartbeat(worker=id, lease=LEASE, types=("work",), info=said))
        assert (await backend.overview()).unserved == (UnservedType("work", 1, None),)
        await beat(backend, "w")
        assert (await backend.overview()).unserved == ()


def _counted(counts: Any) -> Counter[Any]:
    return Counter({(one.tenant, one.queue, one.type, one.status): one.count for one in counts})
