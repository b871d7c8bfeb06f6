"""Workers: heartbeats, lapsed leases, removed workers, lost and unknown leases."""

from __future__ import annotations

from treadle.backend import Backend
from treadle.item import Demand, Heartbeat, Lease

from .build import (
    LEASE,
    apply,
    beat,
    claim,
    claim_answer,
    claim_ids,
    claim_one,
    dependent,
    die,
    doomed_lease,
    group,
    item,
    items,
    near,
    only,
    retry,
    settle_one,
    start,
    start_one,
    state,
    status,
    submit,
    submit_one,
    succeed,
    verdicts,
)
from .check import consistent
from .subject import Subject, needs


async def claim_and_die(backend: Backend, worker: str = "mortal") -> Lease:
    """Claim the one ready item and remove the worker."""
    lease = await claim_one(backend, worker)
    assert await backend.remove_worker(worker) == 1
    return lease


class HeartbeatCases:
    async def test_the_first_heartbeat_registers_the_worker(self, backend: Backend) -> None:
        """`fresh` says that the worker was not known before."""
        assert (await backend.beat(Heartbeat(worker="w", lease=100))).fresh
        assert not (await backend.beat(Heartbeat(worker="w", lease=100))).fresh
        assert (await backend.claim(Demand(worker="w", limit=1))).alive

    async def test_one_heartbeat_keeps_every_lease_of_a_worker(self, subject: Subject) -> None:
        """One row is written, for any number of leases. `held` may be empty."""
        await submit(subject.backend, *items(50))
        leases = await claim(subject.backend, worker="w1", lease=100)
        for _ in range(5):
            await subject.advance(80)
            reply = await subject.backend.beat(Heartbeat(worker="w1", lease=100))
            assert not reply.fresh
            assert await claim_ids(subject.backend, worker="w2") == []
        await apply(subject.backend, *(succeed(lease) for lease in leases))

    async def test_the_next_claim_removes_a_lapsed_worker(self, subject: Subject) -> None:
        """Its items are claimed again in that same claim."""
        await submit(subject.backend, item("a"))
        first = await claim_one(subject.backend, "w1", lease=100)
        await subject.advance(90)
        assert await claim_ids(subject.backend, worker="w2") == []
        await subject.advance(20)
        second = await claim_one(subject.backend, "w2")
        assert (second.id, second.attempt) == ("a", 2)
        assert second.token != first.token
        await consistent(subject.backend)

    async def test_an_item_that_expired_on_a_dead_worker_is_not_run(self, subject: Subject) -> None:
        """The claim that removes the worker returns the item with the verdict `expired`."""
        await submit(subject.backend, item("a", expires_in=20))
        await claim_one(subject.backend, "dead", lease=10)
        await subject.advance(50)
        lease = only((await claim_answer(subject.backend, worker="living")).leases)
        assert (lease.id, lease.verdict, lease.attempt) == ("a", "expired", 1)

    async def test_a_lapsed_worker_that_beats_before_removal_keeps_its_leases(self, subject: Subject) -> None:
        """It was not removed yet, so it is simply alive again."""
        lease = await start_one(subject.backend, item("a"), "w1")
        await beat(subject.backend, "w1", lease=100)
        await subject.advance(200)
        reply = await subject.backend.beat(Heartbeat(worker="w1", lease=100, held=[lease]))
        assert (reply.fresh, dict(reply.lost)) == (False, {})
        assert await claim_ids(subject.backend, worker="w2") == []
        await apply(subject.backend, succeed(lease))

    async def test_a_lapsed_worker_may_settle_until_it_is_removed(self, subject: Subject) -> None:
        """A token ends when its item is freed, not when the worker's lease lapses."""
        lease = await start_one(subject.backend, item("a"), "w1")
        await beat(subject.backend, "w1", lease=100)
        await subject.advance(200)
        await apply(subject.backend, succeed(lease))
        assert await status(subject.backend, "a") == "success"

    async def test_a_removed_worker_that_beats_is_fresh(self, subject: Subject) -> None:
        """Its lease was taken away, so everything it held is lost."""
        lease = await start_one(subject.backend, item("a"), "w1")
        await beat(subject.backend, "w1", lease=100)
        await subject.advance(200)
        await claim(subject.backend, worker="w2")
        reply = await subject.backend.beat(Heartbeat(worker="w1", lease=100, held=[lease]))
        assert (reply.fresh, dict(reply.lost)) == (True, {lease.token: "taken"})
        assert (await claim_answer(subject.backend, worker="w1")).alive

    @needs("fencing")
    async def test_a_claim_that_reports_a_worker_dead_has_removed_it(self, subject: Subject) -> None:
        """Its items are free, and its next heartbeat registers it anew."""
        backend = subject.backend
        lease = await start_one(backend, item("a"), "w1")
        await beat(backend, "w1", lease=100)
        await subject.advance(200)
        assert not (await backend.claim(Demand(worker="w1", limit=10))).alive
        assert (await settle_one(backend, succeed(lease))).loss == "taken"
        reply = await backend.beat(Heartbeat(worker="w1", lease=100, held=[lease]))
        assert (reply.fresh, dict(reply.lost)) == (True, {lease.token: "taken"})
        assert (await claim_one(backend, "w1")).attempt == 2

    async def test_a_heartbeat_reports_lost_leases_with_the_reason(self, backend: Backend) -> None:
        """Of the leases in `held`: one is freed, one is cancelled, one is still valid."""
        kept, cancelled = await start(backend, item("a"), item("b"))
        taken = await start_one(backend, item("c"), "w1")
        await backend.cancel(["b"])
        await backend.remove_worker("w1")
        reply = await backend.beat(Heartbeat(worker="w", lease=100, held=[kept, cancelled, taken]))
        assert dict(reply.lost) == {cancelled.token: "cancelled", taken.token: "taken"}
        reply = await backend.beat(Heartbeat(worker="w", lease=100, held=[kept]))
        assert dict(reply.lost) == {}

    @needs("operating")
    async def test_a_heartbeat_reports_leases_that_operators_ended(self, backend: Backend) -> None:
        """The losses are `completed` and `not_found`."""
        completed, deleted = await start(backend, item("a"), item("b"))
        await backend.complete("a", None)
        await backend.delete(["b"])
        reply = await backend.beat(Heartbeat(worker="w", lease=100, held=[completed, deleted]))
        assert dict(reply.lost) == {completed.token: "completed", deleted.token: "not_found"}

    async def test_a_heartbeat_reports_an_older_token_as_taken(self, backend: Backend) -> None:
        """The item runs under another token, even if the same worker has it."""
        await submit(backend, item("a"))
        first = await claim_and_die(backend, "w1")
        second = await claim_one(backend, "w1")
        reply = await backend.beat(Heartbeat(worker="w1", lease=100, held=[first, second]))
        assert dict(reply.lost) == {first.token: "taken"}

    @needs("listing")
    async def test_workers_lists_every_worker_with_a_lease(self, subject: Subject) -> None:
        """Lapsed or not, with the types they have and the number of running items."""
        assert list(await subject.backend.workers()) == []
        await beat(subject.backend, "w1", lease=100, types=("mail", "sms"))
        await start(subject.backend, *items(3), worker="w2")
        now = await subject.backend.now()
        found = {worker.id: worker for worker in await subject.backend.workers()}
        assert (found["w1"].until, found["w1"].running) == (near(now + 100), 0)
        assert set(found["w1"].types or ()) == {"mail", "sms"}
        assert (found["w2"].until, found["w2"].running, found["w2"].types) == (near(now + LEASE), 3, None)
        await subject.advance(200)
        assert {worker.id for worker in await subject.backend.workers()} == {"w1", "w2"}
        await subject.backend.remove_worker("w1")
        assert {worker.id for worker in await subject.backend.workers()} == {"w2"}

    @needs("listing")
    async def test_a_heartbeat_without_types_keeps_the_known_types(self, backend: Backend) -> None:
        """A heartbeat with types replaces them."""
        for said, known in [(("a",), {"a"}), (None, {"a"}), (("b", "c"), {"b", "c"}), ((), set[str]())]:
            await beat(backend, "w", types=said)
            assert set(only(await backend.workers()).types or ()) == known


