"""Delete and prune: what goes, what may not go yet, what becomes free."""

from __future__ import annotations

import pytest

from treadle.backend import Backend
from treadle.errors import ReferencedError

from .build import (
    apply,
    claim,
    claim_ids,
    end,
    exists,
    gate,
    group,
    item,
    settle_one,
    start_one,
    status,
    statuses,
    submit,
    submit_one,
    succeed,
)
from .check import consistent
from .subject import needs


class DeleteCases:
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
