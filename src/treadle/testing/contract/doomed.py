"""Doomed items: items that can only end. A claim hands them out with a verdict."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.backend import Backend
from treadle.bulk_action import BULK_TYPE

from .build import (
    apply,
    beat,
    claim_answer,
    claim_ids,
    claim_one,
    dependent,
    die,
    doomed_lease,
    end,
    item,
    items,
    only,
    release,
    retry,
    start_one,
    state,
    status,
    statuses,
    submit,
    succeed,
    verdicts,
)
from .check import consistent
from .dependencies import start_pair
from .subject import Subject, needs


class DoomedCases:
    async def test_a_doomed_item_is_claimed_with_a_verdict_and_settled(self, backend: Backend) -> None:
        """No attempt is counted, and the item keeps its status until it is settled."""
        await end(backend, item("p"), how=die)
        await submit(backend, dependent("p", id="next"))
        lease = await doomed_lease(backend)
        assert (lease.id, lease.verdict, lease.attempt) == ("next", "unsatisfiable", 0)
        found = await state(backend, "next")
        assert (found.status, found.started_at, found.worker) == ("blocked", None, None)
        await consistent(backend)
        await apply(backend, die(lease))
        found = await state(backend, "next")
        assert (found.status, found.reason, found.attempt) == ("dead", "unsatisfiable", 0)
        await consistent(backend)

    async def test_a_doomed_item_given_back_with_a_delay_is_claimed_at_once(self, backend: Backend) -> None:
        """It will not run, so the delay does not apply: the next claim hands it out."""
        await end(backend, item("p"), how=die)
        await submit(backend, dependent("p", id="next"))
        due = (await state(backend, "next")).due_at
        await apply(backend, release(await doomed_lease(backend), 50.0))
        assert (await state(backend, "next")).due_at == due
        assert (await doomed_lease(backend)).id == "next"
        await consistent(backend)

    async def test_each_settlement_dooms_the_next_link_of_a_chain(self, backend: Backend) -> None:
        """An item behind a doomed one is doomed by the settlement of that one, not before."""
        await submit(
            backend, item("a"), dependent("a", id="b"), dependent("b", id="c"), dependent("c", id="d")
        )
        await apply(backend, die(await claim_one(backend)))
        for expected in ("b", "c", "d"):
            lease = await doomed_lease(backend)
            assert lease.id == expected
            await apply(backend, die(lease))
        assert await statuses(backend, "a", "b", "c", "d") == ["dead"] * 4
        await consistent(backend)

    async def test_a_doomed_item_is_leased_to_one_worker(self, backend: Backend) -> None:
        """While one worker holds the verdict, no other worker gets it."""
        await submit(backend, dependent("p", id="next", need=2))
        assert await verdicts(backend, "w1") == {"next": "unsatisfiable"}
        assert await verdicts(backend, "w2") == {}

    async def test_a_doomed_item_of_a_dead_worker_is_doomed_again(self, backend: Backend) -> None:
        """No attempt, no loss and no history entry is counted."""
        await submit(backend, dependent("p", id="next", need=2, attempts=1))
        for worker in ("w1", "w2", "w3"):
            assert await verdicts(backend, worker) == {"next": "unsatisfiable"}
            await backend.remove_worker(worker)
        found = await state(backend, "next")
        assert (found.attempt, found.history, found.status) == (0, (), "blocked")
        await consistent(backend)

    async def test_a_released_verdict_goes_to_the_next_worker(self, backend: Backend) -> None:
        """A worker that stops gives its verdict back."""
        await submit(backend, item("a", deadline=await backend.now() - 10))
        await apply(backend, release(await doomed_lease(backend, "w1")))
        assert (await state(backend, "a")).attempt == 0
        assert await verdicts(backend, "w2") == {"a": "expired"}

    @pytest.mark.parametrize("fields", [{}, {"delay": 500.0}, {"after": ("p",), "need": 1}])
    async def test_a_waiting_item_expires_at_its_deadline(self, subject: Subject, fields: Any) -> None:
        """A ready, scheduled or blocked item gets the verdict `expired` and is not run."""
        await submit(subject.backend, item("a", expires_in=100, **fields))
        before = await status(subject.backend, "a")
        await subject.advance(101)
        lease = only((await claim_answer(subject.backend)).leases)
        assert (lease.id, lease.verdict, lease.attempt) == ("a", "expired", 0)
        assert await status(subject.backend, "a") == before
        await apply(subject.backend, die(lease))
        found = await state(subject.backend, "a")
        assert (found.status, found.reason) == ("dead", "expired")
        await consistent(subject.backend)

    async def test_a_running_item_may_settle_past_its_deadline(self, subject: Subject) -> None:
        """The worker decides what the deadline does to a running item."""
        lease = await start_one(subject.backend, item("a", expires_in=100))
        await subject.advance(200)
        assert (await claim_answer(subject.backend)).leases == ()
        await apply(subject.backend, succeed(lease))
        assert await status(subject.backend, "a") == "success"

    async def test_a_retry_past_the_deadline_expires(self, subject: Subject) -> None:
        """Once the item waits again, its deadline applies again."""
        lease = await start_one(subject.backend, item("a", expires_in=100))
        await apply(subject.backend, retry(lease, 500))
        await subject.advance(101)
        assert await verdicts(subject.backend) == {"a": "expired"}

    async def test_a_freed_item_past_its_deadline_expires(self, subject: Subject) -> None:
        """Its worker died and its deadline has passed: it is not run again."""
        await start_one(subject.backend, item("a", expires_in=100), "w1")
        await subject.advance(101)
        await subject.backend.remove_worker("w1")
        lease = only((await claim_answer(subject.backend)).leases)
        assert (lease.id, lease.verdict) == ("a", "expired")

    @needs("operating")
    async def test_a_requeue_of_a_prerequisite_does_not_undo_what_counted(self, backend: Backend) -> None:
        """Its first end stays counted if it counted, and its second end is not counted. A dependent that was
        left alone stays doomed."""
        await end(backend, item("p"), how=die)
        await submit(
            backend, dependent("p", "q", id="done", counting="done"), dependent("p", "q", id="success")
        )
        await backend.requeue(["p"], alone=True)
        again = only(lease for lease in (await claim_answer(backend)).leases if lease.id == "p")
        assert (await apply(backend, succeed(again))).effects.released == ()
        assert await statuses(backend, "p", "done", "success") == ["success", "blocked", "blocked"]
        await backend.remove_worker("w")
        assert await verdicts(backend) == {"success": "unsatisfiable"}
        await consistent(backend)

    @needs("operating")
    async def test_each_prerequisite_is_counted_once(self, backend: Backend) -> None:
        """Requeuing it and ending it again changes nothing."""
        first, second = await start_pair(backend, counting="done")
        await apply(backend, die(first))
        for _ in range(2):
            await backend.requeue(["p"])
            settled = await apply(backend, die(await claim_one(backend)))
            assert settled.effects.released == ()
        assert await status(backend, "next") == "blocked"
        settled = await apply(backend, succeed(second))
        assert [released.id for released in settled.effects.released] == ["next"]
        await consistent(backend)


class VerdictCases:
    @needs("order")
    async def test_verdicts_do_not_count_against_the_limit(self, backend: Backend) -> None:
        """They count neither against `limit` nor against the room for a type."""
        await submit(backend, *items(3), *(dependent("x", id=f"d{n}", need=2) for n in range(4)))
        leases = (await claim_answer(backend, 2, types={"work": 2})).leases
        assert sum(lease.verdict is None for lease in leases) == 2
        assert sum(lease.verdict == "unsatisfiable" for lease in leases) == 4

    async def test_a_claim_returns_at_most_a_hundred_verdicts(self, backend: Backend) -> None:
        """The rest comes with the next claim."""
        await submit(backend, *(dependent("x", id=f"d{n}", need=2) for n in range(150)))
        first, second = await verdicts(backend), await verdicts(backend)
        assert len(first) <= 100
        assert len(first) + len(second) == 150
        assert not first.keys() & second.keys()

    async def test_verdicts_respect_the_demanded_queues_and_tenants(self, backend: Backend) -> None:
        """Doomed items of other queues and tenants are not returned."""
        for tenant in "xy":
            for queue in "pq":
                await submit(backend, dependent("m", id=tenant + queue, need=2, tenant=tenant, queue=queue))
        assert await verdicts(backend, tenants=("x",), queues=("p",)) == {"xp": "unsatisfiable"}
        assert await verdicts(backend, tenants=()) == {}
        assert await verdicts(backend, queues=()) == {}
        assert await verdicts(backend, queues=(), tenants=("y",)) == {}
        assert sorted(await verdicts(backend, tenants=("y",))) == ["yp", "yq"]

    async def test_verdicts_go_to_a_worker_that_has_the_type(self, backend: Backend) -> None:
        """While a live worker has the type, other workers do not get its verdicts."""
        await beat(backend, "mailer", types=("mail",))
        await submit(backend, dependent("x", id="a", need=2, type="mail"))
        assert await verdicts(backend, "other", types={"sms": 5}) == {}
        assert await verdicts(backend, "mailer", types={"mail": 0}) == {"a": "unsatisfiable"}

    async def test_verdicts_go_to_any_worker_if_none_has_the_type(self, backend: Backend) -> None:
        """No live worker has the type, so any worker may end the item."""
        await beat(backend, "mailer", types=("mail",))
        await submit(backend, dependent("x", id="a", need=2, type="mail"))
        await backend.remove_worker("mailer")
        assert await verdicts(backend, "other", types={"sms": 5}) == {"a": "unsatisfiable"}

    async def test_a_worker_registered_without_types_has_every_type(self, backend: Backend) -> None:
        """Its first heartbeat names no types, so verdicts of every type go to it."""
        await beat(backend, "anything")
        await submit(backend, dependent("x", id="a", need=2, type="mail"))
        assert await verdicts(backend, "other", types={"sms": 5}) == {}
        assert await verdicts(backend, "anything") == {"a": "unsatisfiable"}

    async def test_without_a_grace_an_unknown_type_waits_for_ever(self, subject: Subject) -> None:
        """The claim sets no `unknown_grace`."""
        await submit(subject.backend, item("a", "mail"))
        await subject.advance(1_000_000)
        assert (await claim_answer(subject.backend, types={"sms": 5})).leases == ()
        assert await status(subject.backend, "a") == "ready"

    async def test_an_unknown_type_is_doomed_after_the_grace(self, subject: Subject) -> None:
        """The item is ready for longer than the grace while no live worker has its type: `unknown_type`. Bulk
        actions wait for one."""
        await submit(subject.backend, item("a", "mail"), item("b", "sms"), item("portion", BULK_TYPE))
        grace: dict[str, Any] = {"types": {"sms": 0}, "unknown_grace": 100.0}
        await subject.advance(50)
        assert await verdicts(subject.backend, **grace) == {}
        await subject.advance(51)
        leases = (await claim_answer(subject.backend, 0, **grace)).leases
        lease = only(leases)
        assert (lease.id, lease.verdict, lease.attempt) == ("a", "unknown_type", 0)
        await apply(subject.backend, die(lease))
        found = await state(subject.backend, "a")
        assert (found.status, found.reason, found.attempt) == ("dead", "unknown_type", 0)
        assert await status(subject.backend, "portion") == "ready"
        await consistent(subject.backend)

    async def test_a_type_that_a_live_worker_has_is_not_doomed(self, subject: Subject) -> None:
        """It does not matter how long the item waits."""
        await beat(subject.backend, "mailer", types=("mail",))
        await submit(subject.backend, item("a", "mail"))
        await subject.advance(200)
        assert await verdicts(subject.backend, "other", types={"sms": 1}, unknown_grace=100.0) == {}
        assert await claim_ids(subject.backend, worker="mailer", types={"mail": 1}) == ["a"]

    async def test_the_grace_begins_when_the_last_worker_is_gone(self, subject: Subject) -> None:
        """The backlog does not die with the only worker that had its type: there is time to start another."""
        backend = subject.backend
        await beat(backend, "mailer", types=("mail",))
        await submit(backend, item("a", "mail"))
        await subject.advance(1000)
        await backend.remove_worker("mailer")
        grace: dict[str, Any] = {"types": {"sms": 1}, "unknown_grace": 100.0}
        assert await verdicts(backend, "other", **grace) == {}
        await subject.advance(50)
        assert await verdicts(backend, "other", **grace) == {}
        await subject.advance(60)
        assert await verdicts(backend, "other", **grace) == {"a": "unknown_type"}

    async def test_the_grace_begins_when_the_last_worker_gives_the_type_up(self, subject: Subject) -> None:
        """A heartbeat says which types it has now."""
        backend = subject.backend
        await beat(backend, "mailer", types=("mail", "sms"))
        await submit(backend, item("a", "mail"))
        await subject.advance(1000)
        await beat(backend, "mailer", types=("sms",))
        grace: dict[str, Any] = {"types": {"sms": 1}, "unknown_grace": 100.0}
        assert await verdicts(backend, "other", **grace) == {}
        await subject.advance(110)
        assert await verdicts(backend, "other", **grace) == {"a": "unknown_type"}

    async def test_the_grace_counts_only_time_spent_ready(self, subject: Subject) -> None:
        """Time spent scheduled or blocked does not count."""
        await submit(subject.backend, item("a", "mail", delay=1000), dependent("x", id="b", type="mail"))
        await subject.advance(500)
        assert await verdicts(subject.backend, types={"sms": 1}, unknown_grace=100.0) == {}
