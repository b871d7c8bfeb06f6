"""Mistakes of a first program that only a call shows."""

from __future__ import annotations

from typing import Any

import pytest

from treadle import Context, GroupFailed, InputError, Treadle, work


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
    with pytest.raises(InputError, match="arguments beside a name only: 'add' was called with its own"):
        app.enqueue(add(1), {"delay": 60})


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
