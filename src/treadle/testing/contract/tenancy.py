"""Tenants: the same names in two of them never meet, on any verb; the wrong tenant sees nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from treadle.backend import Backend
from treadle.errors import NotFound
from treadle.item import Filter, Lease, Rejected

from .build import (
    apply,
    by_id,
    claim,
    claim_one,
    contribute,
    die,
    end,
    exists,
    gate,
    group,
    item,
    only,
    refused,
    start,
    start_one,
    state,
    status,
    statuses,
    submit,
    submit_each,
    submit_one,
    succeed,
)
from .check import consistent, everything
from .subject import Subject, needs

BOTH = ("x", "y")


async def twins(backend: Backend, **fields: Any) -> None:
    """The item `a` of both tenants; that of x came first."""
    for tenant in BOTH:
        await submit(backend, item("a", tenant=tenant, input=tenant.encode(), **fields))


async def running_twins(backend: Backend) -> list[Lease]:
    return [await start_one(backend, item("a", tenant=tenant)) for tenant in BOTH]


async def dead_twins(backend: Backend) -> None:
    await apply(backend, *(die(lease) for lease in await running_twins(backend)))


async def of_both(backend: Backend, id: str = "a") -> list[str | None]:
    return [only(await statuses(backend, id, tenant=tenant)) for tenant in BOTH]


class TenantCases:
    async def test_two_tenants_may_use_the_same_id(self, backend: Backend) -> None:
        """An item is named by its tenant and its id; twice in one tenant is a duplicate."""
        await twins(backend)
        found = [await state(backend, "a", tenant) for tenant in BOTH]
        assert [(one.tenant, one.input, one.group_id) for one in found] == [
            ("x", b"x", "a"),
            ("y", b"y", "a"),
        ]
        answers = await submit_each(backend, item("a", tenant="x"), item("a", tenant="z"))
        assert [isinstance(answer, Rejected) for answer in answers] == [True, False]
        await consistent(backend)

    async def test_the_operator_sees_the_first(self, backend: Backend) -> None:
        """Without a tenant, an id that several use means the one submitted first."""
        for tenant in ("m", "z", "a"):
            lease = await start_one(backend, item("a", tenant=tenant))
            await apply(backend, contribute(lease, tenant.encode()))
        assert (await state(backend, "a")).tenant == "m"
        assert (await group(backend, "a")).value == b"m"

    async def test_get_sees_its_tenant_only(self, backend: Backend) -> None:
        """What belongs to another is exactly like what does not exist."""
        await submit(backend, item("a", tenant="x"))
        assert list(await backend.get(["a", "nobody"], tenant="y")) == [None, None]

    async def test_groups_do_not_meet(self, backend: Backend) -> None:
        """The same root id: separate members, counters and values; the wrong tenant sees none."""
        first, second = await running_twins(backend)
        await apply(backend, succeed(first, item("child")))
        settled = await apply(backend, contribute(second, b"y"))
        assert [(closed.id, closed.tenant) for closed in settled.effects.closed] == [("a", "y")]
        assert (await group(backend, "a", "x")).open == 1
        assert (await group(backend, "a", "y")).value == b"y"
        assert list(await backend.group(["a"], tenant="z")) == [None]
        await consistent(backend)

    async def test_prerequisites_are_of_the_same_tenant(self, backend: Backend) -> None:
        """Another tenant's item of that id is neither waited for nor counted."""
        lease = await start_one(backend, item("p", tenant="x"))
        await end(backend, item("done", tenant="x"))
        await submit(backend, gate("p", id="next", tenant="y"), gate("done", id="after", tenant="y"))
        assert (await apply(backend, succeed(lease))).effects.released == ()
        assert await statuses(backend, "next", "after", tenant="y") == ["blocked", "blocked"]
        assert (await state(backend, "next", "y")).waiting_for == ("p",)
        await end(backend, item("p", tenant="y"))
        assert await status(backend, "next", "y") == "ready"
        await consistent(backend)

    @needs("batches")
    async def test_a_submission_may_hold_items_of_several_tenants(self, backend: Backend) -> None:
        """Stored together or not at all, each in its own tenant."""
        answers = await submit(backend, item("a", tenant="x"), item("a", tenant="y"))
        assert [(answer.id, answer.group_id) for answer in answers] == [("a", "a"), ("a", "a")]
        answer = await refused(backend, item("b", tenant="x"), item("a", tenant="y"))
        assert (answer.why, answer.ids) == ("duplicate_id", ("a",))
        assert not await exists(backend, "b", "x")
        await consistent(backend)

    async def test_there_is_no_cycle_across_tenants(self, backend: Backend) -> None:
        """The ids are others'."""
        answers = await submit(backend, gate("b", id="a", tenant="x"), gate("a", id="b", tenant="y"))
        assert [answer.status for answer in answers] == ["blocked", "blocked"]

    async def test_keys_do_not_meet(self, backend: Backend) -> None:
        """Whatever the scope."""
        await end(backend, item("a", key="k", tenant="x"))
        answer = await submit_one(backend, item("b", key="k", key_scope="any", tenant="y"))
        assert not answer.existing
        answer = await submit_one(backend, item("c", key="k", key_scope="any", tenant="x"))
        assert (answer.id, answer.existing) == ("a", True)

    async def test_ended_names_the_tenant(self, backend: Backend) -> None:
        """Refs carry their tenant; the wrong one is missing."""
        await end(backend, item("a", tenant="x"))
        await submit(backend, item("a", tenant="y"))
        refs = [(tenant, "a") for tenant in ("x", "y", "z")]
        found = await backend.ended(refs, refs)
        assert (list(found.items), list(found.groups)) == ([("x", "a")], [("x", "a")])
        assert found.missing == frozenset({("z", "a")})

    @needs("listing")
    async def test_lists_and_counts_see_their_tenant_only(self, backend: Backend) -> None:
        """Every filter is within the tenant."""
        await twins(backend, workflow="w", key="k")
        for where in ({}, {"workflow": "w"}, {"key": "k"}, {"group_id": "a"}, {"status": ("ready",)}):
            found = await everything(backend, tenant="y", **where)
            assert [(one.tenant, one.id) for one in found] == [("y", "a")]
            assert await everything(backend, tenant="z", **where) == []
        assert {count.tenant for count in await backend.counts(tenant="y", ended=True)} == {"y"}
        assert [count for count in await backend.counts(tenant="z") if count.count] == []

    @needs("listing")
    async def test_the_operator_lists_all(self, backend: Backend) -> None:
        """Without a tenant: all tenants."""
        await twins(backend, workflow="w")
        found = await everything(backend, workflow="w")
        assert [(one.tenant, one.id) for one in found] == [("x", "a"), ("y", "a")]
        assert len([count for count in await backend.counts() if count.count]) == 2

    async def test_cancel_stays_in_its_tenant(self, backend: Backend) -> None:
        """The wrong tenant: skipped. The operator: the first one only."""
        await twins(backend)
        assert (await backend.cancel(["a"], tenant="z")).items == ()
        await backend.cancel(["a"], tenant="y")
        assert await of_both(backend) == ["ready", "cancelled"]
        await backend.cancel(["a"])
        assert await of_both(backend) == ["cancelled", "cancelled"]

    async def test_the_operator_cancels_the_first(self, backend: Backend) -> None:
        """An id that several tenants use means the one submitted first."""
        await twins(backend)
        changed = await backend.cancel(["a"])
        assert [(one.tenant, one.id) for one in changed.items] == [("x", "a")]
        assert await of_both(backend) == ["cancelled", "ready"]

    async def test_descendants_are_of_the_same_tenant(self, backend: Backend) -> None:
        """Children of the same parent id in another tenant are not touched."""
        for n, lease in enumerate(await running_twins(backend)):
            await apply(backend, succeed(lease, item(f"child{n}")))
        await backend.cancel(["a"], tenant="x")
        assert await status(backend, "child0", "x") == "cancelled"
        assert await status(backend, "child1", "y") == "ready"
        await consistent(backend)

    @needs("operating")
    async def test_complete_stays_in_its_tenant(self, backend: Backend) -> None:
        """The wrong tenant: `NotFound`, never a hint that it exists."""
        await twins(backend)
        with pytest.raises(NotFound) as refusal:
            await backend.complete("a", None, tenant="z")
        with pytest.raises(NotFound) as missing:
            await backend.complete("b", None, tenant="z")
        assert str(refusal.value) == str(missing.value).replace("'b'", "'a'")
        await backend.complete("a", b"done", tenant="y")
        assert await of_both(backend) == ["ready", "success"]

    @needs("operating")
    async def test_requeue_stays_in_its_tenant(self, backend: Backend) -> None:
        """By id and by filter."""
        await dead_twins(backend)
        assert (await backend.requeue(["a"], tenant="z")).items == ()
        assert (await backend.requeue(Filter(), tenant="z")).items == ()
        assert (await backend.requeue(Filter(tenant="x"), tenant="y")).items == ()
        assert len((await backend.requeue(["a"], tenant="y")).items) == 1
        assert await of_both(backend) == ["dead", "ready"]
        assert len((await backend.requeue(Filter(), tenant="x")).items) == 1
        assert await of_both(backend) == ["ready", "ready"]
        await consistent(backend)

    @needs("operating")
    async def test_trigger_stays_in_its_tenant(self, backend: Backend) -> None:
        """The wrong tenant: `NotFound`, nothing triggered."""
        await twins(backend, delay=1000)
        await submit(backend, item("b", tenant="y", delay=1000))
        with pytest.raises(NotFound):
            await backend.trigger(["a", "b"], tenant="x")
        assert await claim(backend) == []
        await backend.trigger(["a"], tenant="y")
        assert [(lease.tenant, lease.id) for lease in await claim(backend)] == [("y", "a")]

    @needs("operating")
    async def test_delete_stays_in_its_tenant(self, backend: Backend) -> None:
        """The wrong tenant: skipped; and nobody in another tenant holds it."""
        await twins(backend)
        await submit(backend, gate("a", id="waiting", tenant="y"))
        assert (await backend.delete(["a"], tenant="z")).items == ()
        changed = await backend.delete(["a"], tenant="x")
        assert [(one.tenant, one.id) for one in changed.items] == [("x", "a")]
        assert await of_both(backend) == [None, "ready"]
        await consistent(backend)

    @needs("operating")
    async def test_cascade_stays_in_its_tenant(self, backend: Backend) -> None:
        """What is waited for is of the same tenant."""
        await twins(backend)
        await submit(backend, gate("a", id="waiting", tenant="y"))
        changed = await backend.delete(["waiting"], tenant="y", cascade=True)
        assert sorted((one.tenant, one.id) for one in changed.items) == [("y", "a"), ("y", "waiting")]
        assert await of_both(backend) == ["ready", None]

    @needs("operating")
    async def test_a_pause_stays_in_its_tenant(self, backend: Backend) -> None:
        """And so does letting go."""
        await twins(backend)
        await backend.pause("default", tenant="x")
        await backend.pause("default", False, tenant="y")
        assert [lease.tenant for lease in await claim(backend)] == ["y"]

    async def test_claimed_keys_do_not_meet(self, backend: Backend) -> None:
        """Each tenant has its own."""
        assert await backend.claim_key("k", "me", 100, tenant="x")
        assert await backend.claim_key("k", "you", 100, tenant="y")
        assert not await backend.claim_key("k", "you", 100, tenant="x")

    @needs("fencing")
    async def test_a_lease_is_of_its_tenant(self, backend: Backend) -> None:
        """Settling one does nothing to the other, nor does a token with the wrong tenant."""
        first, second = await running_twins(backend)
        await apply(backend, die(first))
        assert await of_both(backend) == ["dead", "running"]
        forged = replace(second, tenant="x")
        assert (await backend.settle([succeed(forged)])).outcomes[0].verb == "stale"
        assert await of_both(backend) == ["dead", "running"]
        await apply(backend, succeed(second))
        await consistent(backend)

    async def test_children_of_twins_may_have_the_same_id(self, backend: Backend) -> None:
        """Children are stored in the tenant of the item, whatever they say; twins do not collide."""
        first, second = await running_twins(backend)
        await apply(backend, succeed(first, item("child")), succeed(second, item("child", tenant="x")))
        assert await of_both(backend, "child") == ["ready", "ready"]
        leases = await claim(backend)
        assert sorted(lease.tenant for lease in leases) == ["x", "y"]
        settled = await apply(backend, *(succeed(lease) for lease in leases))
        assert sorted(closed.tenant for closed in settled.effects.closed) == ["x", "y"]
        await consistent(backend)

    @needs("operating")
    async def test_pruning_looks_at_the_right_tenant(self, subject: Subject) -> None:
        """Another tenant's open item that names the same id holds nothing."""
        backend = subject.backend
        await end(backend, item("p", tenant="x", keep=10), item("p", tenant="y", keep=10))
        await submit(backend, gate("p", "q", id="waiting", tenant="y"))
        await subject.advance(20)
        assert await backend.prune() == 1
        assert not await exists(backend, "p", "x")
        assert await exists(backend, "p", "y")

    async def test_turning_to_one_tenant(self, backend: Backend) -> None:
        """A worker bound to a tenant gets nothing of another, not even by its verdicts."""
        await twins(backend)
        await submit(backend, gate("q", id="doomed", need=2, tenant="x"))
        lease = await claim_one(backend, tenants=("y",))
        assert lease.tenant == "y"
        found = by_id(await start(backend, item("b", tenant="x")))
        assert found["b"].tenant == "x"
