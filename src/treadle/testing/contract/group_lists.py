"""Lists of groups and of workflows: which are listed, how they stand, and page by page."""

from __future__ import annotations

import pytest

from treadle.backend import Backend
from treadle.errors import InputError
from treadle.item import MOST_COUNTED, GroupFilter, GroupOutcome, GroupSummary, Lease, Settlement

from .build import (
    apply,
    by_id,
    cancel,
    claim,
    claim_one,
    contribute,
    die,
    end,
    group,
    item,
    items,
    near,
    only,
    start,
    start_one,
    submit,
    succeed,
)
from .nested_groups import nested
from .retention import DAY, lose_root
from .subject import Subject, needs


async def grow(backend: Backend, root: str, *children: str, **fields: object) -> dict[str, Lease]:
    """A root succeeds and queues these items, which start."""
    lease = await start_one(backend, item(root, **fields))  # type: ignore[arg-type]
    await apply(backend, succeed(lease, *(item(child, workflow=lease.workflow) for child in children)))
    return by_id(await claim(backend))


async def listed(backend: Backend, *outcome: GroupOutcome, **where: object) -> list[str]:
    filter = GroupFilter(outcome=outcome, **where)  # type: ignore[arg-type]
    return [one.id for one in (await backend.groups(filter)).items]


async def listed_workflows(backend: Backend, *outcome: GroupOutcome, **where: object) -> list[str]:
    filter = GroupFilter(outcome=outcome, **where)  # type: ignore[arg-type]
    return [one.id for one in (await backend.workflows(filter)).items]


async def one_group(backend: Backend) -> GroupSummary:
    return only((await backend.groups(GroupFilter())).items)


async def one_workflow(backend: Backend) -> GroupSummary:
    return only((await backend.workflows(GroupFilter())).items)


