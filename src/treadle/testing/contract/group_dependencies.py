"""Items that wait for whole groups, and cycles through groups."""

from __future__ import annotations

import pytest

from treadle.backend import Backend
from treadle.errors import ReferencedError
from treadle.item import Rejected, Submission

from .build import (
    apply,
    by_id,
    claim,
    claim_answer,
    claim_ids,
    claim_one,
    dependent,
    die,
    doomed_lease,
    end,
    exists,
    group,
    item,
    only,
    settle_one,
    start_awaited,
    start_one,
    state,
    statuses,
    submit,
    submit_one,
    submit_refused,
    succeed,
    whole,
)
from .check import consistent
from .repair import kill, requeue, run
from .subject import Subject, needs


class GroupDependencyCases:
    @needs("nested")
    async def test_an_item_waits_for_a_whole_group(self, backend: Backend) -> None:
        """It is released in the step that ends the group, not when the root ends."""
        root = await start_one(backend, item("root"))
        assert (await submit_one(backend, dependent(whole("root"), id="next"))).status == "blocked"
        settled = await apply(backend, succeed(root, item("a"), item("b")))
        assert settled.effects.released == ()
        leases = by_id(await claim(backend))
        assert (await apply(backend, succeed(leases["a"]))).effects.released == ()
        settled = await apply(backend, succeed(leases["b"], item("c")))
        assert settled.effects.released == ()
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert [one.id for one in settled.effects.released] == ["next"]
        assert [one.id for one in settled.effects.ended_groups] == ["root"]
        lease = await claim_one(backend)
        assert (lease.id, lease.after) == ("next", (whole("root"),))
        await consistent(backend)

    @needs("nested")
    async def test_a_group_may_be_a_single_item(self, backend: Backend) -> None:
        """It ends with its item."""
        first = await start_one(backend, item("root"))
        await submit(backend, dependent(whole("root"), id="next"))
        settled = await apply(backend, succeed(first))
        assert [one.id for one in settled.effects.released] == ["next"]

    @needs("nested")
    async def test_the_group_need_not_be_submitted_yet(self, backend: Backend) -> None:
        """It is open, and shown as missing, until it is submitted and has ended."""
        await submit(backend, dependent(whole("root"), id="next"))
        assert (await state(backend, "next")).waiting_for == (whole("root"),)
        root = await start_one(backend, item("root"))
        assert (await state(backend, "next")).waiting_for == ()
        await apply(backend, succeed(root, item("child")))
        assert await run(backend) == ["child", "next"]

    @needs("nested")
    async def test_the_id_of_a_member_names_no_group(self, backend: Backend) -> None:
        """An item that waits for a group of this id waits for what is not submitted."""
        root = await start_one(backend, item("root"))
        await apply(backend, succeed(root, item("member"), dependent(whole("member"), id="next")))
        assert (await state(backend, "next")).waiting_for == (whole("member"),)
        assert await run(backend) == ["member"]
        assert (await state(backend, "next")).waiting_for == (whole("member"),)
        await consistent(backend)

    @needs("nested")
    async def test_the_group_may_have_ended(self, backend: Backend) -> None:
        """A group that has not failed counts at once. One that has failed dooms the item."""
        await end(backend, item("good"))
        root = await start_one(backend, item("big"))
        await apply(backend, succeed(root, item("child")))
        await run(backend)
        await end(backend, item("bad"), how=die)
        answers = await submit(
            backend,
            dependent(whole("good"), id="a"),
            dependent(whole("big"), id="b"),
            dependent(whole("bad"), id="c"),
            dependent(whole("bad"), id="d", counting="done"),
        )
        assert [one.status for one in answers] == ["ready", "ready", "blocked", "ready"]
        leases = (await claim_answer(backend)).leases
        assert {lease.id: lease.verdict for lease in leases} == {
            **dict.fromkeys("abd"),
            "c": "unsatisfiable",
        }
        await consistent(backend)

    @needs("nested")
    async def test_a_failed_group_counts_as_a_dead_prerequisite(self, backend: Backend) -> None:
        """When it ends, not when a member dies."""
        await start_awaited(backend)
        leases = by_id(await claim(backend))
        settled = await apply(backend, die(leases["a"]))
        assert (settled.effects.doomed, settled.effects.released) == (0, ())
        settled = await apply(backend, succeed(leases["b"]))
        assert settled.effects.doomed == 1
        assert [one.id for one in settled.effects.released] == ["any"]
        await consistent(backend)

    @needs("nested")
    async def test_a_group_with_a_tolerated_death_counts_as_success(self, backend: Backend) -> None:
        """The death did not fail the group."""
        root = await start_one(backend, item("root"))
        await submit(backend, dependent(whole("root"), id="next"))
        await apply(backend, succeed(root, item("a"), dependent("a", id="any", counting="done")))
        await apply(backend, die(await claim_one(backend)))
        assert await run(backend) == ["any", "next"]

    @needs("nested", "operating")
    async def test_a_group_that_ends_by_an_operator_counts(self, backend: Backend) -> None:
        """`complete` and `cancel` end groups too."""
        await submit(
            backend,
            item("a"),
            item("b"),
            dependent(whole("a"), id="after-a"),
            dependent(whole("b"), id="after-b"),
        )
        changed = await backend.complete("a", b"")
        assert [one.id for one in changed.effects.released] == ["after-a"]
        changed = await backend.cancel(["b"])
        assert (changed.effects.released, changed.effects.doomed) == ((), 1)

    @needs("nested")
    async def test_items_and_groups_may_be_mixed(self, backend: Backend) -> None:
        """An item and the group of which it is the root are two prerequisites."""
        root = await start_one(backend, item("root"))
        await submit(
            backend,
            dependent("root", whole("root"), id="both"),
            dependent("root", whole("root"), id="one", need=1),
        )
        settled = await apply(backend, succeed(root, item("child")))
        assert [one.id for one in settled.effects.released] == ["one"]
        assert sorted(await run(backend)) == ["both", "child", "one"]

    @needs("nested")
    async def test_a_child_waits_for_another_group(self, backend: Backend) -> None:
        """Its own group waits for it."""
        await submit(backend, item("other", delay=0), item("root"))
        leases = by_id(await claim(backend))
        await apply(backend, succeed(leases["root"], dependent(whole("other"), id="child")))
        settled = await apply(backend, succeed(leases["other"]))
        assert [one.id for one in settled.effects.released] == ["child"]
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert [one.id for one in settled.effects.ended_groups] == ["root"]

    @needs("nested")
    async def test_a_group_that_must_exist_and_does_not_is_refused(self, backend: Backend) -> None:
        """The id of a member that is not a root is no group."""
        await apply(backend, succeed(await start_one(backend, item("root")), item("child")))
        for name, found in (("gone", False), ("child", False), ("root", True)):
            new = dependent(whole(name), id=f"after-{name}", must_exist=(whole(name),))
            answer = only(await backend.submit([Submission((new,))]))
            assert (answer == Rejected("not_found", (whole(name),))) == (not found), answer
        await submit(backend, item("new"), dependent(whole("new"), id="next", must_exist=(whole("new"),)))

    @needs("nested")
    async def test_a_group_of_another_tenant_is_another_group(self, backend: Backend) -> None:
        """It neither exists for this tenant nor releases anything."""
        await submit(backend, item("root", tenant="other"))
        refused = await submit_refused(backend, dependent(whole("root"), id="a", must_exist=(whole("root"),)))
        assert refused == Rejected("not_found", (whole("root"),))
        await submit(backend, dependent(whole("root"), id="b"))
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert settled.effects.released == ()
        assert await statuses(backend, "b") == ["blocked"]

    @needs("nested")
    async def test_a_key_that_answers_means_the_group_of_the_earlier_item(self, backend: Backend) -> None:
        """The item of the same submission is not stored. What waits for its group waits for that group."""
        await apply(backend, succeed(await start_one(backend, item("root")), item("old", key="k")))
        await submit(backend, item("new", key="k"), dependent(whole("new"), id="next"))
        assert (await state(backend, "next")).after == (whole("root"),)
        assert await run(backend) == ["old", "next"]

    @needs("nested", "operating")
    async def test_an_awaited_group_is_not_deleted(self, backend: Backend) -> None:
        """`ReferencedError` names the group. Nothing is removed."""
        root = await start_one(backend, item("root"))
        await apply(backend, succeed(root, item("child")))
        await submit(backend, dependent(whole("root"), id="next"))
        with pytest.raises(ReferencedError) as refusal:
            await backend.delete(["root"])
        assert refusal.value.references == [("root", "next")]
        await run(backend)
        assert len((await backend.delete(["root"])).items) == 2
        await consistent(backend)

    @needs("nested", "operating")
    async def test_cascade_deletes_awaited_groups(self, backend: Backend) -> None:
        """Whole groups, by their names in `after`."""
        await apply(backend, succeed(await start_one(backend, item("root")), item("child")))
        await submit(backend, dependent(whole("root"), id="next"))
        changed = await backend.delete(["next"], cascade=True)
        assert sorted(one.id for one in changed.items) == ["child", "next", "root"]
        await consistent(backend)

    @needs("nested", "operating")
    async def test_a_deleted_group_may_be_waited_for_again(self, backend: Backend) -> None:
        """It counts as not yet submitted."""
        await end(backend, item("root"))
        await backend.delete(["root"])
        assert (await submit_one(backend, dependent(whole("root"), id="next"))).status == "blocked"
        await submit(backend, item("root"))
        assert await run(backend) == ["root", "next"]

    @needs("nested", "operating")
    async def test_members_of_an_awaited_group_are_not_pruned(self, subject: Subject) -> None:
        """The item that waits reads the group's value."""
        backend = subject.backend
        root = await start_one(backend, item("root", keep=10))
        await apply(backend, succeed(root, item("child", keep=10)))
        await run(backend)
        await submit(backend, dependent(whole("root"), id="next", delay=1000, keep=10))
        await subject.advance(100)
        assert await backend.prune() == 0
        await subject.advance(1000)
        assert await run(backend) == ["next"]
        await subject.advance(100)
        assert await backend.prune() == 3
        await consistent(backend)

    @needs("nested")
    async def test_the_root_of_the_group_may_have_been_pruned(self, subject: Subject) -> None:
        """The group has ended all the same. It is not shown as missing."""
        backend = subject.backend
        root = await start_one(backend, item("root", keep=10))
        await apply(backend, succeed(root, item("child")))
        await run(backend)
        await subject.advance(100)
        assert await backend.prune() == 1
        await submit(backend, dependent(whole("root"), "later", id="next"))
        assert (await state(backend, "next")).waiting_for == ("later",)
        await submit(backend, item("later"))
        assert await run(backend) == ["later", "next"]
        await consistent(backend)

    @needs("nested", "operating")
    async def test_a_requeue_brings_back_what_waits_for_the_group(self, backend: Backend) -> None:
        """A member died, the group failed, and what waited for it died."""
        root = await start_one(backend, item("root"))
        await apply(backend, succeed(root, item("a"), dependent("a", id="b")))
        await submit(backend, dependent(whole("root"), id="next"), dependent("next", id="last"))
        assert await kill(backend, "a") == []
        assert await statuses(backend, "a", "b", "next", "last") == ["dead"] * 4
        opened = await requeue(backend, "a")
        assert (opened[0], sorted(opened)) == ("a", ["a", "b", "last", "next"])
        await consistent(backend)
        assert await run(backend) == ["a", "b", "next", "last"]
        await consistent(backend)

    @needs("nested", "operating")
    async def test_a_blocked_item_waits_again_for_a_group_that_opens(self, backend: Backend) -> None:
        """The end of the group did not count for it. One that counted stays counted."""
        await submit(
            backend,
            item("root"),
            item("other"),
            dependent(whole("root"), whole("other"), "never", id="most", need=2),
            dependent(whole("root"), whole("other"), id="any", counting="done"),
        )
        leases = by_id(await claim(backend))
        await apply(backend, die(leases["root"]))
        assert await requeue(backend, "root") == ["root"]
        again = await claim_one(backend)
        settled = await apply(backend, succeed(leases["other"]))
        assert [one.id for one in settled.effects.released] == ["any"]
        settled = await apply(backend, succeed(again))
        assert [one.id for one in settled.effects.released] == ["most"]
        await consistent(backend)

    @needs("nested", "operating")
    async def test_a_doomed_item_is_blocked_again_when_the_group_opens(self, backend: Backend) -> None:
        """It has not been handed out yet."""
        await submit(backend, item("root"), dependent(whole("root"), id="next"))
        await apply(backend, die(await claim_one(backend)))
        assert await requeue(backend, "root") == ["root"]
        assert await run(backend) == ["root", "next"]

    @needs("nested", "operating")
    async def test_a_pruned_group_counts_as_met_for_what_had_run(self, subject: Subject) -> None:
        """The group was removed after the item was released."""
        backend = subject.backend
        await submit(backend, item("root", keep=10), dependent(whole("root"), id="next"))
        await kill(backend, "next")
        await subject.advance(20)
        assert await backend.prune() == 1
        assert await requeue(backend, "next") == ["next"]
        assert await run(backend) == ["next"]


