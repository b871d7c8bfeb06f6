"""Context: what a handler gets (SPEC §3)."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, MakeApp, failure
from treadle import (
    Abort,
    Context,
    InputError,
    ItemState,
    NotFound,
    Result,
    Retry,
    UnsupportedError,
    WorkFailed,
    at_least,
    group,
    work,
)


@work
async def value(n: int) -> int:
    return n


@work
async def bad() -> int:
    raise Abort("bad")


async def test_the_context_identifies_the_item(make_app: MakeApp) -> None:
    """§3: id, type, group_id, attempt, parent, dependencies, tenant, workflow, workflow_type, worker_id."""
    facts: list[object] = []

    @work(name="who")
    async def who(ctx: Context) -> None:
        facts.extend((ctx.id, ctx.type, ctx.group_id, ctx.attempt, ctx.parent, ctx.dependencies))
        facts.extend((ctx.tenant, ctx.workflow, ctx.workflow_type, ctx.worker_id, ctx.deadline))

    async with make_app(who, worker_id="worker-1") as app:
        handle = await app.enqueue(who(), workflow="order-1", workflow_type="order")
        await handle.result(PATIENCE)
    assert facts[:6] == [handle.id, "who", handle.id, 1, None, ()]
    assert facts[6:] == ["default", "order-1", "order", "worker-1", None]


async def test_the_deadline_is_an_aware_datetime(make_app: MakeApp) -> None:
    """§3."""
    seen: list[datetime | None] = []
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)

    @work(name="look")
    async def look(ctx: Context) -> None:
        seen.append(ctx.deadline)

    async with make_app(look) as app:
        await app.enqueue(look(), deadline=at).result(PATIENCE)
        await app.enqueue(look(), expires_in=timedelta(minutes=5)).result(PATIENCE)
    assert seen[0] == at
    assert seen[1] is not None
    assert timedelta(minutes=4) < seen[1] - datetime.now(UTC) < timedelta(minutes=6)


async def test_children_inherit_tenant_workflow_and_group(make_app: MakeApp) -> None:
    """§4: They do not inherit deadline, priority, lane, queue or key."""
    seen: list[object] = []

    @work(name="child")
    async def child(ctx: Context) -> None:
        seen.extend((ctx.tenant, ctx.workflow, ctx.workflow_type, ctx.group_id, ctx.parent, ctx.deadline))

    @work(name="root")
    async def root(ctx: Context) -> Result[None, None]:
        return ctx.queue(one)

    one = child()
    async with make_app(root, child) as app:
        options = {"priority": 5, "lane": "l", "queue": "q", "key": "k", "expires_in": 3600}
        handle = await app.tenant("acme").enqueue(root(), workflow="w", workflow_type="t", **options)
        await handle.group(PATIENCE)
        (state,) = await app.get([one.id])
    assert seen == ["acme", "w", "t", handle.id, handle.id, None]
    assert state is not None
    assert (state.priority, state.lane, state.queue, state.key) == (0, "", "default", None)


async def test_attempts_count_from_one(make_app: MakeApp) -> None:
    """§3."""
    seen: list[int] = []

    @work(name="third", retry=AT_ONCE)
    async def third(ctx: Context) -> None:
        seen.append(ctx.attempt)
        if ctx.attempt < 3:
            raise OSError("not yet")

    async with make_app(third) as app:
        await app.enqueue(third()).result(PATIENCE)
    assert seen == [1, 2, 3]


async def test_resources_are_what_lifespan_yielded(make_app: MakeApp) -> None:
    """§3, §17: Every attempt between start and stop gets the same object."""
    life: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[dict[str, int]]:
        life.append("up")
        yield {"pool": 7}
        life.append("down")

    @work(name="use")
    async def use(ctx: Context) -> int:
        assert life == ["up"]
        return ctx.resources["pool"]

    async with make_app(use, lifespan=lifespan) as app:
        assert await app.enqueue(use()).result(PATIENCE) == 7
        assert await app.enqueue(use()).result(PATIENCE) == 7
    assert life == ["up", "down"]


async def test_ctx_states_keeps_the_order_and_decodes_results(make_app: MakeApp) -> None:
    """§3, §17: Unknown ids give None."""
    seen: list[ItemState | None] = []

    @work(name="look")
    async def look(ctx: Context, ids: list[str]) -> None:
        seen.extend(await ctx.states(ids))

    async with make_app(look, value, bad) as app:
        good, dead = await app.enqueue(value(4)), await app.enqueue(bad())
        await good.result(PATIENCE)
        await failure(dead.result(PATIENCE))
        await app.enqueue(look([dead.id, "missing", good.id])).result(PATIENCE)
    assert [state and (state.status, state.result) for state in seen] == [
        ("dead", None),
        None,
        ("success", 4),
    ]


async def test_ctx_results_keeps_the_order_and_raises_for_dead_items(make_app: MakeApp) -> None:
    """§3: With `return_exceptions` the exception is in the list."""

    @work(name="sum")
    async def total(ctx: Context, ids: list[str]) -> list[int]:
        return await ctx.results(ids)

    @work(name="gather")
    async def gather(ctx: Context, ids: list[str]) -> list[str]:
        found = await ctx.results(ids, return_exceptions=True)
        return [type(each).__name__ for each in found]

    @work(name="raising")
    async def raising(ctx: Context, id: str) -> None:
        with pytest.raises((WorkFailed, NotFound)):
            await ctx.results([id])

    async with make_app(total, gather, raising, value, bad) as app:
        handles = [await app.enqueue(value(n)) for n in range(3)]
        dead = await app.enqueue(bad())
        for handle in handles:
            await handle.result(PATIENCE)
        await failure(dead.result(PATIENCE))
        ids = [handle.id for handle in handles]
        assert await app.enqueue(total(ids[::-1])).result(PATIENCE) == [2, 1, 0]
        names = await app.enqueue(gather([ids[0], dead.id, "missing"])).result(PATIENCE)
        assert names == ["int", "WorkFailed", "NotFound"]
        for id in (dead.id, "missing"):
            await app.enqueue(raising(id)).result(PATIENCE)


async def test_ctx_results_of_dependencies(make_app: MakeApp) -> None:
    """§7: A released item can read the results that it waited for."""

    @work(name="sum")
    async def total(ctx: Context) -> int:
        return sum(await ctx.results(ctx.dependencies))

    async with make_app(total, value) as app:
        works = [value(n) for n in range(5)]
        last = await app.enqueue(total(), after=works)
        await app.enqueue_many(works)
        assert await last.result(PATIENCE) == 10


async def test_ctx_results_of_a_work_type(make_app: MakeApp) -> None:
    """§19: Of those dependencies that are of the type, in order. Items under its earlier names are, too."""

    @work(name="renamed", aliases=["earlier"])
    async def renamed(n: int) -> str:
        return str(n)

    @work(name="earlier")
    async def earlier(n: int) -> str:
        return f"earlier {n}"

    @work(name="look")
    async def look(ctx: Context) -> list[object]:
        return [await ctx.results(value), await ctx.results(renamed), await ctx.results(look)]

    first = make_app(earlier, value)
    works = [value(1), earlier(2), value(3)]
    async with first as app:
        for handle in await app.enqueue_many(works):
            await handle.result(PATIENCE)
    async with make_app(look, value, renamed) as app:
        last = await app.enqueue(look(), after=[works[2], works[1], works[0], renamed_work := renamed(4)])
        await app.enqueue(renamed_work)
        assert await last.result(PATIENCE) == [[3, 1], ["earlier 2", "4"], []]


async def test_ctx_results_of_a_work_type_has_dead_and_missing_items(make_app: MakeApp) -> None:
    """As for ids. An item that is gone may have been of the type."""
    seen: list[str] = []

    @work(name="look")
    async def look(ctx: Context) -> None:
        seen.extend(type(each).__name__ for each in await ctx.results(bad, return_exceptions=True))
        with pytest.raises(WorkFailed, match="bad"):
            await ctx.results(bad)
        with pytest.raises(NotFound):
            await ctx.results(value)

    async with make_app(look, value, bad) as app:
        handles = [await app.enqueue(value(1)), await app.enqueue(bad())]
        await app.enqueue(look(), after=[*handles, "missing"], when=at_least(2, of="done")).result(PATIENCE)
    assert seen == ["WorkFailed", "NotFound"]


async def test_ctx_results_of_a_work_type_leaves_groups_out(make_app: MakeApp) -> None:
    """The value of a group may be of another type than the items' own values."""

    @work(name="fan out")
    async def fan_out(ctx: Context) -> Result[None, int]:
        return ctx.queue(value(7))

    @work(name="look")
    async def look(ctx: Context) -> list[object]:
        return [await ctx.results(fan_out), await ctx.results(value), await ctx.results(ctx.dependencies)]

    async with make_app(look, value, fan_out) as app:
        root = await app.enqueue(fan_out())
        last = await app.enqueue(look(), after=[group(root), await app.enqueue(value(1))])
        assert await last.result(PATIENCE) == [[], [1], [7, 1]]


