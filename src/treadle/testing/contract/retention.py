"""Prune: which ended items are removed after `keep`, and which stay."""

from __future__ import annotations

from treadle.item import Filter, Lease, Limit, PermitRequest

from .build import (
    apply,
    by_id,
    cancel,
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
    items,
    only,
    start,
    start_one,
    statuses,
    submit,
    submit_one,
    succeed,
    whole,
)
from .check import consistent
from .subject import Subject, needs

DAY = 86_400.0


async def lose_root(subject: Subject) -> Lease:
    """Prune the root of the group `root`, whose other member, `bad`, is dead. Returns the root's lease."""
    backend = subject.backend
    root = await start_one(backend, item("root", keep=1))
    await apply(backend, succeed(root, item("bad", keep=1)))
    await apply(backend, die(await claim_one(backend)))
    await subject.advance(DAY)
    assert await backend.prune() == 1
    return root


class RetentionCases:
    @needs("operating")
    async def test_prune_removes_items_after_keep(self, subject: Subject) -> None:
        """`keep` counts seconds from the end of the group, for successful and cancelled items."""
        backend = subject.backend
        await end(backend, item("success", keep=100), item("longer", keep=500))
        await end(backend, item("cancelled", keep=100), how=cancel)
        await subject.advance(50)
        assert await backend.prune() == 0
        await subject.advance(60)
        assert await backend.prune() == 2
        assert await statuses(backend, "success", "cancelled", "longer") == [None, None, "success"]
        assert list(await backend.group(["success"])) == [None]
        await consistent(backend)

    @needs("operating")
    async def test_dead_items_are_kept_unless_keep_dead_is_set(self, subject: Subject) -> None:
        """`keep_dead` is None by default."""
        await end(subject.backend, item("a", keep=1), item("b", keep_dead=100.0, keep=1), how=die)
        await subject.advance(50)
        assert await subject.backend.prune() == 0
        await subject.advance(1000 * DAY)
        assert await subject.backend.prune() == 1
        assert await statuses(subject.backend, "a", "b") == ["dead", None]

    @needs("operating")
    async def test_open_items_are_never_pruned(self, subject: Subject) -> None:
        """Their age does not matter."""
        await submit(subject.backend, item("a", keep=0), dependent("x", id="b", keep=0))
        await start_one(subject.backend, item("c", keep=0))
        await subject.advance(100 * DAY)
        assert await subject.backend.prune() == 0

    @needs("operating")
    async def test_keep_counts_from_the_end_of_the_group(self, subject: Subject) -> None:
        """While a member is open, the ended ones stay."""
        backend = subject.backend
        await apply(backend, succeed(await start_one(backend, item("root", keep=10)), item("a", keep=10)))
        await subject.advance(1000)
        assert await backend.prune() == 0
        await apply(backend, succeed(await claim_one(backend)))
        assert await backend.prune() == 0
        await subject.advance(20)
        assert await backend.prune() == 2
        assert await statuses(backend, "root", "a") == [None, None]

    @needs("operating")
    async def test_keep_counts_from_the_last_end_of_a_reopened_group(self, subject: Subject) -> None:
        """Ends from before the requeue do not count."""
        backend = subject.backend
        root = await start_one(backend, item("root", keep=100))
        await apply(backend, succeed(root, item("a", keep=100)))
        await apply(backend, die(await claim_one(backend)))
        await subject.advance(50)
        await backend.requeue(["a"])
        await subject.advance(1000)
        assert await backend.prune() == 0
        await apply(backend, succeed(await claim_one(backend)))
        await subject.advance(50)
        assert await backend.prune() == 0
        await subject.advance(60)
        assert await backend.prune() == 2

    @needs("operating")
    async def test_keep_counts_from_the_last_end_of_a_partly_pruned_group(self, subject: Subject) -> None:
        """Some members were pruned before it opened again. The others are kept from its last end on."""
        backend = subject.backend
        root = await start_one(backend, item("root", keep=10))
        await apply(backend, succeed(root, item("long", keep=100), item("dying", keep=100)))
        for lease in await claim(backend, 2):
            await apply(backend, die(lease) if lease.id == "dying" else succeed(lease))
        await subject.advance(20)
        assert await backend.prune() == 1
        await backend.requeue(["dying"])
        await subject.advance(200)
        await apply(backend, succeed(await claim_one(backend)))
        assert await backend.prune() == 0
        await subject.advance(60)
        assert await backend.prune() == 0
        assert await statuses(backend, "long", "dying") == ["success", "success"]
        await subject.advance(60)
        assert await backend.prune() == 2

    @needs("operating")
    async def test_a_prerequisite_of_an_open_item_is_kept(self, subject: Subject) -> None:
        """A blocked, ready or running dependent may still read its result. Afterwards it is pruned."""
        backend = subject.backend
        await end(backend, item("p", keep=10))
        await submit(backend, dependent("p", "q", id="blocked"), dependent("p", id="ready"))
        await subject.advance(1000)
        assert await backend.prune() == 0
        lease = await claim_one(backend)
        assert await backend.prune() == 0
        await apply(backend, succeed(lease))
        assert await backend.prune() == 0
        await backend.cancel(["blocked"])
        assert await backend.prune() == 1
        assert not await exists(backend, "p")
        await consistent(backend)

    @needs("operating")
    async def test_a_prerequisite_of_a_dead_item_is_pruned(self, subject: Subject) -> None:
        """The dependent is not open, whether it ran or has expired."""
        backend = subject.backend
        await end(backend, item("p", keep=10))
        await submit(backend, dependent("p", id="a"), dependent("p", "never", id="b", expires_in=50))
        await subject.advance(100)
        assert await backend.prune() == 0
        await apply(backend, *(die(lease) for lease in (await claim_answer(backend)).leases))
        assert await statuses(backend, "a", "b") == ["dead", "dead"]
        assert await backend.prune() == 1
        assert not await exists(backend, "p")

    @needs("operating", "nested")
    async def test_a_prerequisite_of_an_unsatisfiable_item_is_kept(self, subject: Subject) -> None:
        """A repair may block that item again, which then needs all its prerequisites."""
        backend = subject.backend
        await end(backend, item("p", keep=10))
        await submit(backend, item("q", keep=10), dependent("p", "q", id="a"))
        await apply(backend, die(await claim_one(backend)))
        await apply(backend, die(await doomed_lease(backend)))
        await subject.advance(100)
        assert await backend.prune() == 0
        await backend.requeue(["q"])
        await apply(backend, succeed(await claim_one(backend)))
        await apply(backend, succeed(await claim_one(backend)))
        await subject.advance(100)
        assert await backend.prune() == 2
        await consistent(backend)

    @needs("operating", "nested")
    async def test_a_removed_unsatisfiable_item_keeps_nothing(self, subject: Subject) -> None:
        """Its prerequisites are pruned after it."""
        backend = subject.backend
        await end(backend, item("p", keep=10))
        await submit(backend, dependent("p", id="a", need=2))
        await apply(backend, die(await doomed_lease(backend)))
        await subject.advance(100)
        assert await backend.prune() == 0
        await backend.delete(["a"])
        assert await backend.prune() == 1
        await consistent(backend)

    @needs("operating")
    async def test_ids_and_keys_of_pruned_items_are_free(self, subject: Subject) -> None:
        """They can be used for a new item."""
        await end(subject.backend, item("a", key="k", keep=10))
        await subject.advance(20)
        assert await subject.backend.prune() == 1
        answer = await submit_one(subject.backend, item("a", key="k", key_scope="any"))
        assert (answer.id, answer.existing) == ("a", False)
        assert (await group(subject.backend, "a")).open == 1

    @needs("operating")
    async def test_prune_removes_at_most_limit_items(self, subject: Subject) -> None:
        """A full portion means that there may be more."""
        await end(subject.backend, *items(25, keep=10))
        await submit(subject.backend, item("stays"))
        await subject.advance(20)
        assert [await subject.backend.prune(10) for _ in range(4)] == [10, 10, 5, 0]
        assert await claim_ids(subject.backend) == ["stays"]
        await consistent(subject.backend)

    @needs("operating")
    async def test_members_of_a_group_are_pruned_one_by_one(self, subject: Subject) -> None:
        """Each has its own `keep`. The dead member stays and can be requeued."""
        backend = subject.backend
        root = await start_one(backend, item("root", keep=1000))
        await apply(backend, succeed(root, item("short", keep=10), item("dead", keep=10)))
        leases = by_id(await claim(backend))
        await apply(backend, succeed(leases["short"]), die(leases["dead"]))
        await subject.advance(20)
        assert await backend.prune() == 1
        assert await statuses(backend, "root", "short", "dead") == ["success", None, "dead"]
        await backend.requeue(["dead"])
        await subject.advance(2000)
        assert await backend.prune() == 0
        assert (await group(backend, "root")).open == 1
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert only(settled.effects.ended_groups).id == "root"
        await consistent(backend)

    @needs("operating")
    async def test_a_dead_member_can_be_requeued_after_its_root_is_pruned(self, subject: Subject) -> None:
        """It runs and ends like any other item."""
        backend = subject.backend
        root = await start_one(backend, item("root", keep=10))
        await apply(backend, succeed(root, item("dead", keep=10)))
        await apply(backend, die(await claim_one(backend)))
        await subject.advance(20)
        assert await backend.prune() == 1
        await backend.requeue(["dead"])
        lease = await claim_one(backend)
        assert (lease.id, lease.group_id) == ("dead", "root")
        await apply(backend, succeed(lease, item("child", keep=10)))
        await apply(backend, succeed(await claim_one(backend)))
        await subject.advance(20)
        assert await backend.prune() == 2
        assert (await claim_answer(backend)).leases == ()

    @needs("operating", "nested")
    async def test_a_group_outlives_its_root(self, subject: Subject) -> None:
        """It is found by its id as long as it has a member, also to wait for it and to delete it."""
        backend, root = subject.backend, await lose_root(subject)
        assert await statuses(backend, "root", "bad") == [None, "dead"]
        found = await group(backend, "root")
        assert (found.id, found.type, found.open, found.failed) == ("root", root.type, 0, 1)
        assert [death.id for death in found.deaths] == ["bad"]
        assert list((await backend.ended([], [(found.tenant, "root")])).groups) == [(found.tenant, "root")]
        await submit(backend, dependent(whole("root"), id="later", counting="done"))
        await apply(backend, succeed(await claim_one(backend)))
        await backend.delete(["root"])
        assert list(await backend.group(["root"])) == [None]
        assert await statuses(backend, "bad") == [None]

    @needs("operating", "nested")
    async def test_a_group_without_its_root_opens_again(self, subject: Subject) -> None:
        """What waits for it is released when it ends again."""
        backend = subject.backend
        await lose_root(subject)
        dead = await backend.list(Filter(group_id="root", status=("dead",)), limit=10)
        assert [state.id for state in dead.items] == ["bad"]
        await submit(backend, dependent(whole("root"), id="early"))
        await backend.requeue(["bad"])
        await submit(backend, dependent(whole("root"), id="later"))
        assert (await group(backend, "root")).open == 1
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert only(settled.effects.ended_groups).id == "root"
        # One end has released both: which of them is first is open.
        assert sorted(await claim_ids(backend)) == ["early", "later"]

    @needs("operating", "nested")
    async def test_a_group_without_its_root_goes_with_its_last_member(self, subject: Subject) -> None:
        """Nothing of it is left then."""
        backend = subject.backend
        root = await start_one(backend, item("root", keep=1))
        await apply(backend, succeed(root, item("bad", keep=1, keep_dead=10 * DAY)))
        await apply(backend, die(await claim_one(backend)))
        await subject.advance(DAY)
        assert await backend.prune() == 1
        assert (await group(backend, "root")).failed == 1
        await subject.advance(10 * DAY)
        assert await backend.prune() == 1
        assert list(await backend.group(["root"])) == [None]
        await consistent(backend)

    @needs("operating", "limits")
    async def test_prune_also_removes_expired_keys_and_limit_states(self, subject: Subject) -> None:
        """They are not counted, and the ones still in force stay."""
        backend = subject.backend
        assert await backend.claim_key("short", "me", 10, tenant="default")
        assert await backend.claim_key("long", "me", 10_000, tenant="default")
        bucket = Limit("bucket", 5, window=100_000)
        await backend.take_permits([PermitRequest((bucket,), 5)])
        await subject.advance(20)
        assert await backend.prune() == 0
        assert not await backend.claim_key("long", "you", 10, tenant="default")
        assert await backend.claim_key("short", "you", 10, tenant="default")
        assert (await backend.take_permits([PermitRequest((bucket,))]))[0].count == 0

    @needs("operating")
    async def test_ended_items_that_waited_for_each_other_are_pruned(self, subject: Subject) -> None:
        """All of them have ended, so none keeps another."""
        backend = subject.backend
        await submit(
            backend, item("a", keep=10), dependent("a", id="b", keep=10), dependent("a", "b", id="c", keep=10)
        )
        for _ in range(3):
            await apply(backend, succeed(await claim_one(backend)))
        await start(backend, item("other"))
        await subject.advance(20)
        assert await backend.prune() == 3
        await consistent(backend)
