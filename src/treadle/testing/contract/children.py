"""Children: what a settlement queues, their group, their dependencies and keys."""

from __future__ import annotations

from typing import Any

from treadle.backend import Backend
from treadle.item import OPEN, Contribution

from .build import (
    apply,
    by_id,
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
    only,
    settle,
    settle_one,
    start,
    start_one,
    state,
    status,
    statuses,
    submit,
    submit_one,
    succeed,
    verdicts,
)
from .check import consistent, open_members
from .subject import Subject, needs


class ChildCases:
    async def test_children_join_the_group_of_their_parent(self, backend: Backend) -> None:
        """They are stored in the tenant and group of the item, with the item as `parent`."""
        lease = await start_one(backend, item("root", tenant="acme"))
        await apply(backend, succeed(lease, item("a"), item("b", tenant="other")))
        found = [await state(backend, child, "acme") for child in ("a", "b")]
        assert [(one.group_id, one.parent, one.status) for one in found] == [("root", "root", "ready")] * 2
        assert await open_members(backend, "root", "acme") == 2
        leases = await claim(backend)
        assert {(one.tenant, one.group_id, one.parent) for one in leases} == {("acme", "root", "root")}
        await consistent(backend)

    async def test_grandchildren_join_the_group_of_the_root(self, backend: Backend) -> None:
        """A group is a root and every item queued by its members, transitively."""
        await apply(backend, succeed(await start_one(backend, item("root")), item("child")))
        await apply(backend, succeed(await claim_one(backend), item("grandchild")))
        found = await state(backend, "grandchild")
        assert (found.group_id, found.parent) == ("root", "child")
        assert await open_members(backend, "root") == 1
        await consistent(backend)

    async def test_a_child_may_name_another_parent(self, backend: Backend) -> None:
        """`parent` is the item unless the child names another."""
        lease = await start_one(backend, item("root"))
        await apply(backend, succeed(lease, item("child", parent="author")))
        assert (await state(backend, "child")).parent == "author"

    async def test_children_are_stored_like_submitted_items(self, subject: Subject) -> None:
        """Delays, dependencies and labels have the same effect."""
        lease = await start_one(subject.backend, item("root"))
        later = item("later", delay=100, queue="bulk", lane="left", priority=3, workflow="w", attempts=None)
        await apply(subject.backend, succeed(lease, later, dependent("never", id="blocked"), item("ready")))
        ids = ("later", "blocked", "ready")
        assert await statuses(subject.backend, *ids) == ["scheduled", "blocked", "ready"]
        found = await state(subject.backend, "later")
        assert (found.queue, found.lane, found.priority, found.workflow) == ("bulk", "left", 3, "w")
        assert found.attempts is None
        await subject.advance(101)
        assert sorted(await claim_ids(subject.backend)) == ["later", "ready"]

    async def test_children_inherit_only_tenant_and_group(self, backend: Backend) -> None:
        """The engine writes everything else that a child inherits into the child."""
        fields: dict[str, Any] = {
            "queue": "bulk",
            "lane": "left",
            "priority": 3,
            "workflow": "w",
            "expires_in": 100.0,
        }
        await apply(backend, succeed(await start_one(backend, item("root", **fields)), item("child")))
        found = await state(backend, "child")
        assert (found.queue, found.lane, found.priority) == ("default", "", 0)
        assert (found.workflow, found.deadline) == (None, None)

    async def test_children_may_wait_for_each_other(self, backend: Backend) -> None:
        """Their order in the settlement does not matter."""
        lease = await start_one(backend, item("root"))
        await apply(backend, succeed(lease, dependent("a", "b", id="last"), item("a"), item("b")))
        leases = await claim(backend)
        assert sorted(one.id for one in leases) == ["a", "b"]
        await apply(backend, *(succeed(one) for one in leases))
        assert await claim_ids(backend) == ["last"]
        await consistent(backend)

    async def test_a_child_may_wait_for_its_own_parent(self, backend: Backend) -> None:
        """The parent ends in the same step and is counted in it."""
        lease = await start_one(backend, item("root"))
        await apply(backend, succeed(lease, dependent("root", id="next")))
        assert await status(backend, "next") == "ready"
        assert (await claim_one(backend)).after == ("root",)
        await consistent(backend)

    async def test_a_child_that_waits_for_its_dead_parent_counts_it_as_done(self, backend: Backend) -> None:
        """The death counts as done, not as success."""
        lease = await start_one(backend, item("root"))
        children = dependent("root", id="success"), dependent("root", id="done", counting="done")
        await apply(backend, die(lease, *children))
        assert await verdicts(backend) == {"success": "unsatisfiable"}
        assert await claim_ids(backend) == ["done"]

    async def test_a_dead_item_may_queue_compensation(self, backend: Backend) -> None:
        """A `dead` settlement stores children too: they join the group and keep it open."""
        lease = await start_one(backend, item("root"))
        settled = await apply(backend, die(lease, item("refund")))
        assert settled.effects.ended_groups == ()
        found = await state(backend, "refund")
        assert (found.group_id, found.parent, found.status) == ("root", "root", "ready")
        assert await open_members(backend, "root") == 1
        await consistent(backend)

    async def test_a_doomed_item_may_queue_compensation(self, backend: Backend) -> None:
        """A death by verdict stores children like any other death."""
        await submit(backend, dependent("p", id="root", need=2))
        await apply(backend, die(await doomed_lease(backend), item("refund")))
        assert await statuses(backend, "root", "refund") == ["dead", "ready"]
        assert (await state(backend, "refund")).group_id == "root"
        await consistent(backend)

    async def test_a_settlement_may_queue_a_thousand_children(self, backend: Backend) -> None:
        """They are stored in one step, and the group ends with the last of them."""
        lease = await start_one(backend, item("root"))
        await apply(backend, succeed(lease, *(item(f"c{n}") for n in range(1000))))
        assert await open_members(backend, "root") == 1000
        leases = await claim(backend, 1000)
        assert (await apply(backend, *(succeed(one) for one in leases[1:]))).effects.ended_groups == ()
        assert len((await apply(backend, succeed(leases[0]))).effects.ended_groups) == 1
        await consistent(backend)


