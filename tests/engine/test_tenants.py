"""Tenants and idempotency keys (SPEC §12)."""

from __future__ import annotations

import asyncio

import pytest

from tests.engine.kit import PATIENCE, MakeApp, MakeBackend, failure, until, until_status
from treadle import (
    Abort,
    Client,
    Context,
    DuplicateIdError,
    InputError,
    NotFound,
    Result,
    Treadle,
    Work,
    Worker,
    work,
)


@work
async def value(n: int) -> int:
    return n


@work
async def whose(ctx: Context) -> str:
    return ctx.tenant


async def test_a_bound_client_submits_for_its_tenant(make_app: MakeApp) -> None:
    """§12, §17: An app without a tenant submits to "default" and operates on all tenants."""
    async with make_app(whose) as app:
        acme = app.tenant("acme")
        assert await app.enqueue(whose()).result(PATIENCE) == "default"
        assert await acme.enqueue(whose()).result(PATIENCE) == "acme"
        handle = await acme.enqueue(whose())
        assert await app.handle(handle.id).result(PATIENCE) == "acme"
        assert (await handle.state()).tenant == "acme"
        assert {item.tenant for item in (await app.list()).items} == {"default", "acme"}
        assert {item.tenant for item in (await app.list(tenant="acme")).items} == {"acme"}


async def test_items_of_another_tenant_are_not_found(make_app: MakeApp) -> None:
    """§12: By every verb, without a hint that they exist."""
    async with make_app(value) as app:
        acme, other = app.tenant("acme"), app.tenant("other")
        done = await acme.enqueue(value(1), workflow="w")
        await done.result(PATIENCE)
        later = await acme.enqueue(value(2), delay=60, queue="q")
        for handle in (other.handle(done.id), other.handle(later.id)):
            for look in (handle.result, handle.group):
                with pytest.raises(NotFound):
                    await look(PATIENCE)
            with pytest.raises(NotFound):
                await handle.state()
        assert await other.get([done.id, later.id]) == [None, None]
        assert await other.group(done.id) is None
        assert await other.workflow("w") == []
        assert (await other.list()).items == ()
        with pytest.raises(InputError, match="tenant='acme' is refused: this client is bound to"):
            await other.list(tenant="acme")
        assert await other.counts(ended=True) == []
        assert await other.cancel([later.id]) == 0
        with pytest.raises(NotFound):
            await other.complete(later.id, 1)
        with pytest.raises(NotFound):
            await other.trigger([later.id])
        assert await other.delete([done.id, later.id]) == 0
        assert await other.dead.requeue([done.id]) == 0
        await other.handle(later.id).cancel()
        assert (await later.state()).status == "scheduled"
        assert await done.result(PATIENCE) == 1


async def test_dead_letters_are_per_tenant(make_app: MakeApp) -> None:
    """§12."""

    @work(name="bad")
    async def bad() -> None:
        raise Abort("bad")

    async with make_app(bad) as app:
        handles = {name: await app.tenant(name).enqueue(bad()) for name in ("acme", "other")}
        for handle in handles.values():
            await failure(handle.result(PATIENCE))
        found = (await app.tenant("acme").dead.list()).items
        assert [item.id for item in found] == [handles["acme"].id]
        assert await app.tenant("acme").dead.delete() == 1
        assert [item.id for item in (await app.dead.list()).items] == [handles["other"].id]


async def test_pausing_is_per_tenant(make_app: MakeApp) -> None:
    """§12: A tenant pauses only its own items."""
    async with make_app(value) as app:
        acme, other = app.tenant("acme"), app.tenant("other")
        await acme.pause("default")
        held = await acme.enqueue(value(1))
        assert await other.enqueue(value(2)).result(PATIENCE) == 2
        assert (await held.state()).status == "ready"
        await acme.resume("default")
        assert await held.result(PATIENCE) == 1


async def test_two_tenants_can_use_the_same_id(make_app: MakeApp) -> None:
    """DESIGN §5.8: The items are independent."""
    async with make_app(value) as app:
        acme, other = app.tenant("acme"), app.tenant("other")
        one = value(1)
        again = Work(one.id, one.type, {"n": 2}, one.definition)
        first, second = await acme.enqueue(one), await other.enqueue(again)
        assert (await first.result(PATIENCE), await second.result(PATIENCE)) == (1, 2)
        assert (await first.group(PATIENCE), await second.group(PATIENCE)) == (1, 2)
        with pytest.raises(DuplicateIdError):
            await acme.enqueue(again)


async def test_after_finds_only_items_of_the_same_tenant(make_app: MakeApp) -> None:
    """DESIGN §5.8: An item of another tenant does not exist. Its handle is refused, and its id waits for an
    item that may still come."""
    async with make_app(value) as app:
        first = await app.tenant("acme").enqueue(value(1))
        await first.result(PATIENCE)
        with pytest.raises(NotFound):
            await app.tenant("other").enqueue(value(2), after=first)
        waiting = await app.tenant("other").enqueue(value(2), after=first.id)
        state = await waiting.state()
        assert (state.status, state.waiting_for) == ("blocked", (first.id,))


async def test_a_context_finds_only_items_of_its_tenant(make_app: MakeApp) -> None:
    """§3, §12."""

    @work(name="look")
    async def look(ctx: Context, id: str) -> bool:
        return (await ctx.states([id])) == [None]

    async with make_app(look, value) as app:
        handle = await app.tenant("acme").enqueue(value(1))
        await handle.result(PATIENCE)
        assert await app.tenant("other").enqueue(look(handle.id)).result(PATIENCE)
        assert not await app.tenant("acme").enqueue(look(handle.id)).result(PATIENCE)


