"""Worker leases: beats, lapses, burials, what is freed, what is lost, what is orphaned."""

from __future__ import annotations

from treadle.backend import Backend
from treadle.item import Demand, Heartbeat, Lease

from .build import (
    LEASE,
    apply,
    ask,
    beat,
    claim,
    claim_ids,
    claim_one,
    die,
    doomed_lease,
    gate,
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


async def lose(backend: Backend, worker: str = "mortal") -> Lease:
    """Claim the one ready item, and die."""
    lease = await claim_one(backend, worker)
    assert await backend.remove_worker(worker) == 1
    return lease


class HeartbeatCases:
    async def test_the_first_beat_registers(self, backend: Backend) -> None:
        """`fresh`: the worker was not known; then it is."""
        assert (await backend.beat(Heartbeat(worker="w", lease=100))).fresh
        assert not (await backend.beat(Heartbeat(worker="w", lease=100))).fresh
        assert (await backend.claim(Demand(worker="w", limit=1))).alive

    async def test_a_beat_keeps_all_that_a_worker_holds(self, subject: Subject) -> None:
        """One row, however many items it runs; `held` may be empty."""
        await submit(subject.backend, *items(50))
        leases = await claim(subject.backend, worker="w1", lease=100)
        for _ in range(5):
            await subject.advance(80)
            pulse = await subject.backend.beat(Heartbeat(worker="w1", lease=100))
            assert not pulse.fresh
            assert await claim_ids(subject.backend, worker="w2") == []
        await apply(subject.backend, *(succeed(lease) for lease in leases))

    async def test_a_lapsed_worker_is_buried_by_the_next_claim(self, subject: Subject) -> None:
        """Whoever's lease has lapsed: what it was running is handed out again, in that very claim."""
        await submit(subject.backend, item("a"))
        first = await claim_one(subject.backend, "w1", lease=100)
        await subject.advance(90)
        assert await claim_ids(subject.backend, worker="w2") == []
        await subject.advance(20)
        second = await claim_one(subject.backend, "w2")
        assert (second.id, second.attempt) == ("a", 2)
        assert second.token != first.token
        await consistent(subject.backend)

    async def test_a_deadline_that_passed_while_its_worker_was_dead(self, subject: Subject) -> None:
        """Whoever buries the worker is not to run the item: its time is over."""
        await submit(subject.backend, item("a", expires_in=20))
        await claim_one(subject.backend, "dead", lease=10)
        await subject.advance(50)
        lease = only((await ask(subject.backend, worker="living")).leases)
        assert (lease.id, lease.verdict, lease.attempt) == ("a", "expired", 1)

    async def test_a_lapsed_worker_that_beats_in_time_is_alive_again(self, subject: Subject) -> None:
        """Lapsed but not yet buried: simply alive again, with all that it holds."""
        lease = await start_one(subject.backend, item("a"), "w1")
        await beat(subject.backend, "w1", lease=100)
        await subject.advance(200)
        pulse = await subject.backend.beat(Heartbeat(worker="w1", lease=100, held=[lease]))
        assert (pulse.fresh, dict(pulse.lost)) == (False, {})
        assert await claim_ids(subject.backend, worker="w2") == []
        await apply(subject.backend, succeed(lease))

    async def test_a_lapsed_worker_may_settle_until_it_is_buried(self, subject: Subject) -> None:
        """What a token may change ends when the item is freed, not when the lease lapses."""
        lease = await start_one(subject.backend, item("a"), "w1")
        await beat(subject.backend, "w1", lease=100)
        await subject.advance(200)
        await apply(subject.backend, succeed(lease))
        assert await status(subject.backend, "a") == "success"

    async def test_a_worker_that_comes_back_is_fresh(self, subject: Subject) -> None:
        """Its lease had been taken away: all it held is lost."""
        lease = await start_one(subject.backend, item("a"), "w1")
        await beat(subject.backend, "w1", lease=100)
        await subject.advance(200)
        await claim(subject.backend, worker="w2")
        pulse = await subject.backend.beat(Heartbeat(worker="w1", lease=100, held=[lease]))
        assert (pulse.fresh, dict(pulse.lost)) == (True, {lease.token: "taken"})
        assert (await ask(subject.backend, worker="w1")).alive

    @needs("fencing")
    async def test_a_worker_that_is_told_it_is_dead_is_dead(self, subject: Subject) -> None:
        """A claim that says so has taken the lease away: what it held is free, and it begins anew."""
        backend = subject.backend
        lease = await start_one(backend, item("a"), "w1")
        await beat(backend, "w1", lease=100)
        await subject.advance(200)
        assert not (await backend.claim(Demand(worker="w1", limit=10))).alive
        assert (await settle_one(backend, succeed(lease))).loss == "taken"
        pulse = await backend.beat(Heartbeat(worker="w1", lease=100, held=[lease]))
        assert (pulse.fresh, dict(pulse.lost)) == (True, {lease.token: "taken"})
        assert (await claim_one(backend, "w1")).attempt == 2

    async def test_a_beat_says_what_is_lost_and_why(self, backend: Backend) -> None:
        """Of the leases asked about: freed, cancelled, still held."""
        kept, cancelled = await start(backend, item("a"), item("b"))
        taken = await start_one(backend, item("c"), "w1")
        await backend.cancel(["b"])
        await backend.remove_worker("w1")
        pulse = await backend.beat(Heartbeat(worker="w", lease=100, held=[kept, cancelled, taken]))
        assert dict(pulse.lost) == {cancelled.token: "cancelled", taken.token: "taken"}
        pulse = await backend.beat(Heartbeat(worker="w", lease=100, held=[kept]))
        assert dict(pulse.lost) == {}

    @needs("operating")
    async def test_a_beat_says_what_operators_took(self, backend: Backend) -> None:
        """completed, not_found."""
        completed, deleted = await start(backend, item("a"), item("b"))
        await backend.complete("a", None)
        await backend.delete(["b"])
        pulse = await backend.beat(Heartbeat(worker="w", lease=100, held=[completed, deleted]))
        assert dict(pulse.lost) == {completed.token: "completed", deleted.token: "not_found"}

    async def test_a_lease_that_was_claimed_anew_is_lost(self, backend: Backend) -> None:
        """The item runs, but under another token: `taken`, also when the same worker has it."""
        await submit(backend, item("a"))
        first = await lose(backend, "w1")
        second = await claim_one(backend, "w1")
        pulse = await backend.beat(Heartbeat(worker="w1", lease=100, held=[first, second]))
        assert dict(pulse.lost) == {first.token: "taken"}

    @needs("listing")
    async def test_workers_are_listed(self, subject: Subject) -> None:
        """Those that hold a lease, lapsed or not, with what they can and do run."""
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
    async def test_types_change_only_when_they_are_said(self, backend: Backend) -> None:
        """A beat without types changes nothing; one with types replaces them."""
        for said, known in [(("a",), {"a"}), (None, {"a"}), (("b", "c"), {"b", "c"}), ((), set[str]())]:
            await beat(backend, "w", types=said)
            assert set(only(await backend.workers()).types or ()) == known


class LostLeaseCases:
    @needs("fencing")
    async def test_what_a_buried_worker_ran_is_freed(self, backend: Backend) -> None:
        """The attempt stays spent, the loss is in the history, it is ready again."""
        lease = await start_one(backend, item("a"), "w1")
        assert await backend.remove_worker("w1") == 1
        found = await state(backend, "a")
        assert (found.status, found.attempt, found.ended_at) == ("ready", 1, None)
        entry = only(found.history)
        assert (entry.error_type, entry.attempt, entry.worker) == ("LeaseLost", 1, "w1")
        assert entry.at == near(await backend.now())
        assert (await settle_one(backend, succeed(lease))).verb == "stale"
        await consistent(backend)

    async def test_burying_answers_how_many(self, backend: Backend) -> None:
        """Unknown worker: 0; twice: 0 the second time."""
        await start(backend, *items(5), worker="w1")
        assert await backend.remove_worker("nobody") == 0
        assert await backend.remove_worker("w1") == 5
        assert await backend.remove_worker("w1") == 0
        assert not (await backend.claim(Demand(worker="w1", limit=1))).alive
        assert await backend.remove_worker("w1") == 0

    async def test_the_freed_keep_their_place(self, backend: Backend) -> None:
        """Ready again in its old place: before those that came after it."""
        await submit(backend, *(item(name) for name in "abcd"))
        await claim(backend, 2, "w1")
        await backend.remove_worker("w1")
        await submit(backend, item("e"))
        assert await claim_ids(backend) == ["a", "b", "c", "d", "e"]

    async def test_from_the_second_loss_on_it_waits(self, subject: Subject) -> None:
        """`min(2 ** (losses - 2), 60)` seconds away: 1, 2, 4 ... 60, 60."""
        await submit(subject.backend, item("a", attempts=None))
        await lose(subject.backend)
        assert await status(subject.backend, "a") == "ready"
        for wait in (1, 2, 4, 8, 16, 32, 60, 60):
            await lose(subject.backend)
            found = await state(subject.backend, "a")
            assert found.status == "scheduled"
            assert found.due_at - await subject.backend.now() == near(wait)
            await subject.advance(wait + 0.1)
        assert (await claim_one(subject.backend)).attempt == 10

    async def test_another_settlement_ends_the_row_of_losses(self, subject: Subject) -> None:
        """The next loss is a first one again."""
        await submit(subject.backend, item("a", attempts=None))
        await lose(subject.backend)
        await apply(subject.backend, retry(await claim_one(subject.backend)))
        await lose(subject.backend)
        assert await status(subject.backend, "a") == "ready"
        await lose(subject.backend)
        assert await status(subject.backend, "a") == "scheduled"

    async def test_a_spent_budget_dooms(self, backend: Backend) -> None:
        """`attempt >= attempts`: it can only end `dead: lease_lost`; no attempt is counted for that."""
        await submit(backend, item("a", attempts=1))
        await lose(backend)
        lease = await doomed_lease(backend, "w2")
        assert (lease.id, lease.verdict, lease.attempt) == ("a", "lease_lost", 1)
        await apply(backend, die(lease))
        found = await state(backend, "a")
        assert (found.status, found.reason, found.attempt) == ("dead", "lease_lost", 1)
        await consistent(backend)

    async def test_the_budget_is_what_was_allowed(self, subject: Subject) -> None:
        """A worker that dies on it each time spends an attempt each time."""
        await submit(subject.backend, item("a", attempts=3))
        for attempt in (1, 2, 3):
            assert (await lose(subject.backend)).attempt == attempt
            await subject.advance(100)
        assert await verdicts(subject.backend) == {"a": "lease_lost"}
        assert [entry.attempt for entry in (await state(subject.backend, "a")).history] == [1, 2, 3]

    async def test_the_freed_hold_their_group_open(self, backend: Backend) -> None:
        """Freed is not ended: not for the group, nor for dependents."""
        await submit(backend, item("a"), gate("a", id="next", counting="done"))
        await lose(backend)
        assert (await group(backend, "a")).open == 1
        assert await status(backend, "next") == "blocked"

    async def test_a_thousand_are_freed(self, subject: Subject) -> None:
        """In bounded portions, and all of them soon."""
        await submit(subject.backend, *items(1000))
        assert len(await claim(subject.backend, 1000, "w1", lease=100)) == 1000
        await subject.advance(200)
        seen: set[str] = set()
        for _ in range(20):
            seen |= set(await claim_ids(subject.backend, 1000, "w2"))
        assert len(seen) == 1000
        await consistent(subject.backend)


class UnknownLeaseCases:
    async def test_a_lost_claim_is_found(self, backend: Backend) -> None:
        """The leases of this worker whose tokens it does not know, as if the answer had come."""
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

    async def test_orphans_of_others_are_theirs(self, backend: Backend) -> None:
        """Another worker's leases are not shown; nor is anything that has been settled or freed."""
        settled, _ = await start(backend, item("a"), item("b"), worker="w1")
        await start_one(backend, item("c"), "w2")
        await apply(backend, succeed(settled))
        assert [lease.id for lease in await backend.unknown_leases("w1", [])] == ["b"]
        await backend.remove_worker("w1")
        assert list(await backend.unknown_leases("w1", [])) == []
        assert list(await backend.unknown_leases("nobody", [])) == []

    async def test_an_orphaned_verdict_is_a_verdict(self, backend: Backend) -> None:
        """As if the answer had come: with what it said."""
        await submit(backend, gate("x", id="a", need=2))
        lease = await doomed_lease(backend)
        found = only(await backend.unknown_leases("w", []))
        assert (found.id, found.token, found.verdict) == ("a", lease.token, "unsatisfiable")
        await apply(backend, die(found))
        assert await status(backend, "a") == "dead"


class LeaseAtSubmitCases:
    """Stored already leased (`lease_to`)."""

    async def test_stored_running(self, backend: Backend) -> None:
        """A live worker, nothing to wait for: `running`, attempt 1, the lease in the answer."""
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

    async def test_a_crash_loses_nothing(self, backend: Backend) -> None:
        """It is freed with its worker, and found through `unknown_leases`, like any other."""
        lease = await start_one(backend, item("a"), "w1")
        assert [one.token for one in await backend.unknown_leases("w1", [])] == [lease.token]
        await backend.remove_worker("w1")
        assert (await claim_one(backend, "w2")).attempt == 2

    async def test_a_dead_worker_gets_nothing(self, subject: Subject) -> None:
        """Unknown, buried or lapsed: stored as usual."""
        await beat(subject.backend, "lapsed", lease=50)
        await beat(subject.backend, "buried")
        await subject.backend.remove_worker("buried")
        await subject.advance(60)
        for worker in ("unknown", "lapsed", "buried"):
            answer = await submit_one(subject.backend, item(worker, lease_to=worker))
            assert (answer.status, answer.lease) == ("ready", None)
        assert sorted(await claim_ids(subject.backend)) == ["buried", "lapsed", "unknown"]

    async def test_what_has_to_wait_is_stored_as_usual(self, backend: Backend) -> None:
        """A delay or a gate: no lease."""
        await beat(backend, "w1")
        later = await submit_one(backend, item("later", delay=100, lease_to="w1"))
        blocked = await submit_one(backend, gate("x", id="blocked", lease_to="w1"))
        assert [(one.status, one.lease) for one in (later, blocked)] == [
            ("scheduled", None),
            ("blocked", None),
        ]
        assert (await state(backend, "later")).attempt == 0

    async def test_an_existing_item_is_not_leased(self, backend: Backend) -> None:
        """The earlier item answers for its key as it stands."""
        await beat(backend, "w1")
        await submit(backend, item("a", key="k"))
        answer = await submit_one(backend, item("b", key="k", lease_to="w1"))
        assert (answer.id, answer.existing, answer.status, answer.lease) == ("a", True, "ready", None)
