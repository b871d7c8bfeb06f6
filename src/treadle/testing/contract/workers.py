"""Workers: heartbeats, lapsed leases, removed workers, lost and unknown leases."""

from __future__ import annotations

from treadle.backend import Backend
from treadle.item import MOST_UNKNOWN, Demand, Heartbeat, Lease
from treadle.worker_info import WorkerInfo, encode_worker_info

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
    item,
    items,
    near,
    only,
    pause,
    resume,
    settle_one,
    start,
    start_one,
    state,
    status,
    submit,
    submit_one,
    succeed,
)
from .check import consistent
from .subject import Subject, needs


def saying(host: str) -> bytes:
    return encode_worker_info(WorkerInfo(host=host))


async def infos(backend: Backend) -> dict[str, WorkerInfo | None]:
    return {worker.id: worker.info for worker in await backend.workers()}


async def unknown(backend: Backend, *held: Lease) -> list[int]:
    """The tokens of other leases that a heartbeat of the worker `w` with these leases names."""
    reply = await backend.beat(Heartbeat(worker="w", lease=LEASE, held=held))
    assert reply.unknown is not None
    return list(reply.unknown)


class HeartbeatCases:
    async def test_the_first_heartbeat_registers_the_worker(self, backend: Backend) -> None:
        """`fresh` says that the worker was not known before."""
        assert (await backend.beat(Heartbeat(worker="w", lease=100))).fresh
        assert not (await backend.beat(Heartbeat(worker="w", lease=100))).fresh
        assert (await backend.claim(Demand(worker="w", limit=1))).alive

    @needs("watching")
    async def test_a_worker_keeps_what_it_said_about_itself(self, backend: Backend) -> None:
        """Until it says something else."""
        await backend.beat(Heartbeat(worker="silent", lease=100))
        await backend.beat(Heartbeat(worker="w", lease=100, info=saying("a")))
        assert await infos(backend) == {"silent": None, "w": WorkerInfo(host="a")}
        await backend.beat(Heartbeat(worker="w", lease=100, types=("work",)))
        assert await infos(backend) == {"silent": None, "w": WorkerInfo(host="a")}
        await backend.beat(Heartbeat(worker="w", lease=100, info=saying("b")))
        assert await infos(backend) == {"silent": None, "w": WorkerInfo(host="b")}
        assert {one.id: one.info for one in (await backend.overview()).workers} == await infos(backend)
        await backend.remove_worker("w")
        await backend.beat(Heartbeat(worker="w", lease=100))
        assert await infos(backend) == {"silent": None, "w": None}
        await backend.beat(Heartbeat(worker="w", lease=100, info=b"\x00\xff{"))  # of another version
        assert await infos(backend) == {"silent": None, "w": None}

    async def test_a_heartbeat_names_the_leases_that_the_worker_does_not(self, backend: Backend) -> None:
        """A worker that does not know them has settled them, and the store has forgotten it."""
        await submit(backend, *items(3))
        first, second, third = await claim(backend)
        tokens = sorted([first.token, second.token, third.token])
        assert await unknown(backend) == tokens
        assert await unknown(backend, first, third) == [second.token]
        assert await unknown(backend, first, second, third) == []
        await apply(backend, succeed(first))
        assert await unknown(backend, first, third) == [second.token]
        assert await unknown(backend, second, third) == []
        await beat(backend, "other")
        assert list((await backend.beat(Heartbeat(worker="other", lease=LEASE))).unknown or ()) == []
        await backend.remove_worker("w")
        assert await unknown(backend, second) == []

    async def test_a_heartbeat_names_the_oldest_unknown_leases(self, backend: Backend) -> None:
        """Some of them, if there are many: those of a claim that is under way are new."""
        await submit(backend, *items(MOST_UNKNOWN + 20))
        old = await claim(backend, 10)
        new = await claim(backend, MOST_UNKNOWN + 10)
        found = await unknown(backend, *new[5:])
        assert found == sorted(lease.token for lease in (*old, *new[:5]))
        assert set(await unknown(backend)) >= {lease.token for lease in old}
        assert len(await unknown(backend)) == MOST_UNKNOWN

    async def test_a_heartbeat_from_elsewhere_registers_no_worker(self, subject: Subject) -> None:
        """It only renews the lease of one that is known: also if it was removed meanwhile."""
        backend, renewal = subject.backend, Heartbeat(worker="w", lease=200, registers=False)
        assert (await backend.beat(renewal)).fresh
        assert not (await backend.claim(Demand(worker="w", limit=1))).alive
        await beat(backend, "w", 100)
        assert not (await backend.beat(renewal)).fresh
        await subject.advance(150)
        assert (await backend.claim(Demand(worker="w", limit=1))).alive
        await backend.remove_worker("w")
        assert (await backend.beat(renewal)).fresh
        assert not (await backend.claim(Demand(worker="w", limit=1))).alive

    @needs("watching")
    async def test_a_heartbeat_from_elsewhere_keeps_what_a_worker_said(self, backend: Backend) -> None:
        """That of a connection of its own, for a worker whose event loop is blocked."""
        await backend.beat(Heartbeat(worker="w", lease=100, info=saying("mine")))
        connection = backend.heartbeat_connection()
        await connection.open()
        try:
            await connection.beat(Heartbeat(worker="w", lease=1000, registers=False))
        finally:
            await connection.close()
        worker = only(await backend.workers())
        assert (worker.info, worker.until) == (WorkerInfo(host="mine"), near(await backend.now() + 1000))

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
        first = await claim_one(backend, "w1")
        await backend.remove_worker("w1")
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
        await pause(backend, "all")
        await pause(backend, "own", tenant="x")
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
        await resume(backend, "all")
        assert await claim_ids(backend) == ["i0"]
        await consistent(backend)

    async def test_an_existing_item_is_not_leased_by_its_key(self, backend: Backend) -> None:
        """The existing item is returned as it is."""
        await beat(backend, "w1")
        await submit(backend, item("a", key="k"))
        answer = await submit_one(backend, item("b", key="k", lease_to="w1"))
        assert (answer.id, answer.existing, answer.status, answer.lease) == ("a", True, "ready", None)
