"""Calls that finish despite cancellation."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from treadle.engine.tasks import finish


async def test_a_call_that_is_thrown_away_ends() -> None:
    """Its loop is gone, so nothing will finish it. An error here would make callers try again."""
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def answered() -> int:
        return await answer

    call = finish(answered())
    call.send(None)
    call.close()
    answer.set_result(1)
    await asyncio.sleep(0)


WHERE: ContextVar[str] = ContextVar("where", default="caller")


async def test_a_call_that_begins_at_once_ends_without_a_turn_if_it_does_not_wait() -> None:
    async def answered() -> int:
        WHERE.set("call")
        return 1

    async def refused() -> int:
        raise LookupError("refused")

    turns: list[str] = []
    asyncio.get_running_loop().call_soon(turns.append, "turn")
    assert await finish(answered(), at_once=True) == 1
    with pytest.raises(LookupError, match="refused"):
        await finish(refused(), at_once=True)
    assert (turns, WHERE.get()) == ([], "caller")


async def test_a_call_that_begins_at_once_and_waits_ends_despite_cancellation() -> None:
    """All of it runs in one context, in which it can take back what it has set."""
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    steps: list[str] = []

    async def answered() -> int:
        token = WHERE.set("call")
        steps.append("sent")
        await asyncio.sleep(0)
        value = await answer
        steps.append(WHERE.get())
        WHERE.reset(token)
        return value

    caller = asyncio.ensure_future(finish(answered(), at_once=True))
    await asyncio.sleep(0)
    assert steps == ["sent"]
    caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    answer.set_result(1)
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert steps == ["sent", "call"]
