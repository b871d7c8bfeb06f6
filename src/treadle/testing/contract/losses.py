"""Losses: what becomes of items whose workers die, before and after their attempts have begun."""

from __future__ import annotations

from typing import Any

from treadle.backend import Backend
from treadle.item import Demand, Filter, Lease

from .build import (
    apply,
    beat,
    begin,
    claim,
    claim_ids,
    claim_one,
    defer,
    dependent,
    die,
    group,
    item,
    items,
    near,
    only,
    pause,
    release,
    retry,
    settle_one,
    start,
    start_one,
    state,
    status,
    submit,
    succeed,
    verdicts,
)
from .check import consistent
from .subject import Subject, needs


async def claim_and_die(backend: Backend, worker: str = "mortal") -> Lease:
    """Claim the one ready item, begin its attempt, and remove the worker."""
    lease = await claim_one(backend, worker)
    await begin(backend, [lease])
    assert await backend.remove_worker(worker) == 1
    return lease


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
        """`min(2 ** (losses - 2), 30)` seconds, less up to a half: 1, 2, 4 and so on up to 30."""
        await submit(subject.backend, item("a"))
        await claim_and_die(subject.backend)
        assert await status(subject.backend, "a") == "ready"
        for wait in (1, 2, 4, 8, 16, 30, 30, 30):
            await claim_and_die(subject.backend)
            found = await state(subject.backend, "a")
            assert found.status == "scheduled"
            assert wait / 2 - 0.5 <= found.due_at - await subject.backend.now() <= wait + 0.5
            await subject.advance(wait + 0.1)
        assert (await claim_one(subject.backend)).attempt == 10

    async def test_items_that_were_lost_together_wait_for_different_times(self, backend: Backend) -> None:
        """They do not come back in lockstep."""
        new = items(50)
        await submit(backend, *new)
        for worker in ("w1", "w2"):
            await begin(backend, await claim(backend, 50, worker))
            await backend.remove_worker(worker)
        found = [await state(backend, one.id) for one in new]
        assert {one.status for one in found} == {"scheduled"}
        assert len({round(one.due_at, 2) for one in found}) > 10

    @needs("order")
    async def test_an_item_keeps_its_place_through_many_losses(self, subject: Subject) -> None:
        """Once it is due again, it is claimed before items that were submitted after it."""
        await submit(subject.backend, item("a"))
        for _ in range(3):
            await claim_and_die(subject.backend)
            await subject.advance(3)
        await submit(subject.backend, item("b"))
        assert await claim_ids(subject.backend) == ["a", "b"]

    @needs("watching")
    async def test_items_that_lost_three_workers_in_a_row_are_found(self, subject: Subject) -> None:
        """Without a look at the others, as long as they are open."""
        backend = subject.backend

        async def found(**where: Any) -> list[str]:
            page = await backend.list(Filter(killing=True, **where), limit=1, oldest_first=True, reach=1)
            return [each.id for each in page.items]

        await submit(backend, *items(3, queue="bulk"), item("a", workflow="w"))
        await pause(backend, "bulk")
        for _ in range(2):
            await claim_and_die(backend)
            await subject.advance(3)
        assert await found() == []
        await claim_and_die(backend)
        assert await found() == await found(tenant="default", status=("scheduled",)) == ["a"]
        assert await found(workflow="w") == await found(type="work", queue="default") == ["a"]
        for none in (
            {"status": ("ready", "dead")},
            {"tenant": "acme"},
            {"queue": "bulk"},
            {"reason": "expired"},
        ):
            assert await found(**none) == []
        await subject.advance(3)
        lease = await claim_one(backend)
        assert await found(status=("running",)) == ["a"]
        await begin(backend, [lease])
        await apply(backend, retry(lease))
        assert await found() == []
        for _ in range(3):
            await claim_and_die(backend)
            await subject.advance(3)
        assert await found() == ["a"]
        await apply(backend, succeed(await claim_one(backend)))
        assert await found() == []

    async def test_a_failure_ends_the_row_of_losses(self, subject: Subject) -> None:
        """The next loss counts as the first one."""
        await submit(subject.backend, item("a"))
        await claim_and_die(subject.backend)
        lease = await claim_one(subject.backend)
        await begin(subject.backend, [lease])
        await apply(subject.backend, retry(lease))
        await claim_and_die(subject.backend)
        assert await status(subject.backend, "a") == "ready"
        await claim_and_die(subject.backend)
        assert await status(subject.backend, "a") == "scheduled"

    async def test_a_release_does_not_end_the_row_of_losses(self, subject: Subject) -> None:
        """A worker that gives an item back says nothing about the item."""
        await submit(subject.backend, item("a"))
        await claim_and_die(subject.backend)
        await apply(subject.backend, release(await claim_one(subject.backend)))
        lease = await claim_one(subject.backend)
        assert lease.losses == 1
        await begin(subject.backend, [lease])
        await subject.backend.remove_worker("w")
        assert await status(subject.backend, "a") == "scheduled"

    async def test_losses_and_failures_are_counted_apart(self, subject: Subject) -> None:
        """`attempt` counts starts, `failures` failed attempts, `losses` losses in a row. No number of them
        dooms an item."""
        await submit(subject.backend, item("a"))
        for losses in range(5):
            lease = await claim_and_die(subject.backend)
            assert (lease.attempt, lease.failures, lease.losses) == (losses + 1, 0, losses)
            await subject.advance(100)
        assert await verdicts(subject.backend) == {}
        lease = await claim_one(subject.backend)
        await begin(subject.backend, [lease])
        await apply(subject.backend, retry(lease))
        lease = await claim_one(subject.backend)
        assert (lease.attempt, lease.failures, lease.losses) == (7, 1, 0)
        found = await state(subject.backend, "a")
        assert (found.attempt, found.failures, found.losses) == (7, 1, 0)
        await apply(subject.backend, die(lease))
        found = await state(subject.backend, "a")
        assert (found.attempt, found.failures, found.losses) == (7, 2, 0)
        await consistent(subject.backend)

    async def test_deferrals_are_counted(self, subject: Subject) -> None:
        """For its leases, and for readers while it waits, runs and has ended. No other end of an attempt
        counts as one. A requeued item begins anew."""
        await submit(subject.backend, item("a"))
        for deferrals in range(3):
            lease = await claim_one(subject.backend)
            assert (lease.attempt, lease.deferrals) == (1, deferrals)
            await apply(subject.backend, defer(lease))
            assert (await state(subject.backend, "a")).deferrals == deferrals + 1
        await apply(subject.backend, release(await claim_one(subject.backend)))
        await apply(subject.backend, retry(await claim_one(subject.backend)))
        lease = await claim_one(subject.backend)
        assert (lease.attempt, lease.failures, lease.deferrals) == (2, 1, 3)
        assert (await state(subject.backend, "a")).deferrals == 3
        await apply(subject.backend, die(lease))
        found = await state(subject.backend, "a")
        assert (found.status, found.deferrals) == ("dead", 3)
        await consistent(subject.backend)

    async def test_an_item_that_succeeds_keeps_its_deferrals(self, backend: Backend) -> None:
        """Alone and in a group: its state says how often it was deferred."""
        await submit(backend, item("a"), item("b"))
        for lease in await claim(backend, 2):
            await apply(backend, defer(lease))
        first, second = await claim(backend, 2)
        assert (first.deferrals, second.deferrals) == (1, 1)
        await apply(backend, succeed(first))
        found = await state(backend, first.id)
        assert (found.status, found.deferrals, found.result) == ("success", 1, b"result")
        await backend.cancel([second.id])
        assert (await state(backend, second.id)).deferrals == 1

    @needs("operating")
    async def test_a_requeued_item_has_no_deferrals(self, backend: Backend) -> None:
        """It begins anew, as with its attempts."""
        await submit(backend, item("a"))
        await apply(backend, defer(await claim_one(backend)))
        await apply(backend, die(await claim_one(backend)))
        await backend.requeue(["a"])
        assert (await state(backend, "a")).deferrals == 0
        assert (await claim_one(backend)).deferrals == 0

    async def test_an_ended_item_shows_its_losses(self, backend: Backend) -> None:
        """Those before its last attempt."""
        await submit(backend, item("a"))
        await claim_and_die(backend)
        lease = await claim_one(backend)
        await begin(backend, [lease])
        await apply(backend, succeed(lease))
        found = await state(backend, "a")
        assert (found.status, found.attempt, found.failures, found.losses) == ("success", 2, 0, 1)

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