class RefusedChildCases:
    async def test_a_child_with_a_taken_id_is_rejected(self, backend: Backend) -> None:
        """`rejected` names the id. Nothing of the settlement happened, and the lease stays valid."""
        await submit(backend, dependent("root", id="next"))
        await end(backend, item("taken"))
        lease = await start_one(backend, item("root"))
        settled = await settle(backend, succeed(lease, item("fine"), item("taken")))
        outcome = only(settled.outcomes)
        assert outcome.verb == "rejected"
        assert outcome.rejected is not None
        assert (outcome.rejected.why, outcome.rejected.ids) == ("duplicate_id", ("taken",))
        assert (settled.effects.released, settled.effects.ended_groups) == ((), ())
        assert await statuses(backend, "root", "fine", "next") == ["running", None, "blocked"]
        assert (await group(backend, "root")).open == 1
        await apply(backend, succeed(lease, item("other")))
        assert await status(backend, "next") == "ready"
        await consistent(backend)

    async def test_two_children_with_one_id_are_rejected(self, backend: Backend) -> None:
        """Both are part of one settlement."""
        lease = await start_one(backend, item("root"))
        outcome = await settle_one(backend, succeed(lease, item("a"), item("a")))
        assert (outcome.verb, outcome.rejected and outcome.rejected.ids) == ("rejected", ("a",))
        assert await statuses(backend, "root", "a") == ["running", None]

    async def test_a_child_with_the_id_of_its_parent_is_rejected(self, backend: Backend) -> None:
        """The parent already has that id."""
        lease = await start_one(backend, item("root"))
        outcome = await settle_one(backend, succeed(lease, item("root")))
        assert (outcome.verb, outcome.rejected and outcome.rejected.ids) == ("rejected", ("root",))
        assert await status(backend, "root") == "running"

    async def test_the_second_settlement_with_the_same_child_is_rejected(self, backend: Backend) -> None:
        """Settlements are applied in order: the first stores the child, the second is rejected."""
        first, second = await start(backend, item("r1"), item("r2"))
        settled = await settle(backend, succeed(first, item("a")), succeed(second, item("a")))
        assert [outcome.verb for outcome in settled.outcomes] == ["applied", "rejected"]
        assert (await state(backend, "a")).group_id == "r1"
        assert await status(backend, "r2") == "running"
        await consistent(backend)

    async def test_children_in_a_cycle_are_rejected(self, backend: Backend) -> None:
        """`cycle`, among the children or through stored items."""
        await submit(backend, dependent("child", id="stored"))
        lease = await start_one(backend, item("root"))
        outcome = await settle_one(backend, succeed(lease, dependent("b", id="a"), dependent("a", id="b")))
        assert outcome.rejected is not None
        assert (outcome.rejected.why, sorted(outcome.rejected.ids)) == ("cycle", ["a", "b"])
        outcome = await settle_one(backend, succeed(lease, dependent("stored", id="child")))
        assert outcome.rejected is not None
        assert (outcome.rejected.why, sorted(outcome.rejected.ids)) == ("cycle", ["child", "stored"])
        assert await statuses(backend, "root", "a", "b", "child") == ["running", None, None, None]
        await consistent(backend)

    async def test_a_rejected_settlement_contributes_nothing(self, backend: Backend) -> None:
        """The value of the group does not change either."""
        await submit(backend, item("taken"))
        lease = await start_one(backend, item("root"))
        await settle(backend, succeed(lease, item("taken"), contribution=Contribution(b"v", final=True)))
        found = await group(backend, "root")
        assert (found.contributed, found.version, found.final) == (False, 0, False)


