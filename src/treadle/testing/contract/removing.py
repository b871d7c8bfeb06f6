"""Delete and prune: what goes, what may not go yet, what becomes free."""

from __future__ import annotations

import pytest

from treadle.backend import Backend
from treadle.errors import ReferencedError
from treadle.item import Limit, PermitRequest

from .build import (
    abandon,
    apply,
    ask,
    by_id,
    claim,
    claim_ids,
    claim_one,
    die,
    end,
    exists,
    gate,
    group,
    item,
    items,
    only,
    settle_one,
    start,
    start_one,
    status,
    statuses,
    submit,
    submit_one,
    succeed,
)
from .check import consistent
from .subject import Subject, needs

DAY = 86_400.0


class Deleting:
    @needs("operating")
    async def test_whole_groups_are_removed(self, backend: Backend) -> None:
        """Whatever state the members are in; the answer shows them as they were."""
        root = await start_one(backend, item("root"))
        children = item("a"), item("b", delay=100), gate("x", id="c"), item("d")
        await apply(backend, succeed(root, *children))
        await claim(backend, 1)
        await submit(backend, item("other"))
        changed = await backend.delete(["root"])
        shown = {one.id: one.status for one in changed.items}
        assert sorted(shown) == ["a", "b", "c", "d", "root"]
        assert sorted(shown.values()) == ["blocked", "ready", "running", "scheduled", "success"]
        assert await statuses(backend, "root", "a", "b", "c", "d") == [None] * 5
        assert list(await backend.group(["root"])) == [None]
        assert await claim_ids(backend) == ["other"]
        await consistent(backend)

    @needs("operating", "fencing")
    async def test_leases_are_lost(self, backend: Backend) -> None:
        """A settlement of what is gone is stale, and resurrects nothing."""
        lease = await start_one(backend, item("a"))
        await backend.delete(["a"])
        outcome = await settle_one(backend, succeed(lease, item("child")))
        assert (outcome.verb, outcome.loss) == ("stale", "not_found")
        assert await statuses(backend, "a", "child") == [None, None]
        await consistent(backend)

    @needs("operating", "fencing")
    async def test_ids_and_keys_are_free(self, backend: Backend) -> None:
        """As if they had never been used; and an old lease does not own the new item."""
        lease = await start_one(backend, item("a", key="k"))
        await backend.delete(["a"])
        answer = await submit_one(backend, item("a", key="k", key_scope="any"))
        assert (answer.id, answer.existing) == ("a", False)
        assert (await settle_one(backend, succeed(lease))).verb == "stale"
        assert await status(backend, "a") == "ready"
        assert (await group(backend, "a")).version == 0

    @needs("operating")
    async def test_what_does_not_exist_is_skipped(self, backend: Backend) -> None:
        """Also the id of a member that is not a root: it is not a group."""
        await apply(backend, succeed(await start_one(backend, item("root")), item("child")))
        await submit(backend, item("a"))
        changed = await backend.delete(["nobody", "child", "a"])
        assert [one.id for one in changed.items] == ["a"]
        assert await exists(backend, "child")
        assert (await backend.delete([])).items == ()

    @needs("operating")
    async def test_what_is_waited_for_stays(self, backend: Backend) -> None:
        """`ReferencedError`, saying by whom, and nothing removed."""
        await submit(backend, item("a"), item("free"), gate("a", id="waiting"))
        with pytest.raises(ReferencedError) as refusal:
            await backend.delete(["free", "a"])
        assert refusal.value.references == [("a", "waiting")]
        assert await statuses(backend, "a", "free", "waiting") == ["ready", "ready", "blocked"]
        await consistent(backend)

    @needs("operating")
    async def test_any_member_may_be_waited_for(self, backend: Backend) -> None:
        """Not only the root."""
        await apply(backend, succeed(await start_one(backend, item("root")), item("child")))
        await submit(backend, gate("child", id="waiting"))
        with pytest.raises(ReferencedError):
            await backend.delete(["root"])
        assert await exists(backend, "root")

    @needs("operating")
    async def test_an_ended_prerequisite_of_an_open_item_stays(self, backend: Backend) -> None:
        """The waiting item will want to see its result."""
        await end(backend, item("p"))
        await submit(backend, gate("p", "q", id="waiting"))
        with pytest.raises(ReferencedError):
            await backend.delete(["p"])

    @needs("operating")
    async def test_an_ended_item_waits_for_nobody(self, backend: Backend) -> None:
        """Only open items outside hold it."""
        await submit(backend, item("a"), gate("a", id="waiting"))
        await backend.cancel(["waiting"])
        assert len((await backend.delete(["a"])).items) == 1
        assert await status(backend, "waiting") == "cancelled"

    @needs("operating")
    async def test_members_may_wait_for_each_other(self, backend: Backend) -> None:
        """Inside the group, or among the groups that go together."""
        root = await start_one(backend, item("root"))
        await apply(backend, succeed(root, item("a"), gate("a", id="b")))
        await submit(backend, gate("b", id="waiting"))
        assert len((await backend.delete(["root", "waiting"])).items) == 4
        await consistent(backend)

    @needs("operating")
    async def test_a_waiting_group_can_go_alone(self, backend: Backend) -> None:
        """What it waited for stays, and ends as if nobody had waited."""
        lease = await start_one(backend, item("a"))
        await submit(backend, gate("a", id="waiting"))
        await backend.delete(["waiting"])
        assert (await apply(backend, succeed(lease))).effects.released == ()
        await consistent(backend)

    @needs("operating")
    async def test_cascade_takes_what_was_waited_for(self, backend: Backend) -> None:
        """Also the groups that members wait or waited for, and so on: each once, a diamond too."""
        await end(backend, item("top"))
        await submit(backend, gate("top", id="l"), gate("top", id="r"), gate("l", "r", id="bottom"))
        await submit(backend, item("other"))
        changed = await backend.delete(["bottom"], cascade=True)
        assert sorted(one.id for one in changed.items) == ["bottom", "l", "r", "top"]
        assert await claim_ids(backend) == ["other"]
        await consistent(backend)

    @needs("operating")
    async def test_cascade_takes_whole_groups(self, backend: Backend) -> None:
        """The group of a prerequisite that is not a root."""
        await apply(backend, succeed(await start_one(backend, item("root")), item("a"), item("b")))
        await submit(backend, gate("a", id="waiting"))
        changed = await backend.delete(["waiting"], cascade=True)
        assert sorted(one.id for one in changed.items) == ["a", "b", "root", "waiting"]

    @needs("operating")
    async def test_cascade_does_not_take_who_waits(self, backend: Backend) -> None:
        """An open item outside that waits for any of it: `ReferencedError`, nothing removed."""
        await submit(backend, item("a"), gate("a", id="b"), gate("a", id="outside"))
        with pytest.raises(ReferencedError):
            await backend.delete(["b"], cascade=True)
        assert await statuses(backend, "a", "b", "outside") == ["ready", "blocked", "blocked"]

    @needs("operating")
    async def test_a_deleted_id_may_be_awaited_again(self, backend: Backend) -> None:
        """It is like one not yet submitted: the edge counts when the new one ends."""
        await submit(backend, item("a"))
        await backend.delete(["a"])
        assert (await submit_one(backend, gate("a", id="next"))).status == "blocked"
        await end(backend, item("a"))
        assert await claim_ids(backend) == ["next"]


