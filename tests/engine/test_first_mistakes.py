"""Mistakes of a first program that only a call shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from treadle import Abort, Context, GroupFailed, InputError, Result, Treadle, WorkFailed, work


def test_a_context_without_annotation_is_explained() -> None:
    names: dict[str, Any] = {}
    exec("async def first(ctx, x: int) -> int: ...", names)
    first: Any = work(name="first")(names["first"])
    with pytest.raises(
        InputError, match=r"missing parameter 'x'\. To receive the Context, annotate it: `ctx: C"
    ):
        first(1)


def test_a_context_by_keyword_is_refused() -> None:
    async def handler(*, ctx: Context) -> None: ...

    with pytest.raises(TypeError, match="takes its Context by keyword"):
        work(name="keyword")(handler)


@work(name="add")
async def add(a: int) -> int:
    return a


async def test_arguments_beside_a_work_are_refused() -> None:
    """They would be ignored."""
    app: Any = Treadle(work=[add])
    for each in (app, app.sync):
        with pytest.raises(InputError, match="arguments beside a name only: 'add' was called with its own"):
            each.enqueue(add(1), {"delay": 60})


async def test_a_group_is_named_by_its_handle() -> None:
    async with Treadle(work=[add]) as app:
        handle = await app.enqueue(add(1))
        assert await handle == 1
        state = await app.group(handle)
        assert state is not None
        assert state.value == 1
        assert await app.repair(handle) == 0


async def test_a_group_that_failed_for_a_cancelled_item_says_how_to_go_on() -> None:
    """`repair` cannot know that the item may run again."""
    async with Treadle(work=[add]) as app:
        first = await app.enqueue(add(1), delay=60)
        second = await app.enqueue(add(2), after=[first])
        await first.cancel()
        with pytest.raises(GroupFailed, match=r"was cancelled, .* app.requeue\(ids, cancelled=True\)"):
            await second
        assert await app.requeue(first, cancelled=True) == 2


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda app: app.enqueue(add, 1), r"not the work type 'add' itself: call it, as in add\(\.\.\.\)"),
        (lambda app: app.enqueue(add, 1, 2), r"not the work type 'add' itself: call it, as in add\(\.\.\.\)"),
        (lambda app: app.sync.enqueue(add, 1, 2), "not the work type 'add' itself: call it"),
        (
            lambda app: app.enqueue("add", 1, 2),
            r"enqueue takes the arguments .* in a dict, as in enqueue\('add', {",
        ),
        (lambda app: app.enqueue("add", 1), r"in a dict, as in enqueue\('add', {"),
        (lambda app: app.sync.enqueue("add", [1]), r"in a dict, as in enqueue\('add', {"),
        (lambda app: app.register(add(1)), r"not a call: leave its arguments out, as in work=\[add\]"),
    ],
)
async def test_what_is_enqueued_is_a_call(mistake: Callable[[Any], object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        mistake(Treadle(work=[add]))


async def test_a_result_that_was_not_awaited_is_explained() -> None:
    @work(name="total")
    async def total(ctx: Context) -> int:
        return ctx.results(add)  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    async with Treadle(work=[add, total], log_failures=False) as app:
        with pytest.raises(WorkFailed, match=r"annotation `int`: got `coroutine`: is an `await` missing\?;"):
            await app.enqueue(total()).result()


async def test_one_death_is_not_several() -> None:
    @work(name="fail")
    async def fail() -> int:
        raise Abort("no")

    @work(name="chain")
    async def chain(ctx: Context) -> Result[None, int]:
        return ctx.queue(fail()).next(add(1))

    async with Treadle(work=[add, fail, chain], log_failures=False) as app:
        with pytest.raises(GroupFailed, match=r"Abort: no \(1 that waited for it did not run\)"):
            await app.enqueue(chain()).group()