class GroupListCases:
    @needs("watching")
    async def test_a_group_is_listed_from_its_second_member_on(self, backend: Backend) -> None:
        """An item that is alone is not, also if it contributes a value."""
        await end(backend, item("alone"))
        await apply(backend, contribute(await start_one(backend, item("valued")), b"value", final=True))
        assert await listed(backend) == []
        leases = await grow(backend, "root", "a", "b", type="flow")
        found = await one_group(backend)
        assert (found.id, found.tenant, found.type) == ("root", "default", "flow")
        assert (found.outcome, found.open, found.total, found.done, found.failed) == ("running", 2, 3, 1, 0)
        assert (found.ended_at, found.death, found.capped) == (None, None, False)
        assert found.queued_at == near(await backend.now())
        await apply(backend, succeed(leases["a"], item("c")))
        found = await one_group(backend)
        assert (found.open, found.total, found.done) == (2, 4, 2)
        assert (await group(backend, "root")).total == 4
        assert (await group(backend, "alone")).total == 1

    @needs("watching", "operating")
    async def test_outcomes_of_groups(self, backend: Backend) -> None:
        """As `handle.group()` says it. A requeue opens the group again."""
        for root, how in (("good", succeed), ("bad", die), ("gone", cancel)):
            leases = await grow(backend, root, f"{root}-1", f"{root}-2")
            await apply(backend, how(leases[f"{root}-1"]), succeed(leases[f"{root}-2"]))
        await grow(backend, "open", "open-1")
        valued = await grow(backend, "valued", "valued-1", "valued-2")
        await apply(backend, contribute(valued["valued-1"], b"value", final=True), die(valued["valued-2"]))
        partial = await grow(backend, "partial", "partial-1", "partial-2")
        await apply(backend, contribute(partial["partial-1"], b"value"), cancel(partial["partial-2"]))
        assert await listed(backend) == ["partial", "valued", "open", "gone", "bad", "good"]
        assert await listed(backend, "running") == ["open"]
        assert await listed(backend, "failed") == ["bad"]
        assert await listed(backend, "cancelled") == ["gone"]
        assert await listed(backend, "succeeded") == ["partial", "valued", "good"]
        assert await listed(backend, "failed", "cancelled") == ["gone", "bad"]
        await backend.requeue(["bad-1"])
        assert await listed(backend, "running") == ["open", "bad"]
        assert await listed(backend, "failed") == []
        await apply(backend, succeed(await claim_one(backend)))
        assert await listed(backend, "succeeded") == ["partial", "valued", "bad", "good"]
        await backend.delete(["bad", "open"], cascade=True)
        assert await listed(backend) == ["partial", "valued", "gone", "good"]

    @needs("watching", "operating")
    async def test_a_group_in_a_list_has_its_first_death(self, subject: Subject) -> None:
        """Also while it is open. Deaths that were requeued do not count."""
        backend = subject.backend
        leases = await grow(backend, "root", "a", "b", "c")
        await apply(backend, die(leases["b"]))
        await subject.advance(10)
        await apply(backend, die(leases["a"]))
        found = await one_group(backend)
        assert (found.outcome, found.open, found.failed) == ("running", 1, 2)
        assert found.death is not None
        assert (found.death.id, found.death.type, found.death.error) == ("b", "work", "Oops: no")
        await apply(backend, succeed(leases["c"]))
        await backend.requeue(["b"])
        again = await one_group(backend)
        assert (again.failed, again.death and again.death.id) == (1, "a")
        await backend.requeue(["a"])
        assert ((await one_group(backend)).failed, (await one_group(backend)).death) == (0, None)

    @needs("watching")
    async def test_a_root_that_died_is_the_first_death_of_its_group(self, backend: Backend) -> None:
        """Its group may have members: those that its settlement queued."""
        await apply(backend, die(await start_one(backend, item("root")), item("after")))
        found = await one_group(backend)
        assert (found.outcome, found.total, found.failed) == ("running", 2, 1)
        assert found.death is not None
        assert found.death.id == "root"

    @needs("watching", "nested")
    async def test_nested_groups_are_not_listed(self, backend: Backend) -> None:
        """They are a part of the outer group, as one member: the item that closes them."""
        root = await start_one(backend, item("root"))
        await apply(backend, succeed(root, *nested("g", item("a"), item("b"), item("c"))))
        found = await one_group(backend)
        assert (found.id, found.open, found.total) == ("root", 1, 2)
        assert (await group(backend, "g")).total == 3

    @needs("watching", "steps")
    async def test_children_of_a_suspended_item_make_a_group(self, backend: Backend) -> None:
        """It runs on, as a member."""
        lease = await start_one(backend, item("root"))
        await apply(backend, Settlement(lease=lease, kind="suspend", children=(item("child"),)))
        found = await one_group(backend)
        assert (found.id, found.open, found.total) == ("root", 2, 2)

    @needs("watching", "operating")
    async def test_a_group_without_its_root_is_listed(self, subject: Subject) -> None:
        """By the id and the type of the root. When it was submitted is not known. What was pruned counts."""
        await lose_root(subject)
        found = await one_group(subject.backend)
        assert (found.id, found.type, found.outcome) == ("root", "work", "failed")
        assert (found.total, found.open, found.failed, found.queued_at) == (2, 0, 1, None)
        assert found.death is not None
        assert found.death.id == "bad"
        assert (await group(subject.backend, "root")).total == 2
        await subject.backend.delete(["root"])
        assert await listed(subject.backend) == []

    @needs("watching", "operating")
    async def test_a_group_is_listed_until_it_is_pruned(self, subject: Subject) -> None:
        """With its last member."""
        backend = subject.backend
        root = await start_one(backend, item("root", keep=1))
        await apply(backend, succeed(root, item("a", keep=1)))
        await apply(backend, succeed(await claim_one(backend)))
        assert await listed(backend, "succeeded") == ["root"]
        await subject.advance(DAY)
        assert await backend.prune() == 2
        assert await listed(backend) == []

    @needs("watching")
    async def test_groups_by_tenant_type_and_time(self, subject: Subject) -> None:
        """The conditions are those of the root."""
        backend = subject.backend
        await grow(backend, "x", "x1", type="a")
        await subject.advance(100)
        later = await backend.now()
        await subject.advance(100)
        await grow(backend, "y", "y1", type="b", tenant="other")
        await grow(backend, "z", "z1", type="b")
        assert await listed(backend, tenant="other") == ["y"]
        assert await listed(backend, tenant="third") == []
        assert await listed(backend, type="b") == ["z", "y"]
        assert await listed(backend, "running", type="b", tenant="default") == ["z"]
        assert await listed(backend, since=later) == ["z", "y"]
        assert await listed(backend, until=later) == ["x"]

    @needs("watching")
    async def test_groups_come_in_pages(self, backend: Backend) -> None:
        """Groups that come and go do not move a cursor."""
        for n in range(5):
            await grow(backend, f"g{n}", f"m{n}")
        first = await backend.groups(GroupFilter(), limit=2)
        assert [one.id for one in first.items] == ["g4", "g3"]
        await grow(backend, "late", "later")
        second = await backend.groups(GroupFilter(), limit=2, cursor=first.cursor)
        assert [one.id for one in second.items] == ["g2", "g1"]
        third = await backend.groups(GroupFilter(), limit=2, cursor=second.cursor)
        assert ([one.id for one in third.items], third.cursor) == (["g0"], None)
        with pytest.raises(InputError, match="cursor"):
            await backend.groups(GroupFilter(), cursor="no")

    @needs("watching")
    async def test_a_long_list_of_groups_is_complete(self, backend: Backend) -> None:
        """However many a store looks at in one step, and of however many outcomes."""
        count = 201
        roots = [item(f"g{n:03}", "rare" if n == 0 else "work") for n in range(count)]
        leases = await start(backend, *roots)
        await apply(backend, *(succeed(lease, item(queue="later")) for lease in leases))
        expected = [root.id for root in reversed(roots)]
        page = await backend.groups(GroupFilter(), limit=count)
        assert ([one.id for one in page.items], page.cursor) == (expected, None)
        page = await backend.groups(GroupFilter(outcome=("running",)), limit=count + 1)
        assert ([one.id for one in page.items], page.cursor) == (expected, None)
        assert await listed(backend, "running", type="rare") == ["g000"]
        assert await listed(backend, type="rare") == ["g000"]

    @needs("watching")
    async def test_a_list_of_groups_looks_no_further_than_its_reach(self, backend: Backend) -> None:
        """A short page has a cursor then, and says how far it has looked."""
        await grow(backend, "first", "one", type="rare")
        for n in range(6):
            await grow(backend, f"g{n}", f"m{n}")
        found, cursor, reached = list[str](), None, 0
        while True:
            page = await backend.groups(GroupFilter(type="rare"), limit=5, cursor=cursor, reach=3)
            found += [one.id for one in page.items]
            cursor = page.cursor
            reached += page.reached_at is not None
            if cursor is None:
                break
        assert found == ["first"]
        assert reached >= 1
        whole = await backend.groups(GroupFilter(), limit=7, reach=1)
        assert (len(whole.items), whole.cursor) == (7, None)