class KeyedChildCases:
    async def test_a_child_with_a_known_key_is_not_stored(self, backend: Backend) -> None:
        """`existing` names the earlier item, which does not join the group. The group may end."""
        await submit(backend, item("earlier", key="k"))
        lease = await start_one(backend, item("root"))
        settled = await apply(backend, succeed(lease, item("child", key="k")))
        assert only(settled.outcomes).existing == {"child": "earlier"}
        assert not await exists(backend, "child")
        assert (await state(backend, "earlier")).group_id == "earlier"
        assert [closed.id for closed in settled.effects.ended_groups] == ["root"]
        await consistent(backend)

    async def test_a_dependency_on_a_keyed_child_means_the_existing_item(self, backend: Backend) -> None:
        """An `after` that names the child is stored with the id of the existing item."""
        earlier = await start_one(backend, item("earlier", key="k"))
        lease = await start_one(backend, item("root"))
        await apply(backend, succeed(lease, item("child", key="k"), dependent("child", id="next")))
        found = await state(backend, "next")
        assert (found.status, found.after, found.group_id) == ("blocked", ("earlier",), "root")
        await apply(backend, succeed(earlier))
        assert await claim_ids(backend) == ["next"]
        await consistent(backend)

    async def test_the_first_child_of_a_call_takes_the_key(self, backend: Backend) -> None:
        """Within one settlement, and among the settlements of a call."""
        first, second = await start(backend, item("r1"), item("r2"))
        settled = await apply(
            backend,
            succeed(first, item("a", key="k"), item("b", key="k")),
            succeed(second, item("c", key="k")),
        )
        assert [outcome.existing for outcome in settled.outcomes] == [{"b": "a"}, {"c": "a"}]
        assert [closed.id for closed in settled.effects.ended_groups] == ["r2"]
        assert await claim_ids(backend) == ["a"]
        await consistent(backend)

    async def test_a_child_takes_over_the_key_of_an_ended_item(self, backend: Backend) -> None:
        """As for a submitted item: scope `open`, and the group has ended."""
        await end(backend, item("earlier", key="k"))
        lease = await start_one(backend, item("root"))
        settled = await apply(backend, succeed(lease, item("child", key="k")))
        assert not only(settled.outcomes).existing
        assert (await submit_one(backend, item("later", key="k"))).id == "child"

    async def test_an_ended_child_holds_its_key_while_its_group_is_open(self, backend: Backend) -> None:
        """Scope `open` looks at the group of the root."""
        lease = await start_one(backend, item("root"))
        await apply(backend, succeed(lease, item("child", key="k"), item("other")))
        leases = by_id(await claim(backend))
        await apply(backend, succeed(leases["child"]))
        answer = await submit_one(backend, item("later", key="k"))
        assert (answer.id, answer.group_id, answer.status) == ("child", "root", "success")
        await apply(backend, succeed(leases["other"]))
        assert not (await submit_one(backend, item("last", key="k"))).existing

    async def test_a_child_may_match_the_key_of_its_parent(self, backend: Backend) -> None:
        """The parent's group is still open in this step, so the parent holds its key."""
        lease = await start_one(backend, item("root", key="k"))
        settled = await apply(backend, succeed(lease, item("child", key="k"), item("holds")))
        assert only(settled.outcomes).existing == {"child": "root"}

    async def test_an_existing_item_is_not_a_descendant(self, backend: Backend) -> None:
        """Cancelling the item whose child matched its key does not cancel it."""
        await submit(backend, item("earlier", key="k"))
        lease = await start_one(backend, item("root"))
        await apply(backend, succeed(lease, item("child", key="k"), item("own")))
        changed = await backend.cancel(["root"])
        assert [one.id for one in changed.items] == ["own"]
        assert await status(backend, "earlier") == "ready"

    @needs("listing")
    async def test_a_group_counts_members_of_every_open_status(self, backend: Backend) -> None:
        """Blocked, scheduled, ready and running members all count as open."""
        lease = await start_one(backend, item("root"))
        children = item("a"), item("b"), item("c", delay=100), dependent("never", id="d")
        await apply(backend, succeed(lease, *children))
        await claim(backend, 1)
        shown = await statuses(backend, "a", "b", "c", "d")
        assert set(shown) == OPEN
        assert await open_members(backend, "root") == 4
