"""A store that is not there yet is waited for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from treadle.cli.load import StoreAway, open_store
from treadle.errors import SchemaError, StoreUnavailable


def answers_after(failures: int, error: Exception) -> Callable[[], Coroutine[Any, Any, None]]:
    left = [error] * failures

    async def opening() -> None:
        if left:
            raise left.pop()

    return opening


AWAY = StoreUnavailable("nobody listens")


async def test_it_is_tried_again_until_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    assert await open_store(answers_after(2, AWAY), "db", math.inf, asyncio.Event())
    begun, over = caplog.messages
    assert begun == "the store db is unavailable, trying again: nobody listens"
    assert over.startswith("the store db is available after")


async def test_it_is_given_up_after_the_wait(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StoreAway, match=r"^the store db was unavailable for .*: nobody listens$"):
        await open_store(answers_after(10**6, AWAY), "db", 0.05, asyncio.Event())
    assert len(caplog.messages) == 1


async def test_without_a_wait_it_is_tried_once(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StoreAway, match=r"^the store db is unavailable: nobody listens$"):
        await open_store(answers_after(1, AWAY), "db", 0, asyncio.Event())
    assert not caplog.messages


async def test_a_stop_ends_the_wait_and_a_try_that_hangs() -> None:
    stop = asyncio.Event()
    waiting = asyncio.ensure_future(open_store(answers_after(10**6, AWAY), "db", math.inf, stop))
    hanging = asyncio.ensure_future(open_store(asyncio.Event().wait, "db", math.inf, stop))
    await asyncio.sleep(0)
    stop.set()
    assert await asyncio.wait_for(asyncio.gather(waiting, hanging), 10) == [False, False]


async def test_what_the_store_refuses_is_not_tried_again() -> None:
    with pytest.raises(SchemaError):
        await open_store(answers_after(1, SchemaError(9, 5)), "db", math.inf, asyncio.Event())