async def test_ctx_results_of_a_type_that_the_worker_does_not_run_are_as_declared(make_app: MakeApp) -> None:
    """They were plain data, though the type says what they are. Its earlier names count too."""

    @dataclass
    class Page:
        price: Decimal

    @work(name="old")
    async def fetch_1() -> Page:
        return Page(Decimal("1.5"))

    @work(name="fetch", aliases=["old"])
    async def fetch() -> Page:
        return Page(Decimal("2.5"))

    async def look(ctx: Context) -> list[bool]:
        found = [*await ctx.results(fetch), await ctx.result_of(fetch)]
        return [each == Page(Decimal("1.5")) for each in found]

    async with make_app(fetch_1) as app:
        first = await app.enqueue(fetch_1())
        await first.result(PATIENCE)
    async with make_app(work(name="look")(look)) as app:
        assert await app.enqueue("look", {}, after=[first.id]).result(PATIENCE) == [True, True]


async def test_ctx_result_of_is_the_one_of_its_type(make_app: MakeApp) -> None:
    """§19: Exactly one dependency is of the type. Else the error names them."""
    messages: list[str] = []

    @work(name="other")
    async def other() -> str:
        return "other"

    @work(name="look")
    async def look(ctx: Context) -> str:
        for wrong in (value, bad):
            with pytest.raises(InputError) as caught:
                await ctx.result_of(wrong)
            messages.append(str(caught.value))
        return await ctx.result_of(other)

    async with make_app(look, value, bad, other) as app:
        ids = [(await app.enqueue(each)).id for each in (value(1), other(), value(2))]
        assert await app.enqueue(look(), after=ids).result(PATIENCE) == "other"
    one = "ctx.result_of takes the one dependency that is a"
    assert messages == [
        f"{one} {value.name!r}, and 2 dependencies of this item are ({ids[0]}, {ids[2]}): use "
        "ctx.results(value)",
        f"{one} {bad.name!r}, and no dependency of this item is: it waited for {value.name} {ids[0]}, "
        f"other {ids[1]}, {value.name} {ids[2]}",
    ]


