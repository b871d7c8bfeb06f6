"""Delete: which groups are removed, and which are still referenced."""

from __future__ import annotations

import pytest

from treadle.backend import Backend
from treadle.errors import ReferencedError

from .build import (
    apply,
    claim,
    claim_ids,
    dependent,
    end,
    exists,
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
    async def test_delete_removes_whole_groups(self, backend: Backend) -> None:
        """Members of every status are removed. The answer shows them as they were."""
        root = await start_one(backend, item("root"))
        children = item("a"), item("b", delay=100), dependent("x", id="c"), item("d")
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
    async def test_leases_of_deleted_items_are_lost(self, backend: Backend) -> None:
        """A settlement of a deleted item is stale and stores nothing."""
        lease = await start_one(backend, item("a"))
        await backend.delete(["a"])
        outcome = await settle_one(backend, succeed(lease, item("child")))
        assert (outcome.verb, outcome.loss) == ("stale", "not_found")
        assert await statuses(backend, "a", "child") == [None, None]
        await consistent(backend)

    @needs("operating", "fencing")
    async def test_ids_and_keys_of_deleted_items_are_free(self, backend: Backend) -> None:
        """A lease of the deleted item has no effect on a new item of that id."""
        lease = await start_one(backend, item("a", key="k"))
        await backend.delete(["a"])
        answer = await submit_one(backend, item("a", key="k", key_scope="any"))
        assert (answer.id, answer.existing) == ("a", False)
        assert (await settle_one(backend, succeed(lease))).verb == "stale"
        assert await status(backend, "a") == "ready"
        assert (await group(backend, "a")).version == 0

    @needs("operating")
    async def test_delete_skips_missing_ids_and_members(self, backend: Backend) -> None:
        """The id of a member that is not a root is not a group."""
        await apply(backend, succeed(await start_one(backend, item("root")), item("child")))
        await submit(backend, item("a"))
        changed = await backend.delete(["missing", "child", "a"])
        assert [one.id for one in changed.items] == ["a"]
        assert await exists(backend, "child")
        assert (await backend.delete([])).items == ()

    @needs("operating")
    async def test_a_group_that_another_item_waits_for_is_not_deleted(self, backend: Backend) -> None:
        """`ReferencedError` names both, and nothing is removed."""
        await submit(backend, item("a"), item("free"), dependent("a", id="waiting"))
        with pytest.raises(ReferencedError) as refusal:
            await backend.delete(["free", "a"])
        assert refusal.value.references == [("a", "waiting")]
        assert await statuses(backend, "a", "free", "waiting") == ["ready", "ready", "blocked"]
        await consistent(backend)

    @needs("operating")
    async def test_a_group_with_an_awaited_member_is_not_deleted(self, backend: Backend) -> None:
        """The item waits for a member that is not the root."""
        await apply(backend, succeed(await start_one(backend, item("root")), item("child")))
        await submit(backend, dependent("child", id="waiting"))
        with pytest.raises(ReferencedError):
            await backend.delete(["root"])
        assert await exists(backend, "root")

    @needs("operating")
    async def test_an_ended_prerequisite_of_an_open_item_is_not_deleted(self, backend: Backend) -> None:
        """The waiting item may still read its result."""
        await end(backend, item("p"))
        await submit(backend, dependent("p", "q", id="waiting"))
        with pytest.raises(ReferencedError):
            await backend.delete(["p"])

    @needs("operating")
    async def test_ended_dependents_do_not_prevent_deletion(self, backend: Backend) -> None:
        """Only open items outside the group do."""
        await submit(backend, item("a"), dependent("a", id="waiting"))
        await backend.cancel(["waiting"])
        assert len((await backend.delete(["a"])).items) == 1
        assert await status(backend, "waiting") == "cancelled"

    @needs("operating")
    async def test_dependencies_among_deleted_groups_do_not_prevent_deletion(self, backend: Backend) -> None:
        """Within one group, or among the groups that are deleted together."""
        root = await start_one(backend, item("root"))
        await apply(backend, succeed(root, item("a"), dependent("a", id="b")))
        await submit(backend, dependent("b", id="waiting"))
        assert len((await backend.delete(["root", "waiting"])).items) == 4
        await consistent(backend)

    @needs("operating")
    async def test_a_waiting_group_is_deleted_without_its_prerequisite(self, backend: Backend) -> None:
        """The prerequisite stays and ends without releasing anything."""
        lease = await start_one(backend, item("a"))
        await submit(backend, dependent("a", id="waiting"))
        await backend.delete(["waiting"])
        assert (await apply(backend, succeed(lease))).effects.released == ()
        await consistent(backend)

    @needs("operating")
    async def test_cascade_deletes_the_prerequisites_too(self, backend: Backend) -> None:
        """Also the groups that its members wait or waited for, transitively. Each is deleted once."""
        await end(backend, item("top"))
        await submit(
            backend, dependent("top", id="l"), dependent("top", id="r"), dependent("l", "r", id="bottom")
        )
        await submit(backend, item("other"))
        changed = await backend.delete(["bottom"], cascade=True)
        assert sorted(one.id for one in changed.items) == ["bottom", "l", "r", "top"]
        assert await claim_ids(backend) == ["other"]
        await consistent(backend)

    @needs("operating")
    async def test_cascade_deletes_whole_groups(self, backend: Backend) -> None:
        """Including the group of a prerequisite that is not a root."""
        await apply(backend, succeed(await start_one(backend, item("root")), item("a"), item("b")))
        await submit(backend, dependent("a", id="waiting"))
        changed = await backend.delete(["waiting"], cascade=True)
        assert sorted(one.id for one in changed.items) == ["a", "b", "root", "waiting"]

    @needs("operating")
    async def test_cascade_does_not_delete_dependents(self, backend: Backend) -> None:
        """An open item outside waits for one of them: `ReferencedError`, and nothing is removed."""
        await submit(backend, item("a"), dependent("a", id="b"), dependent("a", id="outside"))
        with pytest.raises(ReferencedError):
            await backend.delete(["b"], cascade=True)
        assert await statuses(backend, "a", "b", "outside") == ["ready", "blocked", "blocked"]

    @needs("operating")
    async def test_a_deleted_id_may_be_waited_for_again(self, backend: Backend) -> None:
        """It counts as not yet submitted. The dependency is met when the new item ends."""
        await submit(backend, item("a"))
        await backend.delete(["a"])
        assert (await submit_one(backend, dependent("a", id="next"))).status == "blocked"
        await end(backend, item("a"))
        assert await claim_ids(backend) == ["next"]
