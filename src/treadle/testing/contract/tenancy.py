"""Tenants: the same names in two tenants never meet, and the wrong tenant sees nothing, for every verb."""

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
    dependent,
    die,
    end,
    exists,
    group,
    item,
    only,
    pause,
    resume,
    start,
    start_one,
    state,
    status,
    statuses,
    submit,
    submit_each,
    submit_one,
    submit_refused,
    succeed,
)
from .check import consistent, everything
from .subject import Subject, needs

BOTH = ("x", "y")


async def submit_twins(backend: Backend, **fields: Any) -> None:
    """The item `a` of both tenants; that of x came first."""
    for tenant in BOTH:
        await submit(backend, item("a", tenant=tenant, input=tenant.encode(), **fields))


async def start_twins(backend: Backend) -> list[Lease]:
    return [await start_one(backend, item("a", tenant=tenant)) for tenant in BOTH]


async def kill_twins(backend: Backend) -> None:
    await apply(backend, *(die(lease) for lease in await start_twins(backend)))


async def statuses_of_both(backend: Backend, id: str = "a") -> list[str | None]:
    return [only(await statuses(backend, id, tenant=tenant)) for tenant in BOTH]


class TenantCases:
    async def test_two_tenants_may_use_the_same_id(self, backend: Backend) -> None:
        """Tenant and id together name an item. The same id twice in one tenant is a duplicate."""
        await submit_twins(backend)
        found = [await state(backend, "a", tenant) for tenant in BOTH]
        assert [(one.tenant, one.input, one.group_id) for one in found] == [
            ("x", b"x", "a"),
            ("y", b"y", "a"),
        ]
        answers = await submit_each(backend, item("a", tenant="x"), item("a", tenant="z"))
        assert [isinstance(answer, Rejected) for answer in answers] == [True, False]
        await consistent(backend)

    async def test_without_a_tenant_an_id_means_the_first_item(self, backend: Backend) -> None:
        """Several tenants use the id: it means the item that was submitted first."""
        for tenant in ("m", "z", "a"):
            lease = await start_one(backend, item("a", tenant=tenant))
            await apply(backend, contribute(lease, tenant.encode()))
        assert (await state(backend, "a")).tenant == "m"
        assert (await group(backend, "a")).value == b"m"

    async def test_get_returns_only_items_of_its_tenant(self, backend: Backend) -> None:
        """Another tenant's item looks exactly like a missing one."""
        await submit(backend, item("a", tenant="x"))
        assert list(await backend.get(["a", "missing"], tenant="y")) == [None, None]

    async def test_groups_of_two_tenants_are_separate(self, backend: Backend) -> None:
        """The same root id: separate members, counters and values."""
        first, second = await start_twins(backend)
        await apply(backend, succeed(first, item("child")))
        settled = await apply(backend, contribute(second, b"y"))
        assert [(closed.id, closed.tenant) for closed in settled.effects.ended_groups] == [("a", "y")]
        assert (await group(backend, "a", "x")).open == 1
        assert (await group(backend, "a", "y")).value == b"y"
        assert list(await backend.group(["a"], tenant="z")) == [None]
        await consistent(backend)

    async def test_an_item_waits_only_for_items_of_its_tenant(self, backend: Backend) -> None:
        """Another tenant's item of that id is neither waited for nor counted."""
        lease = await start_one(backend, item("p", tenant="x"))
        await end(backend, item("done", tenant="x"))
        await submit(
            backend, dependent("p", id="next", tenant="y"), dependent("done", id="after", tenant="y")
        )
        assert (await apply(backend, succeed(lease))).effects.released == ()
        assert await statuses(backend, "next", "after", tenant="y") == ["blocked", "blocked"]
        assert (await state(backend, "next", "y")).waiting_for == ("p",)
        await end(backend, item("p", tenant="y"))
        assert await status(backend, "next", "y") == "ready"
        await consistent(backend)

    @needs("batches")
    async def test_a_submission_may_hold_items_of_several_tenants(self, backend: Backend) -> None:
        """All are stored or none, each in its own tenant."""
        answers = await submit(backend, item("a", tenant="x"), item("a", tenant="y"))
        assert [(answer.id, answer.group_id) for answer in answers] == [("a", "a"), ("a", "a")]
        answer = await submit_refused(backend, item("b", tenant="x"), item("a", tenant="y"))
        assert (answer.why, answer.ids) == ("duplicate_id", ("a",))
        assert not await exists(backend, "b", "x")
        await consistent(backend)

    async def test_dependencies_of_two_tenants_form_no_cycle(self, backend: Backend) -> None:
        """The same ids mean different items."""
        answers = await submit(
            backend, dependent("b", id="a", tenant="x"), dependent("a", id="b", tenant="y")
        )
        assert [answer.status for answer in answers] == ["blocked", "blocked"]

    async def test_keys_of_two_tenants_are_separate(self, backend: Backend) -> None:
        """For every scope."""
        await end(backend, item("a", key="k", tenant="x"))
        answer = await submit_one(backend, item("b", key="k", key_scope="any", tenant="y"))
        assert not answer.existing
        answer = await submit_one(backend, item("c", key="k", key_scope="any", tenant="x"))
        assert (answer.id, answer.existing) == ("a", True)

    async def test_ended_uses_the_tenant_of_each_ref(self, backend: Backend) -> None:
        """A ref with the wrong tenant is missing."""
        await end(backend, item("a", tenant="x"))
        await submit(backend, item("a", tenant="y"))
        refs = [(tenant, "a") for tenant in ("x", "y", "z")]
        found = await backend.ended(refs, refs)
        assert (list(found.items), list(found.groups)) == ([("x", "a")], [("x", "a")])
        assert found.missing == frozenset({("z", "a")})

    @needs("listing")
    async def test_list_and_counts_cover_only_their_tenant(self, backend: Backend) -> None:
        """With every filter."""
        await submit_twins(backend, workflow="w", key="k")
        for where in ({}, {"workflow": "w"}, {"key": "k"}, {"group_id": "a"}, {"status": ("ready",)}):
            found = await everything(backend, tenant="y", **where)
            assert [(one.tenant, one.id) for one in found] == [("y", "a")]
            assert await everything(backend, tenant="z", **where) == []
        assert {count.tenant for count in await backend.counts(tenant="y", ended=True)} == {"y"}
        assert [count for count in await backend.counts(tenant="z") if count.count] == []

    @needs("listing")
    async def test_list_and_counts_without_a_tenant_cover_all_tenants(self, backend: Backend) -> None:
        """Without a tenant: all tenants."""
        await submit_twins(backend, workflow="w")
        found = await everything(backend, workflow="w")
        assert [(one.tenant, one.id) for one in found] == [("x", "a"), ("y", "a")]
        assert len([count for count in await backend.counts() if count.count]) == 2

    async def test_cancel_stays_in_its_tenant(self, backend: Backend) -> None:
        """The wrong tenant is skipped. Without a tenant only the first item is cancelled."""
        await submit_twins(backend)
        assert (await backend.cancel(["a"], tenant="z")).items == ()
        await backend.cancel(["a"], tenant="y")
        assert await statuses_of_both(backend) == ["ready", "cancelled"]
        await backend.cancel(["a"])
        assert await statuses_of_both(backend) == ["cancelled", "cancelled"]

    async def test_cancel_without_a_tenant_ends_the_first_item(self, backend: Backend) -> None:
        """Several tenants use the id: it means the item that was submitted first."""
        await submit_twins(backend)
        changed = await backend.cancel(["a"])
        assert [(one.tenant, one.id) for one in changed.items] == [("x", "a")]
        assert await statuses_of_both(backend) == ["cancelled", "ready"]

    async def test_cancel_ends_only_descendants_of_the_same_tenant(self, backend: Backend) -> None:
        """Children of the same parent id in another tenant are not touched."""
        for n, lease in enumerate(await start_twins(backend)):
            await apply(backend, succeed(lease, item(f"child{n}")))
        await backend.cancel(["a"], tenant="x")
        assert await status(backend, "child0", "x") == "cancelled"
        assert await status(backend, "child1", "y") == "ready"
        await consistent(backend)

    @needs("operating")
    async def test_complete_stays_in_its_tenant(self, backend: Backend) -> None:
        """The wrong tenant gets `NotFound` with the same text as for a missing item."""
        await submit_twins(backend)
        with pytest.raises(NotFound) as refusal:
            await backend.complete("a", None, tenant="z")
        with pytest.raises(NotFound) as missing:
            await backend.complete("b", None, tenant="z")
        assert str(refusal.value) == str(missing.value).replace("'b'", "'a'")
        await backend.complete("a", b"done", tenant="y")
        assert await statuses_of_both(backend) == ["ready", "success"]

    @needs("operating")
    async def test_requeue_stays_in_its_tenant(self, backend: Backend) -> None:
        """By id and by filter."""
        await kill_twins(backend)
        assert (await backend.requeue(["a"], tenant="z")).items == ()
        assert (await backend.requeue(Filter(), tenant="z")).items == ()
        assert (await backend.requeue(Filter(tenant="x"), tenant="y")).items == ()
        assert len((await backend.requeue(["a"], tenant="y")).items) == 1
        assert await statuses_of_both(backend) == ["dead", "ready"]
        assert len((await backend.requeue(Filter(), tenant="x")).items) == 1
        assert await statuses_of_both(backend) == ["ready", "ready"]
        await consistent(backend)

    @needs("operating")
    async def test_trigger_stays_in_its_tenant(self, backend: Backend) -> None:
        """The wrong tenant gets `NotFound`, and nothing is triggered."""
        await submit_twins(backend, delay=1000)
        await submit(backend, item("b", tenant="y", delay=1000))
        with pytest.raises(NotFound):
            await backend.trigger(["a", "b"], tenant="x")
        assert await claim(backend) == []
        await backend.trigger(["a"], tenant="y")
        assert [(lease.tenant, lease.id) for lease in await claim(backend)] == [("y", "a")]

    @needs("operating")
    async def test_delete_stays_in_its_tenant(self, backend: Backend) -> None:
        """The wrong tenant is skipped. Another tenant's dependents do not prevent deletion."""
        await submit_twins(backend)
        await submit(backend, dependent("a", id="waiting", tenant="y"))
        assert (await backend.delete(["a"], tenant="z")).items == ()
        changed = await backend.delete(["a"], tenant="x")
        assert [(one.tenant, one.id) for one in changed.items] == [("x", "a")]
        assert await statuses_of_both(backend) == [None, "ready"]
        await consistent(backend)

    @needs("operating")
    async def test_cascade_stays_in_its_tenant(self, backend: Backend) -> None:
        """It deletes only prerequisites of the same tenant."""
        await submit_twins(backend)
        await submit(backend, dependent("a", id="waiting", tenant="y"))
        changed = await backend.delete(["waiting"], tenant="y", cascade=True)
        assert sorted((one.tenant, one.id) for one in changed.items) == [("y", "a"), ("y", "waiting")]
        assert await statuses_of_both(backend) == ["ready", None]

    @needs("operating")
    async def test_a_pause_stays_in_its_tenant(self, backend: Backend) -> None:
        """Resuming does too."""
        await submit_twins(backend)
        await pause(backend, "default", tenant="x")
        await resume(backend, "default", tenant="y")
        assert [lease.tenant for lease in await claim(backend)] == ["y"]

    async def test_claimed_keys_of_two_tenants_are_separate(self, backend: Backend) -> None:
        """Each tenant has its own."""
        assert await backend.claim_key("k", "me", 100, tenant="x")
        assert await backend.claim_key("k", "you", 100, tenant="y")
        assert not await backend.claim_key("k", "you", 100, tenant="x")

    @needs("fencing")
    async def test_a_lease_is_valid_only_in_its_tenant(self, backend: Backend) -> None:
        """Settling one twin does not change the other, and a token with the wrong tenant is stale."""
        first, second = await start_twins(backend)
        await apply(backend, die(first))
        assert await statuses_of_both(backend) == ["dead", "running"]
        forged = replace(second, tenant="x")
        assert (await backend.settle([succeed(forged)])).outcomes[0].verb == "stale"
        assert await statuses_of_both(backend) == ["dead", "running"]
        await apply(backend, succeed(second))
        await consistent(backend)

    async def test_children_of_two_tenants_may_have_the_same_id(self, backend: Backend) -> None:
        """Children are stored in the tenant of their parent, even if they name another."""
        first, second = await start_twins(backend)
        await apply(backend, succeed(first, item("child")), succeed(second, item("child", tenant="x")))
        assert await statuses_of_both(backend, "child") == ["ready", "ready"]
        leases = await claim(backend)
        assert sorted(lease.tenant for lease in leases) == ["x", "y"]
        settled = await apply(backend, *(succeed(lease) for lease in leases))
        assert sorted(closed.tenant for closed in settled.effects.ended_groups) == ["x", "y"]
        await consistent(backend)

    @needs("operating")
    async def test_dependents_of_another_tenant_do_not_prevent_pruning(self, subject: Subject) -> None:
        """Another tenant's open item names the same id."""
        backend = subject.backend
        await end(backend, item("p", tenant="x", keep=10), item("p", tenant="y", keep=10))
        await submit(backend, dependent("p", "q", id="waiting", tenant="y"))
        await subject.advance(20)
        assert await backend.prune() == 1
        assert not await exists(backend, "p", "x")
        assert await exists(backend, "p", "y")

    async def test_a_worker_of_one_tenant_gets_only_its_items(self, backend: Backend) -> None:
        """It does not get other tenants' verdicts either."""
        await submit_twins(backend)
        await submit(backend, dependent("q", id="doomed", need=2, tenant="x"))
        lease = await claim_one(backend, tenants=("y",))
        assert lease.tenant == "y"
        found = by_id(await start(backend, item("b", tenant="x")))
        assert found["b"].tenant == "x"