async def test_claim_is_once_per_key_and_tenant(make_app: MakeApp) -> None:
    """§3: For all items, workers and attempts. A retry of the item that claimed the key still has it."""
    order: list[tuple[str, int, bool]] = []

    @work(name="once", retry=AT_ONCE)
    async def once(ctx: Context) -> bool:
        held = await ctx.claim("daily")
        order.append((ctx.tenant, ctx.attempt, held))
        if ctx.attempt == 1:
            raise OSError("again")
        return held

    async with make_app(once) as app, make_app(once):
        answers = [await app.enqueue(once()).result(PATIENCE) for _ in range(2)]
        other = await app.tenant("other").enqueue(once()).result(PATIENCE)
    assert answers == [True, False]
    assert other is True
    assert [held for _, _, held in order] == [True, True, False, False, True, True]


async def test_a_claim_ends_with_its_ttl(make_app: MakeApp) -> None:
    """§3: The default of `ttl` is `keep`."""

    @work(name="brief")
    async def brief(ctx: Context, ttl: float) -> bool:
        return await ctx.claim("brief", ttl=ttl)

    async with make_app(brief) as app:
        assert await app.enqueue(brief(0.02)).result(PATIENCE)
        assert await app.enqueue(brief(60.0), delay=0.1).result(PATIENCE)
        assert not await app.enqueue(brief(60.0)).result(PATIENCE)


