"""`.next`: the works that run when a cohort has met its condition (SPEC §2, §17)."""

from __future__ import annotations

import pytest

from tests.engine.kit import PATIENCE, Barrier, MakeApp, failure
from treadle import Abort, Context, GroupFailed, InputError, Result, at_least, work


@work
async def value(n: int) -> int:
    return n


@work
async def bad(ctx: Context) -> int:
    raise Abort("bad")


async def test_next_works_run_in_order(make_app: MakeApp) -> None:
    """T8."""
    order: list[str] = []

    @work(name="step")
    async def step(name: str) -> None:
        order.append(name)

    @work(name="root")
    async def root(ctx: Context) -> Result[None, None]:
        return ctx.queue(step("a")).next(step("b")).next(step("c"), step("d")).next(step("e"))

    async with make_app(root, step) as app:
        await app.enqueue(root()).group(PATIENCE)
    assert order[:2] == ["a", "b"]
    assert sorted(order[2:4]) == ["c", "d"]
    assert order[4] == "e"


async def test_children_and_next_works_know_their_parent_and_dependencies(make_app: MakeApp) -> None:
    """T9, T10, §2: The parent is the item that queued them. A next work also sees the items that it waited
    for."""

    @work(name="who")
    async def who(ctx: Context) -> tuple[str | None, tuple[str, ...]]:
        return (ctx.parent, ctx.dependencies)

    first, last = who(), who()

    @work(name="root")
    async def root(ctx: Context) -> Result[None, tuple[str | None, tuple[str, ...]]]:
        return ctx.queue(first).next(last)

    async with make_app(root, who) as app:
        handle = await app.enqueue(root())
        assert await handle.group(PATIENCE) == (handle.id, (first.id,))
        assert await app.handle(first.id).result(PATIENCE) == (handle.id, ())


async def test_options_of_next_apply_only_to_the_next_works(make_app: MakeApp) -> None:
    """§2."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(value(1), lane="first").next(value(2), priority=3, lane="second")

    async with make_app(root, value) as app:
        await app.enqueue(root()).group(PATIENCE)
        items = (await app.list(type=value.name)).items
        assert {(item.result, item.priority, item.lane) for item in items} == {
            (1, 0, "first"),
            (2, 3, "second"),
        }


async def test_next_on_a_value_waits_for_this_item(make_app: MakeApp) -> None:
    """§17: On `ctx.result` and `ctx.void` the cohort is this item."""
    after = value(2)

    @work(name="root")
    async def root(ctx: Context) -> Result[int, int]:
        return ctx.result(1).next(after)

    @work(name="empty")
    async def empty(ctx: Context) -> Result[None, int]:
        return ctx.void().next(value(3))

    async with make_app(root, empty, value) as app:
        handle = await app.enqueue(root())
        assert await handle.group(PATIENCE) == 2
        assert await handle.result(PATIENCE) == 1
        assert (await app.handle(after.id).state()).after == (handle.id,)
        assert await app.enqueue(empty()).group(PATIENCE) == 3


async def test_a_cohort_contains_only_the_works_named_in_the_result(make_app: MakeApp) -> None:
    """§17, rule 15: With nested Results and their next works, without the items that handlers queue later."""
    order: list[str] = []
    barrier = Barrier()

    @work(name="step")
    async def step(name: str) -> None:
        order.append(name)

    @work(name="grandchild")
    async def grandchild() -> None:
        await barrier.wait()
        order.append("grandchild")

    @work(name="delegating")
    async def delegating(ctx: Context) -> Result[None, None]:
        return ctx.queue(grandchild())

    @work(name="root")
    async def root(ctx: Context) -> Result[None, None]:
        nested = ctx.queue(step("a")).next(step("b"))
        return ctx.queue(nested, delegating()).next(opening)

    @work(name="opening")
    async def open_it() -> None:
        order.append("next")
        barrier.go.set()

    opening = open_it()
    async with make_app(root, step, delegating, grandchild, open_it) as app:
        await app.enqueue(root()).group(PATIENCE)
    assert order == ["a", "b", "next", "grandchild"]


async def test_an_empty_cohort_is_met_at_once(make_app: MakeApp) -> None:
    """§17."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue().next(value(4))

    async with make_app(root, value) as app:
        assert await app.enqueue(root()).group(PATIENCE) == 4


async def test_next_takes_a_condition(make_app: MakeApp) -> None:
    """§2: `all_done` continues after a death. `at_least` continues when enough items have ended."""
    barrier = Barrier()

    @work(name="held")
    async def held() -> int:
        await barrier.wait()
        return 0

    @work(name="opening")
    async def opening() -> int:
        barrier.go.set()
        return 9

    @work(name="done")
    async def done(ctx: Context) -> Result[None, int]:
        return ctx.queue(bad(), value(1)).next(value(2), when="all_done")

    @work(name="some")
    async def some(ctx: Context) -> Result[None, int]:
        return ctx.queue(held(), value(1), value(2)).next(opening(), when=at_least(2))

    async with make_app(done, some, bad, value, held, opening) as app:
        assert await app.enqueue(done()).group(PATIENCE) == 2
        assert await app.enqueue(some()).group(PATIENCE) in (0, 9)


async def test_at_least_more_than_the_cohort_is_refused(make_app: MakeApp) -> None:
    """§17: The handler gets a ValueError."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        with pytest.raises(ValueError, match="at_least"):
            ctx.queue(value(1)).next(value(2), when=at_least(2))
        raise Abort("refused")

    async with make_app(root, value) as app:
        assert (await failure(app.enqueue(root()).result(PATIENCE))).error == "refused"
        with pytest.raises(InputError):
            app.enqueue(value(1), after=["x"], when=at_least(2))


async def test_a_death_ends_all_next_works_at_once(make_app: MakeApp) -> None:
    """A3: They are dead with `unsatisfiable`, and the group ends."""
    second, third = value(2), value(3)

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(bad()).next(second).next(third)

    async with make_app(root, bad, value) as app:
        error = await failure(app.enqueue(root()).group(PATIENCE))
        assert isinstance(error, GroupFailed)
        for dead in (second, third):
            state = await app.handle(dead.id).state()
            assert (state.status, state.reason) == ("dead", "unsatisfiable")