class BeginCases:
    @needs("begin")
    async def test_a_buffered_lease_has_not_begun(self, backend: Backend) -> None:
        """`Demand.buffered` names its type. Its attempt is counted by `begin`, once."""
        await submit(backend, item("a", type="batch"), item("b", type="plain"))
        await beat(backend, "w")
        demand = Demand(worker="w", limit=10, buffered=frozenset({"batch"}))
        leases = {lease.id: lease for lease in (await backend.claim(demand)).leases}
        assert {id: (lease.begun, lease.attempt) for id, lease in leases.items()} == {
            "a": (False, 1),
            "b": (True, 1),
        }
        assert (await state(backend, "a")).attempt == 0
        assert (await state(backend, "a")).status == "running"
        for _ in range(2):
            assert await backend.begin([leases["a"], leases["b"]]) == {}
            assert [(await state(backend, id)).attempt for id in "ab"] == [1, 1]
        await apply(backend, *(succeed(lease) for lease in leases.values()))
        await consistent(backend)

    @needs("begin")
    async def test_a_lease_that_has_not_begun_is_freed_without_a_trace(self, backend: Backend) -> None:
        """No attempt, no loss, no history: it is ready in its place."""
        await submit(backend, item("a"), item("b"))
        await beat(backend, "w1")
        await backend.claim(Demand(worker="w1", limit=1, buffered=frozenset({"work"})))
        await backend.remove_worker("w1")
        found = await state(backend, "a")
        assert (found.status, found.attempt, found.losses, found.history) == ("ready", 0, 0, ())
        leases = await claim(backend)
        assert [(lease.id, lease.attempt, lease.begun) for lease in leases] == [
            ("a", 1, True),
            ("b", 1, True),
        ]

    @needs("begin")
    async def test_an_item_that_was_lost_has_not_begun_when_it_is_claimed(self, backend: Backend) -> None:
        """It waits for the worker to isolate it. Freed again before that, it counts no second loss."""
        await submit(backend, item("a"))
        await claim_and_die(backend)
        lease = await claim_one(backend, "w2")
        assert (lease.begun, lease.attempt, lease.losses) == (False, 2, 1)
        await backend.remove_worker("w2")
        found = await state(backend, "a")
        assert (found.status, found.attempt, found.losses, len(found.history)) == ("ready", 1, 1, 1)

    @needs("begin")
    async def test_a_lease_that_has_not_begun_can_be_given_back(self, backend: Backend) -> None:
        """The attempt was not counted, so nothing is given back of it."""
        await submit(backend, item("a"))
        await beat(backend, "w")
        buffered = Demand(worker="w", limit=1, buffered=frozenset({"work"}))
        for kind in (release, defer):
            lease = only((await backend.claim(buffered)).leases)
            await apply(backend, kind(lease))
            assert ((await state(backend, "a")).attempt, await status(backend, "a")) == (0, "ready")
        await consistent(backend)

    @needs("begin", "fencing")
    async def test_begin_says_which_leases_are_lost(self, backend: Backend) -> None:
        """As a heartbeat does. The others begin."""
        await submit(backend, item("a"), item("b"))
        await beat(backend, "w")
        demand = Demand(worker="w", limit=10, buffered=frozenset({"work"}))
        first, second = (await backend.claim(demand)).leases
        await backend.cancel([first.id])
        assert await backend.begin([first, second]) == {first.token: "cancelled"}
        assert (await state(backend, second.id)).attempt == 1
        await backend.remove_worker("w")
        assert await backend.begin([second]) == {second.token: "taken"}

    @needs("begin")
    async def test_unknown_leases_says_what_has_begun(self, backend: Backend) -> None:
        """The worker need not begin those again."""
        await submit(backend, item("a"), item("b"))
        await beat(backend, "w")
        demand = Demand(worker="w", limit=10, buffered=frozenset({"work"}))
        first, _ = (await backend.claim(demand)).leases
        await backend.begin([first])
        found = {lease.id: (lease.begun, lease.attempt) for lease in await backend.unknown_leases("w", [])}
        assert found == {"a": (True, 1), "b": (False, 1)}
