"""Cancel and complete."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.backend import Backend
from treadle.errors import AlreadyEnded, NotFound
from treadle.item import Lease

from .build import (
    apply,
    by_id,
    cancel,
    claim,
    claim_answer,
    claim_ids,
    contribute,
    dependent,
    die,
    doomed_lease,
    end,
    group,
    item,
    only,
    settle_one,
    start_one,
    state,
    status,
    statuses,
    submit,
    succeed,
    verdicts,
)
from .check import consistent, open_members
from .subject import needs


async def start_family(backend: Backend) -> dict[str, Lease]:
    """Store root (ended) -> a (ended) -> a1, a2 and root -> b (open). Return the leases of a1, a2 and b."""
    await apply(backend, succeed(await start_one(backend, item("root")), item("a"), item("b")))
    leases = by_id(await claim(backend))
    await apply(backend, succeed(leases["a"], item("a1"), item("a2")))
    return by_id([leases["b"], *await claim(backend)])


class CancelCases:
    @pytest.mark.parametrize(
        ("fields", "before"),
        [({}, "ready"), ({"delay": 100.0}, "scheduled"), ({"after": ("x",), "need": 1}, "blocked")],
    )
    async def test_a_waiting_item_is_cancelled(self, backend: Backend, fields: Any, before: str) -> None:
        """It ends as `cancelled`. The answer shows the item as it was before."""
        await submit(backend, item("a", **fields))
        changed = await backend.cancel(["a"])
        assert [(one.id, one.status) for one in changed.items] == [("a", before)]
        found = await state(backend, "a")
        assert (found.status, found.reason, found.result) == ("cancelled", None, None)
        assert [closed.id for closed in changed.effects.ended_groups] == ["a"]
        assert await claim_ids(backend) == []
        await consistent(backend)

    @needs("fencing")
    async def test_a_running_item_is_cancelled(self, backend: Backend) -> None:
        """Its lease is lost."""
        lease = await start_one(backend, item("a"))
        changed = await backend.cancel(["a"])
        assert only(changed.items).status == "running"
        outcome = await settle_one(backend, succeed(lease))
        assert (outcome.verb, outcome.loss) == ("stale", "cancelled")
        assert await status(backend, "a") == "cancelled"
        await consistent(backend)

    async def test_cancel_ends_all_open_descendants(self, backend: Backend) -> None:
        """Children, their children, and so on."""
        await start_family(backend)
        changed = await backend.cancel(["root"])
        assert sorted(one.id for one in changed.items) == ["a1", "a2", "b"]
        names = ("root", "a", "a1", "a2", "b")
        ended = ["success", "success", "cancelled", "cancelled", "cancelled"]
        assert await statuses(backend, *names) == ended
        assert [closed.id for closed in changed.effects.ended_groups] == ["root"]
        await consistent(backend)

    async def test_cancel_leaves_siblings_alone(self, backend: Backend) -> None:
        """The rest of the group goes on."""
        leases = await start_family(backend)
        changed = await backend.cancel(["a"])
        assert sorted(one.id for one in changed.items) == ["a1", "a2"]
        assert changed.effects.ended_groups == ()
        assert await open_members(backend, "root") == 1
        assert len((await apply(backend, succeed(leases["b"]))).effects.ended_groups) == 1

    async def test_only_open_leaves_what_ended_items_have_queued(self, backend: Backend) -> None:
        """An item that has ended is skipped. One that is open ends with its descendants."""
        await start_family(backend)
        changed = await backend.cancel(["root", "a", "missing"], only_open=True)
        assert (changed.items, changed.effects.ended_groups) == ((), ())
        changed = await backend.cancel(["a", "b"], only_open=True)
        assert [one.id for one in changed.items] == ["b"]
        assert await statuses(backend, "a1", "a2", "b") == ["running", "running", "cancelled"]
        await consistent(backend)

    async def test_cancel_skips_ended_and_missing_items(self, backend: Backend) -> None:
        """Naming an item twice cancels it once."""
        await end(backend, item("a"))
        await submit(backend, item("b"))
        changed = await backend.cancel(["a", "missing", "b", "b"])
        assert [one.id for one in changed.items] == ["b"]
        again = await backend.cancel(["a", "b"])
        assert (again.items, again.effects.ended_groups) == ((), ())
        assert await statuses(backend, "a", "b") == ["success", "cancelled"]
        assert (await backend.cancel([])).items == ()

    async def test_dependents_count_a_cancelled_item_as_done(self, backend: Backend) -> None:
        """It does not count as success: a dependent that counts success is doomed."""
        await submit(
            backend, item("a"), dependent("a", id="done", counting="done"), dependent("a", id="success")
        )
        changed = await backend.cancel(["a"])
        assert [released.id for released in changed.effects.released] == ["done"]
        assert changed.effects.doomed == 1
        leases = (await claim_answer(backend)).leases
        assert {lease.id: lease.verdict for lease in leases} == {"done": None, "success": "unsatisfiable"}
        await consistent(backend)

    async def test_an_item_and_its_prerequisite_are_cancelled_together(self, backend: Backend) -> None:
        """In one step. The dependent is neither released nor doomed."""
        await submit(backend, item("a"), dependent("a", id="next", counting="done"))
        changed = await backend.cancel(["a", "next"])
        assert len(changed.items) == 2
        assert await statuses(backend, "a", "next") == ["cancelled", "cancelled"]
        assert await claim_ids(backend) == []
        await consistent(backend)

    @needs("fencing")
    async def test_a_doomed_item_is_cancelled(self, backend: Backend) -> None:
        """The worker that holds its verdict finds the lease lost."""
        await submit(backend, dependent("x", id="a", need=2))
        lease = await doomed_lease(backend)
        await backend.cancel(["a"])
        assert (await settle_one(backend, die(lease))).loss == "cancelled"
        assert (await state(backend, "a")).reason is None
        assert await verdicts(backend, "w2") == {}


class CompleteCases:
    @needs("operating")
    @pytest.mark.parametrize(
        "fields", [{}, {"delay": 100.0}, {"after": ("x",), "need": 1}, {"after": ("x",), "need": 2}]
    )
    async def test_a_waiting_item_is_completed(self, backend: Backend, fields: Any) -> None:
        """Without a worker, from any waiting status. The result is also its contribution."""
        await submit(backend, item("a", **fields))
        before = await status(backend, "a")
        changed = await backend.complete("a", b"by hand")
        assert [(one.id, one.status) for one in changed.items] == [("a", before)]
        found = await state(backend, "a")
        assert (found.status, found.result, found.worker) == ("success", b"by hand", None)
        closed = only(changed.effects.ended_groups)
        assert (closed.id, closed.value) == ("a", b"by hand")
        assert (await group(backend, "a")).value == b"by hand"
        assert (await claim_answer(backend)).leases == ()
        await consistent(backend)

    @needs("operating", "fencing")
    async def test_a_running_item_is_completed(self, backend: Backend) -> None:
        """Its lease is lost, and `worker` is None afterwards."""
        lease = await start_one(backend, item("a"))
        await backend.complete("a", b"by hand")
        outcome = await settle_one(backend, contribute(lease, b"late"))
        assert (outcome.verb, outcome.loss, outcome.again) == ("stale", "completed", False)
        found = await state(backend, "a")
        assert (found.result, found.worker) == (b"by hand", None)
        assert (await group(backend, "a")).value == b"by hand"
        await consistent(backend)

    @needs("operating")
    async def test_dependents_count_a_completed_item_as_success(self, backend: Backend) -> None:
        """In the step that completes it."""
        await submit(backend, item("a"), dependent("a", id="next"))
        changed = await backend.complete("a", None)
        assert [released.id for released in changed.effects.released] == ["next"]
        assert await claim_ids(backend) == ["next"]

    @needs("operating")
    async def test_a_completed_item_is_not_released_later(self, backend: Backend) -> None:
        """Its prerequisite ends later and changes nothing."""
        lease = await start_one(backend, item("p"))
        await submit(backend, dependent("p", id="next"))
        await backend.complete("next", None)
        settled = await apply(backend, succeed(lease))
        assert (settled.effects.released, settled.effects.doomed) == ((), 0)
        assert await status(backend, "next") == "success"
        await consistent(backend)

    @needs("operating")
    async def test_complete_does_not_change_a_final_value(self, backend: Backend) -> None:
        """Its contribution is ignored like any other."""
        lease = await start_one(backend, item("root"))
        await apply(backend, succeed(lease, item("a"), item("b")))
        leases = by_id(await claim(backend))
        await apply(backend, contribute(leases["a"], b"locked", final=True))
        await backend.complete("b", b"late")
        found = await group(backend, "root")
        assert (found.value, found.open) == (b"locked", 0)
        assert (await state(backend, "b")).result == b"late"

    @needs("operating")
    async def test_completing_a_member_leaves_the_rest_of_its_group(self, backend: Backend) -> None:
        """The group goes on, and other members are not affected."""
        leases = await start_family(backend)
        changed = await backend.complete("b", b"x")
        assert changed.effects.ended_groups == ()
        assert await open_members(backend, "root") == 2
        settled = await apply(backend, succeed(leases["a1"]), succeed(leases["a2"]))
        assert only(settled.effects.ended_groups).value == b"x"

    @needs("operating")
    @pytest.mark.parametrize("how", [succeed, die, cancel])
    async def test_completing_an_ended_item_is_refused(self, backend: Backend, how: Any) -> None:
        """`AlreadyEnded` names the status. Nothing changes."""
        await end(backend, item("a"), how=how)
        before = await state(backend, "a")
        with pytest.raises(AlreadyEnded) as refusal:
            await backend.complete("a", b"late")
        assert (refusal.value.id, refusal.value.status) == ("a", before.status)
        assert await state(backend, "a") == before

    @needs("operating")
    async def test_completing_a_missing_item_is_refused(self, backend: Backend) -> None:
        """`NotFound`."""
        with pytest.raises(NotFound):
            await backend.complete("missing", None)
