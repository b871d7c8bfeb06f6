"""Repair: what a requeue finds, how far it reaches, and what it does about removed prerequisites."""

from __future__ import annotations

import pytest

from treadle.backend import Backend
from treadle.errors import ReferencedError
from treadle.item import Filter

from .build import (
    apply,
    cancel,
    claim,
    claim_ids,
    claim_one,
    dependent,
    die,
    doomed_lease,
    end,
    exists,
    group,
    item,
    near,
    only,
    state,
    statuses,
    submit,
    succeed,
)
from .check import consistent
from .repair import kill, requeue, run, start_workflow
from .subject import Subject, needs


class RepairReachCases:
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
        """Three hundred items, each waiting for the one before, in the reverse order."""
        chain = [item("n0"), *(dependent(f"n{n - 1}", id=f"n{n}") for n in range(1, 300))]
        await submit(backend, *chain)
        ids = [one.id for one in chain]
        await backend.cancel(ids)
        assert await requeue(backend, *reversed(ids), cancelled=True) == ids[::-1]
        assert await claim_ids(backend) == ["n0"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_a_long_chain_of_deaths_is_revived(self, backend: Backend) -> None:
        """Three hundred items died unsatisfiable, one because of the other."""
        chain = [item("n0"), *(dependent(f"n{n - 1}", id=f"n{n}") for n in range(1, 300))]
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