class WorkflowListCases:
    @needs("watching", "operating")
    async def test_outcomes_of_workflows(self, backend: Backend) -> None:
        """A workflow spans groups. It fails if one of them does."""
        await grow(backend, "free", "free-1")
        for name, how in (("good", succeed), ("bad", die), ("gone", cancel)):
            leases = await grow(backend, f"{name}-0", f"{name}-1", workflow=name, type="flow")
            await apply(backend, how(leases[f"{name}-1"]))
            await end(backend, item(f"{name}-2", workflow=name))
        await submit(backend, item("waits", workflow="open"))
        assert await listed_workflows(backend) == ["open", "gone", "bad", "good"]
        assert await listed_workflows(backend, "running") == ["open"]
        assert await listed_workflows(backend, "failed") == ["bad"]
        assert await listed_workflows(backend, "succeeded", "cancelled") == ["gone", "good"]
        bad = only((await backend.workflows(GroupFilter(outcome=("failed",)))).items)
        assert (bad.tenant, bad.type, bad.total, bad.open, bad.failed) == ("default", "work", 3, 0, 1)
        assert bad.death is not None
        assert (bad.death.id, bad.death.error) == ("bad-1", "Oops: no")
        assert bad.ended_at == near(await backend.now())
        await backend.requeue(["bad-1"])
        assert await listed_workflows(backend, "failed") == []
        await backend.delete(["bad-0"], cascade=True)
        assert await listed_workflows(backend, "succeeded") == ["bad", "good"]
        await backend.delete(["bad-2"], cascade=True)
        assert await listed_workflows(backend) == ["open", "gone", "good"]

    @needs("watching")
    async def test_a_workflow_stands_where_its_newest_root_is(self, subject: Subject) -> None:
        """It is listed once, and its age is that of its first item."""
        backend = subject.backend
        began = await backend.now()
        await submit(backend, item("a1", workflow="a"), item("b1", workflow="b"))
        await subject.advance(100)
        later = await backend.now()
        await subject.advance(100)
        await submit(backend, item("a2", "other", workflow="a"))
        await submit(
            backend, item("c1", workflow="c", tenant="else"), item("c2", workflow="a", tenant="else")
        )
        found = (await backend.workflows(GroupFilter())).items
        assert [(one.id, one.tenant) for one in found] == [
            ("a", "else"),
            ("c", "else"),
            ("a", "default"),
            ("b", "default"),
        ]
        assert (found[2].type, found[2].total, found[2].queued_at) == ("other", 2, near(began))
        assert await listed_workflows(backend, tenant="default") == ["a", "b"]
        assert await listed_workflows(backend, type="other") == ["a"]
        assert await listed_workflows(backend, since=later) == ["a", "c", "a"]
        assert await listed_workflows(backend, until=later) == ["b"]

    @needs("watching")
    async def test_workflows_come_in_pages(self, backend: Backend) -> None:
        """With a reach, few roots are looked at."""
        await submit(backend, *(item(f"i{n}", workflow=f"w{n % 4}") for n in range(12)))
        first = await backend.workflows(GroupFilter(), limit=3)
        assert [one.id for one in first.items] == ["w3", "w2", "w1"]
        second = await backend.workflows(GroupFilter(), limit=3, cursor=first.cursor)
        assert ([one.id for one in second.items], second.cursor) == (["w0"], None)
        found, cursor = list[str](), None
        while True:
            page = await backend.workflows(GroupFilter(), limit=3, cursor=cursor, reach=2)
            found += [one.id for one in page.items]
            cursor = page.cursor
            if cursor is None:
                break
        assert found == ["w3", "w2", "w1", "w0"]

    @needs("watching")
    async def test_the_newest_items_of_a_large_workflow_are_counted(self, backend: Backend) -> None:
        """`capped` says that there are more."""
        await submit(backend, *items(MOST_COUNTED, workflow="large"))
        assert not (await one_workflow(backend)).capped
        await end(backend, item(workflow="large"))
        found = await one_workflow(backend)
        assert (found.capped, found.total, found.open) == (True, MOST_COUNTED, MOST_COUNTED - 1)