async def test_a_worker_can_be_limited_to_tenants(store: MakeBackend) -> None:
    """§12: `Worker(tenants=["acme"])`. `Treadle(tenant=)` binds client and worker."""
    client = Client(store(), work=[whose], poll_interval=0.05, lease=5)
    async with client, Worker(client, tenants=["acme"]):
        other = await client.tenant("other").enqueue(whose())
        assert await client.tenant("acme").enqueue(whose()).result(PATIENCE) == "acme"
        assert (await other.state()).status == "ready"
    bound = Treadle(store(), work=[whose], tenant="other", poll_interval=0.05, lease=5)
    async with bound:
        assert await bound.handle(other.id).result(PATIENCE) == "other"
        assert await bound.enqueue(whose()).result(PATIENCE) == "other"
        assert {item.tenant for item in (await bound.list()).items} == {"other"}


async def test_bad_tenant_names_are_refused() -> None:
    """§12."""
    for name in ("", "a\x00b", "x" * 300):
        with pytest.raises(InputError, match="tenant"):
            Treadle().tenant(name)
    with pytest.raises(TypeError, match="tenants"):
        Treadle(tenants="acme")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------ keys


async def test_a_key_answers_with_the_existing_item(make_app: MakeApp) -> None:
    """§12: While its group is open. `handle.existing` is True, and all handles get its value."""
    async with make_app(value) as app:
        first = await app.enqueue(value(1), key="order-42", delay=60)
        second = await app.enqueue(value(2), key="order-42")
        assert (second.existing, second.id) == (True, first.id)
        assert not first.existing
        waiting = asyncio.ensure_future(app.enqueue(value(3), key="order-42").result(PATIENCE))
        # It waits for the existing item.
        await until(lambda: ("default", first.id) in app._core.waiters.items.futures)
        await app.trigger(first)
        assert [await wait for wait in (first.result(PATIENCE), second.result(PATIENCE), waiting)] == [
            1,
            1,
            1,
        ]
        third = await app.enqueue(value(4), key="order-42")
        assert (third.existing, await third.result(PATIENCE)) == (False, 4)


async def test_a_key_is_per_tenant_and_type(make_app: MakeApp) -> None:
    """§12."""

    @work(name="other")
    async def other(n: int) -> int:
        return n

    app = make_app(value, other)
    handles = [
        await app.enqueue(value(1), key="k"),
        await app.enqueue(other(1), key="k"),
        await app.tenant("acme").enqueue(value(1), key="k"),
        await app.enqueue(value(1), key="j"),
    ]
    assert not any(handle.existing for handle in handles)


async def test_a_key_scope_is_open_any_or_seconds(make_app: MakeApp) -> None:
    """§12: The default is `open`."""
    async with make_app(value) as app:
        first = await app.enqueue(value(1), key="k")
        await first.group(PATIENCE)
        assert (await app.enqueue(value(2), key="k", key_scope="any")).existing
        assert (await app.enqueue(value(2), key="k", key_scope=60)).existing
        await asyncio.sleep(0.06)
        assert not (await app.enqueue(value(2), key="k", key_scope=0.05)).existing


async def test_a_key_holds_until_the_group_has_ended(make_app: MakeApp) -> None:
    """§12: Not only until the item has ended."""
    child = value(1)

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(child, delay=60)

    async with make_app(root, value) as app:
        first = await app.enqueue(root(), key="k")
        await first.result(PATIENCE)
        assert (await app.enqueue(root(), key="k")).existing
        await until_status(app, child.id, "scheduled")
        await app.trigger(child)
        await first.group(PATIENCE)
        assert not (await app.enqueue(root(), key="k", delay=60)).existing


async def test_fifty_concurrent_submits_of_one_key_store_one_item(make_app: MakeApp) -> None:
    """§12: From two processes."""
    apps = [make_app(value), make_app(value)]
    for app in apps:
        await app.connect()
    calls = [apps[n % 2].enqueue(value(n), key="k") for n in range(50)]
    handles = await asyncio.gather(*(submit(call) for call in calls))
    assert len({handle.id for handle in handles}) == 1
    assert sum(not handle.existing for handle in handles) == 1
    assert len((await apps[0].list()).items) == 1


async def submit(call):  # type: ignore[no-untyped-def]
    return await call


async def test_a_child_whose_key_exists_does_not_join_the_group(make_app: MakeApp) -> None:
    """§17: `.next` waits for the existing item."""
    order: list[str] = []

    @work(name="step")
    async def step(name: str) -> None:
        order.append(name)

    @work(name="root")
    async def root(ctx: Context) -> Result[None, None]:
        return ctx.queue(step("child"), key="k").next(after)

    after = step("next")
    async with make_app(root, step) as app:
        existing = await app.enqueue(step("existing"), key="k", delay=60)
        handle = await app.enqueue(root())
        await handle.result(PATIENCE)
        state = await app.handle(after.id).state()
        assert (state.status, state.after) == ("blocked", (existing.id,))
        group = await app.group(handle.id)
        assert group is not None
        assert group.open == 1
        await app.trigger(existing)
        await handle.group(PATIENCE)
    assert order == ["existing", "next"]