class LostLeaseCases:
    @needs("fencing")
    async def test_removing_a_worker_frees_its_items(self, backend: Backend) -> None:
        """The attempt stays spent, the loss is in the history, and the item is ready again."""
        lease = await start_one(backend, item("a"), "w1")
        assert await backend.remove_worker("w1") == 1
        found = await state(backend, "a")
        assert (found.status, found.attempt, found.ended_at) == ("ready", 1, None)
        recorded = only(found.history)
        assert (recorded.error_type, recorded.attempt, recorded.worker) == ("LeaseLost", 1, "w1")
        assert recorded.at == near(await backend.now())
        assert (await settle_one(backend, succeed(lease))).verb == "stale"
        await consistent(backend)

    async def test_remove_worker_returns_the_number_of_freed_items(self, backend: Backend) -> None:
        """0 for an unknown worker, and 0 the second time."""
        await start(backend, *items(5), worker="w1")
        assert await backend.remove_worker("missing") == 0
        assert await backend.remove_worker("w1") == 5
        assert await backend.remove_worker("w1") == 0
        assert not (await backend.claim(Demand(worker="w1", limit=1))).alive
        assert await backend.remove_worker("w1") == 0

    async def test_freed_items_keep_their_place(self, backend: Backend) -> None:
        """They are claimed before items that were submitted after them."""
        await submit(backend, *(item(name) for name in "abcd"))
        await claim(backend, 2, "w1")
        await backend.remove_worker("w1")
        await submit(backend, item("e"))
        assert await claim_ids(backend) == ["a", "b", "c", "d", "e"]

    async def test_an_item_waits_from_its_second_loss_on(self, subject: Subject) -> None:
        """`min(2 ** (losses - 2), 60)` seconds: 1, 2, 4 and so on up to 60."""
        await submit(subject.backend, item("a", attempts=None))
        await claim_and_die(subject.backend)
        assert await status(subject.backend, "a") == "ready"
        for wait in (1, 2, 4, 8, 16, 32, 60, 60):
            await claim_and_die(subject.backend)
            found = await state(subject.backend, "a")
            assert found.status == "scheduled"
            assert found.due_at - await subject.backend.now() == near(wait)
            await subject.advance(wait + 0.1)
        assert (await claim_one(subject.backend)).attempt == 10

    async def test_a_settlement_resets_the_number_of_losses(self, subject: Subject) -> None:
        """The next loss counts as the first one."""
        await submit(subject.backend, item("a", attempts=None))
        await claim_and_die(subject.backend)
        await apply(subject.backend, retry(await claim_one(subject.backend)))
        await claim_and_die(subject.backend)
        assert await status(subject.backend, "a") == "ready"
        await claim_and_die(subject.backend)
        assert await status(subject.backend, "a") == "scheduled"

    async def test_a_loss_at_the_last_attempt_dooms_the_item(self, backend: Backend) -> None:
        """`attempt >= attempts`: the verdict is `lease_lost`, and no attempt is counted for it."""
        await submit(backend, item("a", attempts=1))
        await claim_and_die(backend)
        lease = await doomed_lease(backend, "w2")
        assert (lease.id, lease.verdict, lease.attempt) == ("a", "lease_lost", 1)
        await apply(backend, die(lease))
        found = await state(backend, "a")
        assert (found.status, found.reason, found.attempt) == ("dead", "lease_lost", 1)
        await consistent(backend)

    async def test_each_loss_spends_one_attempt(self, subject: Subject) -> None:
        """The item is doomed when all its attempts are lost."""
        await submit(subject.backend, item("a", attempts=3))
        for attempt in (1, 2, 3):
            assert (await claim_and_die(subject.backend)).attempt == attempt
            await subject.advance(100)
        assert await verdicts(subject.backend) == {"a": "lease_lost"}
        assert [failed.attempt for failed in (await state(subject.backend, "a")).history] == [1, 2, 3]

    async def test_a_freed_item_keeps_its_group_open(self, backend: Backend) -> None:
        """A freed item has not ended, neither for its group nor for its dependents."""
        await submit(backend, item("a"), dependent("a", id="next", counting="done"))
        await claim_and_die(backend)
        assert (await group(backend, "a")).open == 1
        assert await status(backend, "next") == "blocked"

    async def test_a_thousand_items_of_a_lapsed_worker_are_freed(self, subject: Subject) -> None:
        """In bounded portions, within the next few claims."""
        await submit(subject.backend, *items(1000))
        assert len(await claim(subject.backend, 1000, "w1", lease=100)) == 1000
        await subject.advance(200)
        seen: set[str] = set()
        for _ in range(20):
            seen |= set(await claim_ids(subject.backend, 1000, "w2"))
        assert len(seen) == 1000
        await consistent(subject.backend)


