"""Functions that users give: which are async, and what becomes of a coroutine that is not awaited."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from treadle import Client, InputError, Retry, Treadle, Worker, set_id_generator, work
from treadle.base.callables import check_not_awaitable, is_async
from treadle.metrics import Metrics


async def later(*_: object) -> None: ...


async def several(*_: object) -> AsyncGenerator[int]:
    yield 1


class Later:
    async def __call__(self, *_: object) -> None: ...

    async def method(self, *_: object) -> None: ...


def plain(*_: object) -> None: ...


ASYNC: dict[str, Callable[..., Any]] = {
    "function": later,
    "generator": several,
    "object": Later(),
    "method": Later().method,
    "partial": functools.partial(later, 1),
    "partial of a partial": functools.partial(functools.partial(Later(), 1), 2),
}


@pytest.mark.parametrize("fn", ASYNC.values(), ids=ASYNC)
def test_async_functions_are_recognised(fn: Callable[..., Any]) -> None:
    assert is_async(fn)


@pytest.mark.parametrize("fn", [plain, functools.partial(plain), print, [].append, int, Later])
def test_plain_functions_are_recognised(fn: Callable[..., Any]) -> None:
    assert not is_async(fn)


REFUSED: dict[str, Callable[[Any], object]] = {
    "on_event": lambda fn: Treadle(on_event=fn),
    "on_error": lambda fn: Client(on_error=fn),
    "on_failure": lambda fn: Treadle(on_failure=fn),
    "generate_id": lambda fn: Treadle(generate_id=fn),
    "on_event of a type": lambda fn: work(on_event=fn)(plain),
    "on_failure of a type": lambda fn: work(on_failure=fn)(plain),
    "log_context": lambda fn: work(log_context=fn)(plain),
    "options": lambda fn: work(options=fn)(plain),
    "backoff": lambda fn: Retry(backoff=fn),
    "next": lambda fn: Treadle().schedule("s", next=fn, run=lambda: None),
    "subscribe": lambda fn: Metrics().subscribe(fn),
    "id generator": set_id_generator,
}


@pytest.mark.parametrize("give", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize(
    "fn", [later, Later(), functools.partial(later), 1], ids=["def", "obj", "partial", "1"]
)
def test_a_hook_that_cannot_wait_refuses_async_functions(give: Callable[[Any], object], fn: Any) -> None:
    with pytest.raises(InputError, match=r"must be a (plain )?function"):
        give(fn)


@pytest.mark.parametrize("name", ["accept", "backpressure", "on_backlog"])
def test_a_hook_that_can_wait_takes_async_functions(name: str) -> None:
    Worker(Client(), **{name: later})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"{name}=1 must be a function"):
        Worker(Client(), **{name: 1})  # type: ignore[arg-type]


def test_middlewares_are_functions() -> None:
    with pytest.raises(InputError, match="middleware"):
        Treadle(middleware=[1])  # type: ignore[list-item]


def test_an_async_codec_is_refused() -> None:
    class Codec:
        async def encode(self, value: object) -> bytes:
            return b""

        async def decode(self, data: bytes) -> object:
            return None

    with pytest.raises(InputError, match="encode"):
        work(codec=Codec())(plain)


def test_an_unexpected_coroutine_is_closed() -> None:
    coroutine = later()
    with pytest.raises(TypeError, match="on_event returned a coroutine"):
        check_not_awaitable(coroutine, "on_event")
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


async def test_a_task_is_no_mistake() -> None:
    """`on_event=lambda event: asyncio.create_task(...)` works."""
    task = asyncio.create_task(later())
    check_not_awaitable(task, "on_event")
    await task
