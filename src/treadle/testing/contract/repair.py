"""Repair: a requeued item waits for its prerequisites again, and brings back what died because of it."""

from __future__ import annotations

import pytest

from treadle.backend import Backend
from treadle.errors import ReferencedError
from treadle.item import Filter, Item, Lease

from .build import (
    apply,
    by_id,
    cancel,
    claim,
    claim_answer,
    claim_ids,
    claim_one,
    contribute,
    dependent,
    die,
    doomed_lease,
    end,
    exists,
    group,
    item,
    near,
    only,
    settle_one,
    start_one,
    state,
    statuses,
    submit,
    succeed,
)
from .check import consistent
from .subject import Subject, needs


async def kill(backend: Backend, *ids: str) -> list[str]:
    """Run all that can run, until nothing is left. The items with these ids die; the other items succeed.
    Return the ids of the successes, in their order."""
    done: list[str] = []
    while leases := (await claim_answer(backend)).leases:
        dying = [lease for lease in leases if lease.verdict or lease.id in ids]
        done += [lease.id for lease in leases if lease not in dying]
        await apply(backend, *(die(lease) if lease in dying else succeed(lease) for lease in leases))
    return done


async def run(backend: Backend) -> list[str]:
    """Run all that can run, until nothing is left. Nothing may be doomed. Return the ids in their order."""
    done: list[str] = []
    while leases := await claim(backend):
        await apply(backend, *(succeed(lease) for lease in leases))
        done += [lease.id for lease in leases]
    return done


async def requeue(backend: Backend, *ids: str, alone: bool = False, cancelled: bool = False) -> list[str]:
    """Requeue these items. Return the ids of all items that are open again, as the answer has them."""
    changed = await backend.requeue(ids, alone=alone, cancelled=cancelled)
    return [one.id for one in changed.items]


async def start_workflow(backend: Backend, *children: Item) -> Lease:
    """Store a workflow: the root `root` has ended, and its children are open."""
    root = await start_one(backend, item("root"))
    await apply(backend, succeed(root, *children))
    return root


