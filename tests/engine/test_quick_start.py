"""The first calls of a new user."""

from __future__ import annotations

from collections.abc import Callable

from treadle import Context, Result, Treadle, work


@work
async def add(a: int, b: int) -> int:
    return a + b


@work
def double(a: int) -> int:
    return a * 2


@work
async def total(ctx: Context, n: int) -> Result[None, int]:
    return ctx.queue([add(i, 0) for i in range(n)]).next(add(40, 2))


async def test_enqueue_returns_the_result(make_app: Callable[..., Treadle]) -> None:
    async with make_app(add) as app:
        assert await app.enqueue(add(1, 2)).result(timeout=5) == 3


async def test_handle_is_durable_and_awaitable(make_app: Callable[..., Treadle]) -> None:
    async with make_app(add) as app:
        handle = await app.enqueue(add(1, b=2))
        assert await handle == 3
        assert (await handle.state()).status == "success"


async def test_enqueue_by_name(make_app: Callable[..., Treadle]) -> None:
    async with make_app(add) as app:
        assert await app.enqueue(add.name, {"a": 1, "b": 2}).result(timeout=5) == 3


async def test_a_sync_handler_runs(make_app: Callable[..., Treadle]) -> None:
    async with make_app(double) as app:
        assert await app.enqueue(double(21)).result(timeout=5) == 42


async def test_next_runs_after_a_fan_out(make_app: Callable[..., Treadle]) -> None:
    async with make_app(add, total) as app:
        assert await app.enqueue(total(20)).group(timeout=5) == 42
