"""What a handler returns, and what its waiters get (SPEC §2, §17)."""

from __future__ import annotations

import asyncio

import pytest

from tests.engine.kit import AT_ONCE, PATIENCE, MakeApp, Seen, failure, until_status
from treadle import (
    Abort,
    Context,
    GroupFailed,
    NotFound,
    Result,
    Retry,
    StrictReturnError,
    Work,
    WorkFailed,
    work,
)
from treadle.events import Succeeded


@work
async def add(a: int, b: int) -> int:
    return a + b


@work
async def leaf(ctx: Context, value: int) -> Result[int]:
    return ctx.result(value)


@work
async def nothing(ctx: Context) -> Result[None]:
    return ctx.void()


async def test_a_plain_value_is_the_result(make_app: MakeApp) -> None:
    """T1, §1: By Work and by name."""
    async with make_app(add) as app:
        assert await app.enqueue(add(2, 3)).result(PATIENCE) == 5
        assert await app.enqueue(add.name, {"a": 10, "b": 1}).result(PATIENCE) == 11


async def test_ctx_result_is_the_value_of_item_and_group(make_app: MakeApp) -> None:
    """T2, §17: For a single item `await handle` equals `result()`."""
    async with make_app(leaf) as app:
        handle = await app.enqueue(leaf(7))
        assert await handle.result(PATIENCE) == 7
        assert await handle == 7
        assert await app.enqueue(leaf(8)).group(PATIENCE) == 8