class GroupCycleCases:
    @needs("nested", "batches")
    async def test_a_root_that_waits_for_its_own_group_is_refused(self, backend: Backend) -> None:
        """A group waits for all its members, and so for its root."""
        refused = await submit_refused(backend, dependent(whole("a"), id="a"))
        assert refused == Rejected("cycle", ("a",))

    @needs("nested", "batches")
    async def test_a_child_that_waits_for_its_own_group_is_refused(self, backend: Backend) -> None:
        """Nothing of the settlement happens, and the lease stays valid."""
        lease = await start_one(backend, item("root"))
        outcome = await settle_one(backend, succeed(lease, dependent(whole("root"), id="child")))
        assert (outcome.verb, outcome.rejected) == ("rejected", Rejected("cycle", ("child",)))
        assert not await exists(backend, "child")
        await apply(backend, succeed(lease))

    @needs("nested", "batches")
    async def test_a_child_that_waits_for_what_waits_for_its_group_is_refused(self, backend: Backend) -> None:
        """`next` waits for the group, `last` for `next`, and the child for `last`."""
        lease = await start_one(backend, item("root"))
        await submit(backend, dependent(whole("root"), id="next"), dependent("next", id="last"))
        outcome = await settle_one(backend, succeed(lease, dependent("last", id="child")))
        assert outcome.rejected is not None
        assert outcome.rejected.why == "cycle"
        assert {"child"} <= {*outcome.rejected.ids} <= {"child", "next", "last"}
        await apply(backend, succeed(lease, item("child")))
        assert await run(backend) == ["child", "next", "last"]

    @needs("nested", "batches")
    async def test_a_root_that_a_group_waits_for_and_that_waits_for_it_is_refused(
        self, backend: Backend
    ) -> None:
        """A member waits for an id that is submitted later, and that would wait for the group."""
        lease = await start_one(backend, item("root"))
        await apply(backend, succeed(lease, dependent("late", id="member")))
        refused = await submit_refused(backend, dependent(whole("root"), id="late"))
        assert (refused.why, "late" in refused.ids) == ("cycle", True)
        await submit(backend, item("late"))

    @needs("nested", "batches")
    async def test_a_root_whose_group_is_awaited_by_its_prerequisite_is_refused(
        self, backend: Backend
    ) -> None:
        """The group was waited for before it was submitted."""
        await submit(backend, dependent(whole("late"), id="first"))
        refused = await submit_refused(backend, dependent("first", id="late"))
        assert (refused.why, "late" in refused.ids) == ("cycle", True)
        await submit(backend, item("late"))
        assert await run(backend) == ["late", "first"]

    @needs("nested", "batches")
    async def test_two_groups_that_wait_for_each_other_are_refused(self, backend: Backend) -> None:
        """In one submission, or through their members."""
        refused = await submit_refused(backend, dependent(whole("b"), id="a"), dependent(whole("a"), id="b"))
        assert (refused.why, sorted(refused.ids)) == ("cycle", ["a", "b"])
        await submit(backend, item("x"), item("y"))
        leases = by_id(await claim(backend))
        await apply(backend, succeed(leases["x"], dependent(whole("y"), id="x1")))
        outcome = await settle_one(backend, succeed(leases["y"], dependent(whole("x"), id="y1")))
        assert outcome.rejected is not None
        assert outcome.rejected.why == "cycle"
        await apply(backend, succeed(leases["y"]))
        assert await run(backend) == ["x1"]

    @needs("nested", "batches")
    async def test_a_group_that_has_ended_closes_no_cycle(self, backend: Backend) -> None:
        """Nor does a member that has ended, or was released."""
        lease = await start_one(backend, item("root"))
        await apply(backend, succeed(lease, item("child")))
        await submit(backend, dependent("child", id="next"))
        await run(backend)
        assert (await submit_one(backend, dependent(whole("root"), "next", id="late"))).status == "ready"

    @needs("nested", "batches")
    async def test_a_long_chain_of_groups_closes_no_cycle_until_its_end(self, backend: Backend) -> None:
        """Each of 300 roots waits for the group of the one before. The first may not wait for the last."""
        await submit(
            backend,
            dependent("late", id="n0"),
            *(dependent(whole(f"n{n - 1}"), id=f"n{n}") for n in range(1, 300)),
        )
        refused = await submit_refused(backend, dependent(whole("n299"), id="late"))
        assert (refused.why, "late" in refused.ids) == ("cycle", True)
        await submit(backend, item("late"))
        assert (await claim_ids(backend)) == ["late"]
        await consistent(backend)

    @needs("nested", "batches")
    async def test_a_doomed_item_closes_no_cycle(self, backend: Backend) -> None:
        """It waits for nothing any more."""
        lease = await start_one(backend, item("root"))
        await end(backend, item("dead"), how=die)
        await submit(backend, dependent("dead", whole("root"), id="doomed"))
        await apply(backend, succeed(lease, dependent("doomed", id="child", counting="done")))
        await apply(backend, die(await doomed_lease(backend)))
        assert await run(backend) == ["child"]
        assert (await group(backend, "root")).open == 0