class UnknownLeaseCases:
    async def test_unknown_leases_returns_the_leases_of_a_lost_claim(self, backend: Backend) -> None:
        """They are the leases of this worker whose tokens it does not know."""
        await submit(backend, *(item(name, input=name.encode(), lane=name) for name in "abc"))
        known = only(await claim(backend, 1))
        lost = await claim(backend)
        found = await backend.unknown_leases("w", [known.token])
        assert {lease.token for lease in found} == {lease.token for lease in lost}
        shown = {(lease.id, lease.input, lease.lane, lease.attempt, lease.group_id) for lease in found}
        assert shown == {(lease.id, lease.input, lease.lane, 1, lease.id) for lease in lost}
        await apply(backend, *(succeed(lease) for lease in found))
        assert list(await backend.unknown_leases("w", [known.token])) == []
        await consistent(backend)

    async def test_unknown_leases_returns_only_live_leases_of_the_worker(self, backend: Backend) -> None:
        """Leases of other workers and leases that were settled or freed are not returned."""
        settled, _ = await start(backend, item("a"), item("b"), worker="w1")
        await start_one(backend, item("c"), "w2")
        await apply(backend, succeed(settled))
        assert [lease.id for lease in await backend.unknown_leases("w1", [])] == ["b"]
        await backend.remove_worker("w1")
        assert list(await backend.unknown_leases("w1", [])) == []
        assert list(await backend.unknown_leases("missing", [])) == []

    async def test_unknown_leases_returns_verdicts(self, backend: Backend) -> None:
        """With the same token and verdict as the lost answer."""
        await submit(backend, dependent("x", id="a", need=2))
        lease = await doomed_lease(backend)
        found = only(await backend.unknown_leases("w", []))
        assert (found.id, found.token, found.verdict) == ("a", lease.token, "unsatisfiable")
        await apply(backend, die(found))
        assert await status(backend, "a") == "dead"