class RepairCases:
    @needs("operating", "nested")
    async def test_a_repaired_workflow_runs_in_order(self, backend: Backend) -> None:
        """`charge` dies, and `email` with it. Once `charge` is requeued, `email` waits for it again."""
        await start_workflow(backend, item("charge"), dependent("charge", id="email"))
        assert await kill(backend, "charge") == []
        assert await statuses(backend, "charge", "email") == ["dead", "dead"]
        changed = await backend.requeue(["charge"])
        assert [(one.id, one.status, one.reason) for one in changed.items] == [
            ("charge", "dead", "aborted"),
            ("email", "dead", "unsatisfiable"),
        ]
        assert await statuses(backend, "charge", "email") == ["ready", "blocked"]
        found = await group(backend, "root")
        assert (found.open, found.failed, found.ended_at) == (2, 0, None)
        await consistent(backend)
        assert await run(backend) == ["charge", "email"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_a_group_that_is_repaired_ends_once_more(self, backend: Backend) -> None:
        """Not before the dependent that came back has ended."""
        await start_workflow(backend, item("charge"), dependent("charge", id="email"))
        await kill(backend, "charge")
        await requeue(backend, "charge")
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert settled.effects.ended_groups == ()
        assert [one.id for one in settled.effects.released] == ["email"]
        settled = await apply(backend, contribute(await claim_one(backend), b"sent"))
        assert [(one.id, one.value) for one in settled.effects.ended_groups] == [("root", b"sent")]

    @needs("operating", "nested")
    async def test_a_requeued_dependent_waits_for_what_is_open(self, backend: Backend) -> None:
        """Both are requeued, in either order. The dependent does not run before its prerequisite."""
        await submit(backend, item("charge"), dependent("charge", id="email"))
        for order in (["charge", "email"], ["email", "charge"]):
            await kill(backend, "charge")
            assert await requeue(backend, *order) == order
            assert await claim_ids(backend) == ["charge"]
            await backend.remove_worker("w")
            await consistent(backend)

    @needs("operating", "nested")
    async def test_an_item_that_cannot_run_stays_as_it_was(self, backend: Backend) -> None:
        """`charge` is dead, so `email` could only die again."""
        await submit(backend, item("charge"), dependent("charge", id="email"))
        await kill(backend, "charge")
        before = await state(backend, "email")
        assert await requeue(backend, "email") == []
        assert await state(backend, "email") == before
        assert (await backend.requeue(Filter(reason="unsatisfiable"))).items == ()
        assert await statuses(backend, "charge", "email") == ["dead", "dead"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_an_item_whose_prerequisites_are_met_runs_at_once(self, backend: Backend) -> None:
        """It had run before, and died of its own failure."""
        await submit(backend, item("charge"), dependent("charge", id="email"))
        assert await kill(backend, "email") == ["charge"]
        assert await requeue(backend, "email") == ["email"]
        assert await run(backend) == ["email"]

    @needs("operating", "nested")
    async def test_a_diamond_comes_back_as_a_whole(self, backend: Backend) -> None:
        """Each item runs exactly once."""
        await start_workflow(
            backend,
            item("top"),
            dependent("top", id="left"),
            dependent("top", id="right"),
            dependent("left", "right", id="bottom"),
        )
        await kill(backend, "top")
        assert (await group(backend, "root")).failed == 4
        opened = await requeue(backend, "top")
        assert (opened[0], sorted(opened)) == ("top", ["bottom", "left", "right", "top"])
        assert await statuses(backend, "top", "left", "right", "bottom") == ["ready", *["blocked"] * 3]
        done = await run(backend)
        assert (done[0], sorted(done[1:3]), done[3]) == ("top", ["left", "right"], "bottom")
        assert (await group(backend, "root")).failed == 0
        await consistent(backend)

    @needs("operating", "nested")
    async def test_half_a_diamond_stays_dead(self, backend: Backend) -> None:
        """Two prerequisites died. The dependent comes back when both are open or have succeeded."""
        await submit(backend, item("a"), item("b"), dependent("a", "b", id="c"), dependent("c", id="d"))
        await kill(backend, "a", "b")
        assert await requeue(backend, "a") == ["a"]
        assert await statuses(backend, "c", "d") == ["dead", "dead"]
        assert await run(backend) == ["a"]
        assert await requeue(backend, "b") == ["b", "c", "d"]
        assert await run(backend) == ["b", "c", "d"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_dependents_that_have_run_stay_ended(self, backend: Backend) -> None:
        """They count any end, or needed fewer. So do dependents that died of another reason."""
        await submit(
            backend,
            item("a"),
            item("ok"),
            dependent("a", id="any", counting="done"),
            dependent("a", "ok", id="one", need=1),
            dependent("a", id="failed", counting="done"),
        )
        await kill(backend, "a", "failed")
        assert await statuses(backend, "any", "one", "failed") == ["success", "success", "dead"]
        assert await requeue(backend, "a") == ["a"]
        assert await run(backend) == ["a"]

    @needs("operating", "nested")
    async def test_alone_leaves_dependents_dead(self, backend: Backend) -> None:
        """They can be requeued later, on their own."""
        await submit(backend, item("charge"), dependent("charge", id="email"), dependent("email", id="log"))
        await kill(backend, "charge")
        assert await requeue(backend, "charge", alone=True) == ["charge"]
        assert await run(backend) == ["charge"]
        assert await statuses(backend, "email", "log") == ["dead", "dead"]
        assert await requeue(backend, "email") == ["email", "log"]
        assert await run(backend) == ["email", "log"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_a_dependent_between_two_requeued_items_stays_dead_with_alone(
        self, backend: Backend
    ) -> None:
        """So the item behind it cannot run, and stays as it was."""
        await submit(backend, item("a"), dependent("a", id="b"), dependent("b", id="c"))
        await kill(backend, "a")
        assert await requeue(backend, "c", "a", alone=True) == ["a"]
        assert await statuses(backend, "b", "c") == ["dead", "dead"]
        await kill(backend, "a")
        assert await requeue(backend, "c", "a") == ["c", "a", "b"]
        assert await run(backend) == ["a", "b", "c"]

    @needs("operating", "nested")
    async def test_a_blocked_dependent_waits_again(self, backend: Backend) -> None:
        """The death did not count for it. It needs two of three, and one of those left died meanwhile."""
        await submit(backend, item("a"), item("b"), item("c"), dependent("a", "b", "c", id="most", need=2))
        leases = by_id(await claim(backend))
        await apply(backend, die(leases["a"]))
        await requeue(backend, "a")
        await apply(backend, die(leases["b"]))
        assert (await apply(backend, succeed(leases["c"]))).effects.released == ()
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert [one.id for one in settled.effects.released] == ["most"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_a_death_that_counted_stays_counted(self, backend: Backend) -> None:
        """The second end of the prerequisite is not counted."""
        await submit(backend, item("a"), item("b"), dependent("a", "b", id="any", counting="done"))
        leases = by_id(await claim(backend))
        await apply(backend, die(leases["a"]))
        await requeue(backend, "a")
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert settled.effects.released == ()
        settled = await apply(backend, succeed(leases["b"]))
        assert [one.id for one in settled.effects.released] == ["any"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_a_doomed_dependent_is_blocked_again(self, backend: Backend) -> None:
        """It has not been handed out yet. It had not ended, so the answer does not name it."""
        await submit(backend, item("a"), dependent("a", id="b", expires_in=1000))
        await apply(backend, die(await claim_one(backend)))
        assert await requeue(backend, "a") == ["a"]
        assert await statuses(backend, "a", "b") == ["ready", "blocked"]
        assert (await state(backend, "b")).deadline == near(await backend.now() + 1000)
        assert await run(backend) == ["a", "b"]
        await consistent(backend)

    @needs("operating", "nested", "fencing")
    async def test_a_lease_with_a_verdict_is_lost(self, backend: Backend) -> None:
        """The dependent was handed out to be ended, and its condition can be met again."""
        await submit(backend, item("a"), dependent("a", id="b"))
        await apply(backend, die(await claim_one(backend)))
        doomed = await doomed_lease(backend)
        await requeue(backend, "a")
        outcome = await settle_one(backend, die(doomed))
        assert (outcome.verb, outcome.loss) == ("stale", "taken")
        assert await run(backend) == ["a", "b"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_a_doomed_dependent_with_a_deadline_may_still_expire(self, subject: Subject) -> None:
        """It is blocked again, and its deadline counts."""
        backend = subject.backend
        await submit(backend, item("a"), dependent("a", id="b", expires_in=50))
        await apply(backend, die(await claim_one(backend)))
        await requeue(backend, "a")
        await subject.advance(60)
        leases = by_id((await claim_answer(backend)).leases)
        assert (leases["a"].verdict, leases["b"].verdict) == (None, "expired")

    @needs("operating", "nested")
    async def test_a_pruned_prerequisite_counts_as_met_for_what_had_run(self, subject: Subject) -> None:
        """The item was released once, and its prerequisite was removed since."""
        backend = subject.backend
        await submit(backend, item("charge", keep=10), dependent("charge", id="email"))
        await kill(backend, "email")
        await subject.advance(20)
        assert await backend.prune() == 1
        assert await requeue(backend, "email") == ["email"]
        assert await run(backend) == ["email"]

    @needs("operating", "nested")
    async def test_a_removed_prerequisite_is_open_for_what_had_not_run(self, backend: Backend) -> None:
        """It died unsatisfiable. Now it waits for an id that is not submitted, as a new item would."""
        await submit(backend, item("charge"), dependent("charge", id="email"))
        await kill(backend, "charge")
        await backend.delete(["charge"])
        assert await requeue(backend, "email") == ["email"]
        assert (await state(backend, "email")).waiting_for == ("charge",)
        await submit(backend, item("charge"))
        assert await run(backend) == ["charge", "email"]

    @needs("operating", "nested")
    async def test_an_item_that_expired_while_blocked_waits_again(self, subject: Subject) -> None:
        """Without a deadline. Its prerequisite is still open."""
        backend = subject.backend
        await submit(backend, item("slow", delay=100), dependent("slow", id="b", expires_in=50))
        await subject.advance(60)
        await apply(backend, die(await doomed_lease(backend)))
        assert await requeue(backend, "b") == ["b"]
        found = await state(backend, "b")
        assert (found.status, found.deadline) == ("blocked", None)
        await subject.advance(100)
        assert await run(backend) == ["slow", "b"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_at_least_is_counted_anew(self, backend: Backend) -> None:
        """All three died. Two are requeued, and the item needs two."""
        await submit(backend, *(item(id) for id in "abc"), dependent("a", "b", "c", id="most", need=2))
        await kill(backend, "a", "b", "c")
        assert await requeue(backend, "a") == ["a"]
        assert await requeue(backend, "b") == ["b", "most"]
        settled = await apply(backend, *(succeed(lease) for lease in await claim(backend)))
        assert [one.id for one in settled.effects.released] == ["most"]

    @needs("operating", "nested")
    async def test_a_requeued_item_that_counts_any_end_waits_again(self, backend: Backend) -> None:
        """Its prerequisite is opened by the same call."""
        await submit(backend, item("a"), dependent("a", id="any", counting="done"))
        await kill(backend, "a", "any")
        assert await requeue(backend, "any", "a") == ["any", "a"]
        assert await statuses(backend, "any", "a") == ["blocked", "ready"]
        assert await run(backend) == ["a", "any"]

    @needs("operating", "nested")
    async def test_cancelled_items_are_requeued_if_asked_for(self, backend: Backend) -> None:
        """With what died because they were cancelled. Other calls skip them."""
        await submit(backend, item("a"), dependent("a", id="b"))
        await end(backend, item("other"), how=cancel)
        await backend.cancel(["a"])
        await kill(backend)
        assert await requeue(backend, "a") == []
        assert (await backend.requeue(Filter(status=("cancelled",)))).items == ()
        assert await requeue(backend, "a", cancelled=True) == ["a", "b"]
        found = await state(backend, "a")
        assert (found.status, found.ended_at, found.worker) == ("ready", None, None)
        assert (await group(backend, "a")).cancelled is None
        assert await run(backend) == ["a", "b"]
        changed = await backend.requeue(Filter(), cancelled=True)
        assert [one.id for one in changed.items] == ["other"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_an_item_that_was_cancelled_while_blocked_waits_again(self, backend: Backend) -> None:
        """It does not run before its prerequisite."""
        await submit(backend, item("a"), dependent("a", id="b"))
        await backend.cancel(["b"])
        assert await requeue(backend, "b", cancelled=True) == ["b"]
        assert await run(backend) == ["a", "b"]

    @needs("operating", "nested")
    async def test_a_cancelled_group_comes_back_as_a_whole(self, backend: Backend) -> None:
        """A filter with its group finds all members."""
        await start_workflow(backend, item("a"), dependent("a", id="b"), item("c"))
        await backend.cancel(["root"])
        changed = await backend.requeue(Filter(group_id="root"), cancelled=True)
        assert sorted(one.id for one in changed.items) == ["a", "b", "c"]
        assert (await group(backend, "root")).open == 3
        done = await run(backend)
        assert (sorted(done), done[-1]) == (["a", "b", "c"], "b")

    @needs("operating", "nested")
    async def test_a_long_chain_of_cancelled_items_comes_back(self, backend: Backend) -> None:
        """A thousand items, each waiting for the one before, in the reverse order."""
        chain = [item("n0"), *(dependent(f"n{n - 1}", id=f"n{n}") for n in range(1, 1000))]
        await submit(backend, *chain)
        ids = [one.id for one in chain]
        await backend.cancel(ids)
        assert await requeue(backend, *reversed(ids), cancelled=True) == ids[::-1]
        assert await claim_ids(backend) == ["n0"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_a_long_chain_of_deaths_is_revived(self, backend: Backend) -> None:
        """A thousand items died unsatisfiable, one because of the other."""
        chain = [item("n0"), *(dependent(f"n{n - 1}", id=f"n{n}") for n in range(1, 1000))]
        await submit(backend, *chain)
        await kill(backend, "n0")
        assert await requeue(backend, "n0") == [one.id for one in chain]
        assert await claim_ids(backend) == ["n0"]
        found = await backend.get([one.id for one in chain[1:]])
        assert {one and one.status for one in found} == {"blocked"}
        await consistent(backend)

    @needs("operating", "nested")
    async def test_repair_reaches_other_groups(self, backend: Backend) -> None:
        """A dependent in another group comes back, and its group opens with it."""
        await submit(backend, item("a"))
        await submit(backend, dependent("a", id="b"))
        await kill(backend, "a")
        assert await requeue(backend, "a") == ["a", "b"]
        assert (await group(backend, "b")).open == 1

    @needs("operating", "nested")
    async def test_repair_stays_within_the_tenant(self, backend: Backend) -> None:
        """Items of another tenant with the same ids stay dead."""
        for tenant in ("one", "two"):
            await submit(backend, item("a", tenant=tenant), dependent("a", id="b", tenant=tenant))
        await kill(backend, "a")
        changed = await backend.requeue(["a", "b"], tenant="one")
        assert [(one.id, one.tenant) for one in changed.items] == [("a", "one"), ("b", "one")]
        assert await statuses(backend, "a", "b", tenant="two") == ["dead", "dead"]
        assert (await backend.requeue(["a"], tenant="three")).items == ()
        changed = await backend.requeue(Filter(), tenant="two")
        assert [(one.id, one.tenant) for one in changed.items] == [("a", "two"), ("b", "two")]
        assert await statuses(backend, "a", "b", tenant="one") == ["ready", "blocked"]

    @needs("operating", "nested")
    async def test_a_filter_brings_back_dependents_that_it_does_not_find(self, backend: Backend) -> None:
        """Those asked for come first in the answer. The limit does not count the others."""
        await submit(
            backend, *(item(id, "pay") for id in "abc"), *(dependent(id, id=f"{id}2") for id in "abc")
        )
        await kill(backend, "a", "b", "c")
        changed = await backend.requeue(Filter(type="pay"), limit=2)
        ids = [one.id for one in changed.items]
        assert (ids[:2], sorted(ids[2:])) == (["a", "b"], ["a2", "b2"])
        assert await statuses(backend, "c", "c2") == ["dead", "dead"]

    @needs("operating", "nested")
    async def test_a_redrive_brings_back_dependents(self, subject: Subject) -> None:
        """The redriven item is delayed. Its dependents wait for it."""
        backend = subject.backend
        await submit(backend, item("a"), dependent("a", id="b"))
        await kill(backend, "a")
        changed = await backend.requeue(["a"], redrives=1, backoff=100)
        assert [one.id for one in changed.items] == ["a", "b"]
        assert await statuses(backend, "a", "b") == ["scheduled", "blocked"]
        await subject.advance(101)
        await kill(backend, "a")
        assert (await backend.requeue(Filter(), redrives=1, backoff=100)).items == ()
        assert await statuses(backend, "a", "b") == ["dead", "dead"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_a_dependent_that_comes_back_is_due_when_it_was(self, subject: Subject) -> None:
        """It was to run at a certain time, which has not come."""
        backend = subject.backend
        later = await backend.now() + 1000
        await submit(backend, item("a"), dependent("a", id="b", run_at=later))
        await kill(backend, "a")
        await requeue(backend, "a")
        assert await run(backend) == ["a"]
        assert (await state(backend, "b")).status == "scheduled"
        assert (await state(backend, "b")).due_at == near(later)
        await subject.advance(1001)
        assert await run(backend) == ["b"]

    @needs("operating", "nested")
    async def test_an_item_may_be_repaired_more_than_once(self, backend: Backend) -> None:
        """It dies again, and its dependents with it. Nothing runs twice."""
        await start_workflow(backend, item("a"), dependent("a", id="b"), dependent("b", id="c"))
        for _ in range(3):
            assert await kill(backend, "a") == []
            assert await requeue(backend, "a") == ["a", "b", "c"]
        assert await run(backend) == ["a", "b", "c"]
        assert await requeue(backend, "a", "b", "c") == []
        assert (await group(backend, "root")).open == 0

    @needs("operating", "nested")
    async def test_a_dependent_of_a_requeued_item_may_queue_children(self, backend: Backend) -> None:
        """They join the group that is open again."""
        await start_workflow(backend, item("a"), dependent("a", id="b"))
        await kill(backend, "a")
        await requeue(backend, "a")
        await apply(backend, succeed(await claim_one(backend)))
        await apply(backend, succeed(await claim_one(backend), item("child")))
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert only(settled.effects.ended_groups).id == "root"
        assert await exists(backend, "child")

    @needs("operating", "nested")
    async def test_a_requeued_prerequisite_is_not_deleted(self, backend: Backend) -> None:
        """Dependents that are blocked again refer to it again."""
        await submit(backend, item("a"), dependent("a", id="b"))
        await kill(backend, "a")
        await requeue(backend, "a")
        with pytest.raises(ReferencedError):
            await backend.delete(["a"])