async def test_a_claim_does_not_affect_the_engines_keys(make_app: MakeApp) -> None:
    """A12: Groups end as usual, although a handler claims keys that look like the engine's."""

    @work(name="forge")
    async def forge(ctx: Context, key: str) -> bool:
        return await ctx.claim(key)

    async with make_app(forge, value) as app:
        victim = await app.enqueue(value(1), delay=0.1)
        for key in (f"group:{victim.id}:done", f"treadle:unhandled:{victim.id}", victim.id):
            assert await app.enqueue(forge(key)).result(PATIENCE)
        assert await victim.group(PATIENCE) == 1
        with pytest.raises(WorkFailed, match="key"):
            await app.enqueue(forge(""), retry=AT_ONCE).result(PATIENCE)


async def test_a_transaction_needs_the_capability(make_app: MakeApp) -> None:
    """§9: The memory backend does not have it."""

    @work(name="tx", retry=AT_ONCE)
    async def tx(ctx: Context) -> str:
        try:
            async with ctx.transaction():
                return "has"
        except UnsupportedError:
            return "has not"

    async with make_app(tx) as app:
        expected = "has" if "transactions" in app.backend.capabilities else "has not"
        assert await app.enqueue(tx()).result(PATIENCE) == expected


async def test_ctx_log_carries_the_items_fields(make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    """§3: id, type, attempt, tenant, workflow, and the fields of `log_context`."""

    @work(name="speak", log_context=lambda arguments: {"order": arguments["order"]})
    async def speak(ctx: Context, order: str) -> None:
        ctx.log.info("working on %s", order)

    caplog.set_level(logging.INFO, logger="treadle")
    async with make_app(speak) as app:
        handle = await app.enqueue(speak("o-1"), workflow="w")
        await handle.result(PATIENCE)
    (record,) = [record for record in caplog.records if record.message == "working on o-1"]
    names = ("id", "type", "attempt", "tenant", "workflow", "order")
    assert {name: getattr(record, name) for name in names} == {
        "id": handle.id,
        "type": "speak",
        "attempt": 1,
        "tenant": "default",
        "workflow": "w",
        "order": "o-1",
    }


async def test_bad_arguments_of_a_context_method_raise_in_the_handler(make_app: MakeApp) -> None:
    """§2."""

    @work(name="wrong", strict_return=False)
    async def wrong(ctx: Context) -> list[str]:
        errors: list[str] = []
        for call in (
            lambda: ctx.queue(value),  # the type, not a work
            lambda: ctx.queue(value(1), prioritty=1),
            lambda: ctx.result(1, append=5),
            lambda: ctx.queue(value(1), delay=-1),
        ):
            try:
                call()
            except (TypeError, InputError) as error:
                errors.append(type(error).__name__)
        return errors

    async with make_app(wrong) as app:
        assert await app.enqueue(wrong()).result(PATIENCE) == [
            "TypeError",
            "TypeError",
            "InputError",
            "InputError",
        ]


@pytest.mark.parametrize("store", ["memory"], indirect=True)  # the store is not involved
@pytest.mark.parametrize("method", ["claim", "states", "results", "transaction"])
async def test_a_sync_handler_cannot_ask_the_store_through_its_context(
    make_app: MakeApp, method: str
) -> None:
    """`if ctx.claim(key):` was always true: the coroutine was never awaited."""

    @work(name="plain", retry=Retry(attempts=1))
    def plain(ctx: Context) -> str:
        args = {"claim": ("key",), "states": ([ctx.id],), "results": ([ctx.id],), "transaction": ()}[method]
        return "asked" if getattr(ctx, method)(*args) else "refused"

    async with make_app(plain) as app:
        died = await failure(app.enqueue(plain()).result(PATIENCE))
        assert died.error_type == "RuntimeError"
        assert f"ctx.{method}() must be awaited" in str(died)
        assert f"use ctx.sync.{method}(), or make the handler `async def`" in str(died)
