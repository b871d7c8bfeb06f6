"""Doomed items: items that can only end. A claim hands them out with a verdict."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.backend import Backend

from .build import (
    apply,
    ask,
    beat,
    claim_ids,
    claim_one,
    die,
    doomed_lease,
    end,
    gate,
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
from .dependencies import pair
from .subject import Subject, needs


class DoomedCases:
    async def test_a_doomed_gate_is_settled_by_a_worker(self, backend: Backend) -> None:
        """The claim hands it out with a verdict; no attempt is counted; settling it ends it."""
        await end(backend, item("p"), how=die)
        await submit(backend, gate("p", id="next"))
        lease = await doomed_lease(backend)
        assert (lease.id, lease.verdict, lease.attempt) == ("next", "unsatisfiable", 0)
        found = await state(backend, "next")
        assert (found.status, found.started_at, found.worker) == ("blocked", None, None)
        await consistent(backend)
        await apply(backend, die(lease))
        found = await state(backend, "next")
        assert (found.status, found.reason, found.attempt) == ("dead", "unsatisfiable", 0)
        await consistent(backend)

    async def test_a_doomed_gate_that_is_given_back_is_due_as_before(self, backend: Backend) -> None:
        """It is not to be run, so there is nothing to wait for: the next claim hands it out."""
        await end(backend, item("p"), how=die)
        await submit(backend, gate("p", id="next"))
        due = (await state(backend, "next")).due_at
        await apply(backend, release(await doomed_lease(backend), 50.0))
        assert (await state(backend, "next")).due_at == due
        assert (await doomed_lease(backend)).id == "next"
        await consistent(backend)

    async def test_doom_travels_one_claim_at_a_time(self, backend: Backend) -> None:
        """Gates behind a doomed gate are doomed by its settlement, not before."""
        await submit(backend, item("a"), gate("a", id="b"), gate("b", id="c"), gate("c", id="d"))
        await apply(backend, die(await claim_one(backend)))
        for expected in ("b", "c", "d"):
            lease = await doomed_lease(backend)
            assert lease.id == expected
            await apply(backend, die(lease))
        assert await statuses(backend, "a", "b", "c", "d") == ["dead"] * 4
        await consistent(backend)

    async def test_a_doomed_gate_is_handed_out_once(self, backend: Backend) -> None:
        """While one worker has its verdict, no other gets it."""
        await submit(backend, gate("p", id="next", need=2))
        assert await verdicts(backend, "w1") == {"next": "unsatisfiable"}
        assert await verdicts(backend, "w2") == {}

    async def test_a_doomed_item_whose_worker_dies_is_doomed_again(self, backend: Backend) -> None:
        """Nothing is counted: no attempt, no loss, no history."""
        await submit(backend, gate("p", id="next", need=2, attempts=1))
        for worker in ("w1", "w2", "w3"):
            assert await verdicts(backend, worker) == {"next": "unsatisfiable"}
            await backend.remove_worker(worker)
        found = await state(backend, "next")
        assert (found.attempt, found.history, found.status) == (0, (), "blocked")
        await consistent(backend)

    async def test_a_released_verdict_is_doomed_still(self, backend: Backend) -> None:
        """A worker that stops gives its verdict back; the next one gets it."""
        await submit(backend, item("a", deadline=await backend.now() - 10))
        await apply(backend, release(await doomed_lease(backend, "w1")))
        assert (await state(backend, "a")).attempt == 0
        assert await verdicts(backend, "w2") == {"a": "expired"}

    @pytest.mark.parametrize("fields", [{}, {"delay": 500.0}, {"after": ("p",), "need": 1}])
    async def test_whatever_waits_expires(self, subject: Subject, fields: Any) -> None:
        """ready, scheduled, blocked: doomed when the deadline comes; `expired`, not run."""
        await submit(subject.backend, item("a", expires_in=100, **fields))
        before = await status(subject.backend, "a")
        await subject.advance(101)
        lease = only((await ask(subject.backend)).leases)
        assert (lease.id, lease.verdict, lease.attempt) == ("a", "expired", 0)
        assert await status(subject.backend, "a") == before
        await apply(subject.backend, die(lease))
        found = await state(subject.backend, "a")
        assert (found.status, found.reason) == ("dead", "expired")
        await consistent(subject.backend)

    async def test_what_runs_does_not_expire_in_the_store(self, subject: Subject) -> None:
        """A running item may settle past its deadline; that is the worker's to decide."""
        lease = await start_one(subject.backend, item("a", expires_in=100))
        await subject.advance(200)
        assert (await ask(subject.backend)).leases == ()
        await apply(subject.backend, succeed(lease))
        assert await status(subject.backend, "a") == "success"

    async def test_a_retry_past_the_deadline_expires(self, subject: Subject) -> None:
        """Back in the line, the deadline holds again."""
        lease = await start_one(subject.backend, item("a", expires_in=100))
        await apply(subject.backend, retry(lease, 500))
        await subject.advance(101)
        assert await verdicts(subject.backend) == {"a": "expired"}

    async def test_a_freed_item_past_its_deadline_expires(self, subject: Subject) -> None:
        """Its worker died and its time is over: not run again."""
        await start_one(subject.backend, item("a", expires_in=100), "w1")
        await subject.advance(101)
        await subject.backend.remove_worker("w1")
        lease = only((await ask(subject.backend)).leases)
        assert (lease.id, lease.verdict) == ("a", "expired")

    @needs("operating")
    async def test_requeuing_a_prerequisite_takes_nothing_back(self, backend: Backend) -> None:
        """It was counted, once: a second end is not counted again, and doom stays."""
        await end(backend, item("p"), how=die)
        await submit(backend, gate("p", "q", id="done", counting="done"), gate("p", "q", id="success"))
        await backend.requeue(["p"])
        again = only(lease for lease in (await ask(backend)).leases if lease.id == "p")
        assert (await apply(backend, succeed(again))).effects.released == ()
        assert await statuses(backend, "p", "done", "success") == ["success", "blocked", "blocked"]
        await backend.remove_worker("w")
        assert await verdicts(backend) == {"success": "unsatisfiable"}
        await consistent(backend)

    @needs("operating")
    async def test_a_second_end_is_not_counted(self, backend: Backend) -> None:
        """Each prerequisite is counted once, however often it is requeued and ends."""
        first, second = await pair(backend, counting="done")
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
        """Besides what is to be run, nor against room."""
        await submit(backend, *items(3), *(gate("x", id=f"d{n}", need=2) for n in range(4)))
        leases = (await ask(backend, 2, types={"work": 2})).leases
        assert sum(lease.verdict is None for lease in leases) == 2
        assert sum(lease.verdict == "unsatisfiable" for lease in leases) == 4

    async def test_at_most_a_hundred_verdicts_at_once(self, backend: Backend) -> None:
        """The rest comes with the next claim."""
        await submit(backend, *(gate("x", id=f"d{n}", need=2) for n in range(150)))
        first, second = await verdicts(backend), await verdicts(backend)
        assert len(first) <= 100
        assert len(first) + len(second) == 150
        assert not first.keys() & second.keys()

    async def test_verdicts_of_the_demanded_queues_and_tenants(self, backend: Backend) -> None:
        """Doom does not cross queues or tenants."""
        for tenant in "xy":
            for queue in "pq":
                await submit(backend, gate("m", id=tenant + queue, need=2, tenant=tenant, queue=queue))
        assert await verdicts(backend, tenants=("x",), queues=("p",)) == {"xp": "unsatisfiable"}
        assert await verdicts(backend, tenants=()) == {}
        assert await verdicts(backend, queues=()) == {}
        assert await verdicts(backend, queues=(), tenants=("y",)) == {}
        assert sorted(await verdicts(backend, tenants=("y",))) == ["yp", "yq"]

    async def test_verdicts_go_to_whoever_has_the_type(self, backend: Backend) -> None:
        """Not to a worker without the type while a live one has it."""
        await beat(backend, "mailer", types=("mail",))
        await submit(backend, gate("x", id="a", need=2, type="mail"))
        assert await verdicts(backend, "other", types={"sms": 5}) == {}
        assert await verdicts(backend, "mailer", types={"mail": 0}) == {"a": "unsatisfiable"}

    async def test_verdicts_go_to_anybody_if_nobody_has_the_type(self, backend: Backend) -> None:
        """No live worker has it: any may end it."""
        await beat(backend, "mailer", types=("mail",))
        await submit(backend, gate("x", id="a", need=2, type="mail"))
        await backend.remove_worker("mailer")
        assert await verdicts(backend, "other", types={"sms": 5}) == {"a": "unsatisfiable"}

    async def test_a_worker_that_has_every_type_has_this_one(self, backend: Backend) -> None:
        """First beat without types: every type."""
        await beat(backend, "anything")
        await submit(backend, gate("x", id="a", need=2, type="mail"))
        assert await verdicts(backend, "other", types={"sms": 5}) == {}
        assert await verdicts(backend, "anything") == {"a": "unsatisfiable"}

    async def test_an_unknown_type_waits_for_ever(self, subject: Subject) -> None:
        """Without `unknown_grace`."""
        await submit(subject.backend, item("a", "mail"))
        await subject.advance(1_000_000)
        assert (await ask(subject.backend, types={"sms": 5})).leases == ()
        assert await status(subject.backend, "a") == "ready"

    async def test_an_unknown_type_is_doomed_after_the_grace(self, subject: Subject) -> None:
        """Ready for longer than that while no live worker has its type: `unknown_type`."""
        await submit(subject.backend, item("a", "mail"), item("b", "sms"))
        grace: dict[str, Any] = {"types": {"sms": 0}, "unknown_grace": 100.0}
        await subject.advance(50)
        assert await verdicts(subject.backend, **grace) == {}
        await subject.advance(51)
        leases = (await ask(subject.backend, 0, **grace)).leases
        lease = only(leases)
        assert (lease.id, lease.verdict, lease.attempt) == ("a", "unknown_type", 0)
        await apply(subject.backend, die(lease))
        found = await state(subject.backend, "a")
        assert (found.status, found.reason, found.attempt) == ("dead", "unknown_type", 0)
        await consistent(subject.backend)

    async def test_a_known_type_is_not_doomed(self, subject: Subject) -> None:
        """A live worker has it, however long it waited."""
        await beat(subject.backend, "mailer", types=("mail",))
        await submit(subject.backend, item("a", "mail"))
        await subject.advance(200)
        assert await verdicts(subject.backend, "other", types={"sms": 1}, unknown_grace=100.0) == {}
        assert await claim_ids(subject.backend, worker="mailer", types={"mail": 1}) == ["a"]

    async def test_the_grace_begins_when_the_last_worker_has_gone(self, subject: Subject) -> None:
        """A backlog does not die with the only worker that had its type: there is time to start another."""
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

    async def test_the_grace_is_for_what_is_ready(self, subject: Subject) -> None:
        """Time spent scheduled or blocked is not time spent ready."""
        await submit(subject.backend, item("a", "mail", delay=1000), gate("x", id="b", type="mail"))
        await subject.advance(500)
        assert await verdicts(subject.backend, types={"sms": 1}, unknown_grace=100.0) == {}
