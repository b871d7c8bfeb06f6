"""`.next`: what runs when a cohort has met its condition (SPEC §2, §17)."""

from __future__ import annotations

import pytest

from tests.engine.kit import PATIENCE, Gate, MakeApp, failure
from treadle import Abort, Context, GroupFailed, InputError, Result, at_least, work


@work
async def value(n: int) -> int:
    return n


@work
async def bad(ctx: Context) -> int:
    raise Abort("bad")


async def test_next_runs_after(make_app: MakeApp) -> None:
    """T8: a, then b."""
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


async def test_parent_and_dependencies(make_app: MakeApp) -> None:
    """T9, T10, §2: a child's parent is who queued it, a next work's too; it sees what it waited for."""

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


async def test_next_options_are_those_of_the_next_works(make_app: MakeApp) -> None:
    """§2: not of a gate, not of what stands before."""

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
    """§17: on `ctx.result` and `ctx.void` the cohort is this item."""
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


async def test_the_cohort_is_what_the_link_names(make_app: MakeApp) -> None:
    """§17, rule 15: nested Results and their nexts included, not what handlers go on to queue."""
    order: list[str] = []
    gate = Gate()

    @work(name="step")
    async def step(name: str) -> None:
        order.append(name)

    @work(name="grandchild")
    async def grandchild() -> None:
        await gate.passing()
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
        gate.go.set()

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


async def test_next_conditions(make_app: MakeApp) -> None:
    """§2: `all_done` goes on after a death, `at_least` as soon as enough have come."""
    gate = Gate()

    @work(name="held")
    async def held() -> int:
        await gate.passing()
        return 0

    @work(name="opening")
    async def opening() -> int:
        gate.go.set()
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


async def test_at_least_of_fewer_is_refused_where_written(make_app: MakeApp) -> None:
    """§17: `ValueError`, in the handler."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        with pytest.raises(ValueError, match="at_least"):
            ctx.queue(value(1)).next(value(2), when=at_least(2))
        raise Abort("refused")

    async with make_app(root, value) as app:
        assert (await failure(app.enqueue(root()).result(PATIENCE))).error == "refused"
        with pytest.raises(InputError):
            app.enqueue(value(1), after=["x"], when=at_least(2))


async def test_a_dead_link_ends_the_chain_at_once(make_app: MakeApp) -> None:
    """A3: `.next` after a death is dead: unsatisfiable, and so is what follows; the group ends."""
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