async def test_ctx_queue_leaves_the_group_value_to_the_children(make_app: MakeApp) -> None:
    """T3: The item's own result is None."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue([leaf(1), leaf(2)])

    async with make_app(root, leaf) as app:
        handle = await app.enqueue(root())
        assert await handle.result(PATIENCE) is None
        assert await handle.group(PATIENCE) in (1, 2)


async def test_ctx_void_gives_none(make_app: MakeApp) -> None:
    """T4, §17: A group without a contribution and without a failure is None."""
    async with make_app(nothing) as app:
        handle = await app.enqueue(nothing())
        assert await handle.result(PATIENCE) is None
        assert await handle.group(PATIENCE) is None


async def test_a_handler_that_returns_none_contributes_nothing(make_app: MakeApp) -> None:
    """§1: None is `ctx.void()`."""

    @work(name="quiet")
    async def quiet() -> None:
        return None

    async with make_app(quiet) as app:
        handle = await app.enqueue(quiet())
        assert await handle.result(PATIENCE) is None
        assert await handle is None
        group = await app.group(handle.id)
        assert group is not None
        assert not group.contributed


async def test_a_nested_result_gives_the_group_its_value(make_app: MakeApp) -> None:
    """T5: The group ends only after both leaves."""
    ran: list[int] = []

    @work(name="silent")
    async def silent(n: int) -> None:
        ran.append(n)

    @work(name="root")
    async def root(ctx: Context) -> Result[None, str]:
        return ctx.queue(silent(1), silent(2), ctx.result("root-done"))

    async with make_app(root, silent) as app:
        handle = await app.enqueue(root())
        assert await handle.group(PATIENCE) == "root-done"
        assert sorted(ran) == [1, 2]
        assert await handle.result(PATIENCE) is None


async def test_ctx_queue_takes_works_results_and_sequences(make_app: MakeApp) -> None:
    """§2."""
    ran: list[int] = []

    @work(name="note")
    async def note(n: int) -> None:
        ran.append(n)

    @work(name="root")
    async def root(ctx: Context) -> Result[None, None]:
        return ctx.queue(note(1), [note(2), ctx.queue(note(3), [note(4)])], (note(5),))

    async with make_app(root, note) as app:
        await app.enqueue(root()).group(PATIENCE)
    assert sorted(ran) == [1, 2, 3, 4, 5]


async def test_options_of_ctx_queue_do_not_apply_to_nested_results(make_app: MakeApp) -> None:
    """§2."""

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        inner = ctx.queue(leaf(2), priority=1)
        return ctx.queue(leaf(1), inner, priority=9, lane="fast")

    async with make_app(root, leaf) as app:
        handle = await app.enqueue(root())
        await handle.group(PATIENCE)
        page = await app.list(type=leaf.name)
        assert {(item.result, item.priority, item.lane) for item in page.items} == {
            (1, 9, "fast"),
            (2, 1, ""),
        }


async def test_a_result_that_is_not_returned_makes_the_item_dead(make_app: MakeApp) -> None:
    """T11, §2: At once, without a retry."""
    calls: list[int] = []
    detached: list[int] = []

    @work(name="side")
    async def side() -> None:
        detached.append(1)

    @work(name="careless", retry=Retry(attempts=5, base=0))
    async def careless(ctx: Context) -> int:
        calls.append(1)
        ctx.queue(side())
        return 1

    async with make_app(careless, side) as app:
        error = await failure(app.enqueue(careless()).result(PATIENCE))
        assert error.reason == "bad_result"
        assert error.error_type == StrictReturnError.__name__
        assert "not return" in error.error
    assert len(calls) == 1
    assert not detached


@pytest.mark.parametrize("where", ["type", "app"])
async def test_strict_return_can_be_turned_off(make_app: MakeApp, where: str) -> None:
    """T11, §2: Per type or per app. The Result that was not returned does not run."""
    detached: list[int] = []

    @work(name="side")
    async def side() -> None:
        detached.append(1)

    options = {"strict_return": False}

    @work(name="careless", **(options if where == "type" else {}))
    async def careless(ctx: Context) -> int:
        ctx.queue(side())
        return 1

    async with make_app(careless, side, **(options if where == "app" else {})) as app:
        handle = await app.enqueue(careless())
        assert await handle.result(PATIENCE) == 1
        assert await handle.group(PATIENCE) == 1
    assert not detached


async def test_a_handler_that_returns_a_work_is_dead_at_once(make_app: MakeApp) -> None:
    """§17: The error mentions `ctx.queue`. Nothing is retried or run."""
    calls: list[str] = []

    @work(name="inner")
    async def inner() -> None:
        calls.append("inner")

    @work(name="outer", retry=Retry(attempts=5, base=0))
    async def outer() -> Work[None]:
        calls.append("outer")
        return inner()

    async with make_app(outer, inner) as app:
        error = await failure(app.enqueue(outer()).result(PATIENCE))
        assert error.reason == "bad_result"
        assert "ctx.queue" in error.error
    assert calls == ["outer"]


async def test_a_work_queued_twice_makes_the_item_dead(make_app: MakeApp) -> None:
    """§17."""

    @work(name="twice")
    async def twice(ctx: Context) -> Result[None, int]:
        one = leaf(1)
        return ctx.queue(one, one)

    async with make_app(twice, leaf) as app:
        error = await failure(app.enqueue(twice()).result(PATIENCE))
        assert error.reason == "bad_result"


async def test_a_dead_item_raises_work_failed(make_app: MakeApp) -> None:
    """§4: With `.error`, `.error_type`, `.attempts` and `.reason`. A group raises GroupFailed, which is a
    WorkFailed."""

    @work(name="broken", retry=Retry(attempts=2, base=0))
    async def broken() -> None:
        raise LookupError("no such file")

    async with make_app(broken) as app:
        handle = await app.enqueue(broken())
        error = await failure(handle.result(PATIENCE))
        assert type(error) is WorkFailed
        assert (error.id, error.type) == (handle.id, "broken")
        assert (error.error, error.error_type) == ("no such file", "LookupError")
        assert (error.attempts, error.reason) == (2, "exhausted")
        group = await failure(handle.group(PATIENCE))
        assert type(group) is GroupFailed
        assert (group.group_id, group.error) == (handle.id, "no such file")
        # Also when the result comes from the store.
        again = await failure(app.handle(handle.id).result(PATIENCE))
        assert (again.error, again.error_type, again.attempts) == (error.error, error.error_type, 2)


async def test_an_unknown_id_is_not_found(make_app: MakeApp) -> None:
    """§4."""
    async with make_app(add) as app:
        handle = app.handle("missing")
        with pytest.raises(NotFound):
            await handle.result(PATIENCE)
        with pytest.raises(NotFound):
            await handle.group(PATIENCE)
        with pytest.raises(NotFound):
            await handle.state()
        assert await app.get(["missing"]) == [None]
        assert await app.group("missing") is None


async def test_false_values_are_values(make_app: MakeApp) -> None:
    """Only None means no value."""

    @work(name="falsy")
    async def falsy(n: int) -> int | str | list[int]:
        return [0, "", list[int]()][n]

    async with make_app(falsy) as app:
        for n, value in enumerate([0, "", []]):
            handle = await app.enqueue(falsy(n))
            assert await handle.result(PATIENCE) == value
            assert await handle.group(PATIENCE) == value
            assert await app.handle(handle.id).group(PATIENCE) == value


async def test_children_are_stored_in_the_same_step_as_the_success(make_app: MakeApp) -> None:
    """§2: None before the settlement, all after it."""
    seen = Seen()

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        result = ctx.queue(leaf(1), leaf(2), delay=60)
        assert not (await app.list(type=leaf.name)).items
        return result

    app = make_app(root, leaf, on_event=seen)
    async with app:
        handle = await app.enqueue(root())
        await seen.until(Succeeded, handle.id)
        items = (await app.list(type=leaf.name)).items
        assert [(item.status, item.parent, item.group_id) for item in items] == [
            ("scheduled", handle.id, handle.id)
        ] * 2


async def test_a_failed_attempt_queues_nothing(make_app: MakeApp) -> None:
    """§2: The children of an attempt that raises do not exist."""

    @work(name="root", retry=AT_ONCE)
    async def root(ctx: Context) -> Result[None, int]:
        result = ctx.queue(leaf(1))
        if ctx.attempt == 1:
            raise OSError("after all")
        return result

    async with make_app(root, leaf) as app:
        assert await app.enqueue(root()).group(PATIENCE) == 1
        assert len((await app.list(type=leaf.name)).items) == 1


async def test_an_abort_does_not_end_other_members_of_the_group(make_app: MakeApp) -> None:
    """§17: They run and contribute. The group has failed."""

    @work(name="bad")
    async def bad() -> int:
        raise Abort("no")

    @work(name="root")
    async def root(ctx: Context) -> Result[None, int]:
        return ctx.queue(bad(), leaf(3))

    async with make_app(root, bad, leaf) as app:
        assert await app.enqueue(root()).group(PATIENCE, partial=True) == 3


async def test_all_waiters_of_one_item_get_the_result(make_app: MakeApp) -> None:
    async with make_app(add) as app:
        handle = await app.enqueue(add(1, 1), delay=0.05)
        answers = await asyncio.gather(
            *(handle.result(PATIENCE) for _ in range(20)),
            *(app.handle(handle.id).group(PATIENCE) for _ in range(20)),
        )
        assert answers == [2] * 40
        assert (await until_status(app, handle.id, "success")).result == 2
