"""Calls that finish despite cancellation."""

from __future__ import annotations

import asyncio

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