class Pruning:
    @needs("operating")
    async def test_items_are_kept_for_a_time(self, subject: Subject) -> None:
        """`keep` seconds after the end of the group: success and cancelled."""
        backend = subject.backend
        await end(backend, item("success", keep=100), item("longer", keep=500))
        await end(backend, item("cancelled", keep=100), how=abandon)
        await subject.advance(50)
        assert await backend.prune() == 0
        await subject.advance(60)
        assert await backend.prune() == 2
        assert await statuses(backend, "success", "cancelled", "longer") == [None, None, "success"]
        assert list(await backend.group(["success"])) == [None]
        await consistent(backend)

    @needs("operating")
    async def test_the_dead_are_kept_until_someone_decides(self, subject: Subject) -> None:
        """`keep_dead`, None by default."""
        await end(subject.backend, item("a", keep=1), item("b", keep_dead=100.0, keep=1), how=die)
        await subject.advance(50)
        assert await subject.backend.prune() == 0
        await subject.advance(1000 * DAY)
        assert await subject.backend.prune() == 1
        assert await statuses(subject.backend, "a", "b") == ["dead", None]

    @needs("operating")
    async def test_open_items_are_never_pruned(self, subject: Subject) -> None:
        """However old."""
        await submit(subject.backend, item("a", keep=0), gate("x", id="b", keep=0))
        await start_one(subject.backend, item("c", keep=0))
        await subject.advance(100 * DAY)
        assert await subject.backend.prune() == 0

    @needs("operating")
    async def test_the_time_counts_from_the_end_of_the_group(self, subject: Subject) -> None:
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
    async def test_a_group_that_opened_again_is_kept(self, subject: Subject) -> None:
        """Its time counts from its last end."""
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
    async def test_a_group_that_opened_again_is_kept_also_in_the_middle_of_its_going(
        self, subject: Subject
    ) -> None:
        """Some members went before it opened again; for the others time counts from its last end."""
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
    async def test_what_an_open_item_waits_for_is_kept(self, subject: Subject) -> None:
        """Blocked, ready or running: it will want to see the result. Then it may go."""
        backend = subject.backend
        await end(backend, item("p", keep=10))
        await submit(backend, gate("p", "q", id="blocked"), gate("p", id="ready"))
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
    @pytest.mark.parametrize("need", [1, 2])
    async def test_what_a_dead_item_waited_for_goes(self, subject: Subject, need: int) -> None:
        """Dead is not open, whether it ran or was doomed, however long it is kept."""
        backend = subject.backend
        await end(backend, item("p", keep=10))
        await submit(backend, gate("p", id="a", need=need), gate("p", "never", id="b", expires_in=50))
        await subject.advance(100)
        assert await backend.prune() == 0
        await apply(backend, *(die(lease) for lease in (await ask(backend)).leases))
        assert await statuses(backend, "a", "b") == ["dead", "dead"]
        assert await backend.prune() == 1
        assert not await exists(backend, "p")

    @needs("operating")
    async def test_ids_and_keys_are_free_afterwards(self, subject: Subject) -> None:
        """Pruned is gone."""
        await end(subject.backend, item("a", key="k", keep=10))
        await subject.advance(20)
        assert await subject.backend.prune() == 1
        answer = await submit_one(subject.backend, item("a", key="k", key_scope="any"))
        assert (answer.id, answer.existing) == ("a", False)
        assert (await group(subject.backend, "a")).open == 1

    @needs("operating")
    async def test_in_bounded_portions(self, subject: Subject) -> None:
        """Up to `limit`; a full portion means that there may be more."""
        await end(subject.backend, *items(25, keep=10))
        await submit(subject.backend, item("stays"))
        await subject.advance(20)
        assert [await subject.backend.prune(10) for _ in range(4)] == [10, 10, 5, 0]
        assert await claim_ids(subject.backend) == ["stays"]
        await consistent(subject.backend)

    @needs("operating")
    async def test_a_group_may_go_piece_by_piece(self, subject: Subject) -> None:
        """Members have their own time; the dead one stays, and can be requeued."""
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
        assert only(settled.effects.closed).id == "root"
        await consistent(backend)

    @needs("operating")
    async def test_a_dead_member_outlives_its_root(self, subject: Subject) -> None:
        """Requeued when the root is long gone, it runs and ends like any other."""
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
        assert (await ask(backend)).leases == ()

    @needs("operating", "limits")
    async def test_expired_keys_and_limits_go_as_well(self, subject: Subject) -> None:
        """Without being counted, and without taking anything that is still held."""
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
    async def test_a_diamond_of_ended_items_goes(self, subject: Subject) -> None:
        """Waiting for each other holds nothing once all have ended."""
        backend = subject.backend
        await submit(backend, item("a", keep=10), gate("a", id="b", keep=10), gate("a", "b", id="c", keep=10))
        for _ in range(3):
            await apply(backend, succeed(await claim_one(backend)))
        await start(backend, item("other"))
        await subject.advance(20)
        assert await backend.prune() == 3
        await consistent(backend)