class LeaseAtSubmitCases:
    """Items that are stored already leased (`lease_to`)."""

    async def test_an_item_may_be_stored_leased(self, backend: Backend) -> None:
        """Its worker is alive and it need not wait: it is `running`, and the answer has the lease."""
        await beat(backend, "w1")
        answer = await submit_one(backend, item("a", input=b"x", lease_to="w1"))
        assert (answer.status, answer.existing) == ("running", False)
        assert answer.lease is not None
        assert (answer.lease.id, answer.lease.attempt, answer.lease.input) == ("a", 1, b"x")
        found = await state(backend, "a")
        assert (found.status, found.worker, found.attempt) == ("running", "w1", 1)
        assert await claim_ids(backend, worker="w2") == []
        await apply(backend, succeed(answer.lease))
        await consistent(backend)

    async def test_an_item_stored_leased_survives_a_crash(self, backend: Backend) -> None:
        """It is found through `unknown_leases` and freed with its worker, like any other."""
        lease = await start_one(backend, item("a"), "w1")
        assert [one.token for one in await backend.unknown_leases("w1", [])] == [lease.token]
        await backend.remove_worker("w1")
        assert (await claim_one(backend, "w2")).attempt == 2

    async def test_an_item_is_not_stored_leased_to_a_dead_worker(self, subject: Subject) -> None:
        """The worker is unknown, removed or lapsed: the item is stored `ready`."""
        await beat(subject.backend, "lapsed", lease=50)
        await beat(subject.backend, "removed")
        await subject.backend.remove_worker("removed")
        await subject.advance(60)
        for worker in ("unknown", "lapsed", "removed"):
            answer = await submit_one(subject.backend, item(worker, lease_to=worker))
            assert (answer.status, answer.lease) == ("ready", None)
        assert sorted(await claim_ids(subject.backend)) == ["lapsed", "removed", "unknown"]

    async def test_an_item_that_must_wait_is_not_stored_leased(self, backend: Backend) -> None:
        """It has a delay or a dependency."""
        await beat(backend, "w1")
        later = await submit_one(backend, item("later", delay=100, lease_to="w1"))
        blocked = await submit_one(backend, dependent("x", id="blocked", lease_to="w1"))
        assert [(one.status, one.lease) for one in (later, blocked)] == [
            ("scheduled", None),
            ("blocked", None),
        ]
        assert (await state(backend, "later")).attempt == 0

    @needs("operating")
    async def test_an_item_of_a_paused_queue_is_not_stored_leased(self, backend: Backend) -> None:
        """The queue is paused for all tenants, or for its own. Elsewhere it is leased."""
        await beat(backend, "w1")
        await backend.pause("all")
        await backend.pause("own", tenant="x")
        for number, (queue, tenant, expected) in enumerate(
            (
                ("all", "x", "ready"),
                ("own", "x", "ready"),
                ("own", "y", "running"),
                ("other", "x", "running"),
            )
        ):
            new = item(f"i{number}", queue=queue, tenant=tenant, lease_to="w1")
            answer = await submit_one(backend, new)
            assert (answer.status, answer.lease is not None) == (expected, expected == "running")
        assert await claim_ids(backend) == []
        await backend.pause("all", False)
        assert await claim_ids(backend) == ["i0"]
        await consistent(backend)

    async def test_an_existing_item_is_not_leased_by_its_key(self, backend: Backend) -> None:
        """The existing item is returned as it is."""
        await beat(backend, "w1")
        await submit(backend, item("a", key="k"))
        answer = await submit_one(backend, item("b", key="k", lease_to="w1"))
        assert (answer.id, answer.existing, answer.status, answer.lease) == ("a", True, "ready", None)
