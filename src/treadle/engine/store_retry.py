"""How long to wait for a store that does not answer, where somebody is waiting for us."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from treadle.errors import StoreUnavailable
from treadle.retry import Retry, retry_call

from .settings import Settings

T = TypeVar("T")

PATIENCE = Retry(attempts=6, base=0.05, factor=2.0, max=2.0, jitter=0.5)
"""A caller is waiting: after one or two seconds without a store it is told."""
FAREWELL = 2.0
"""A process that ends waits no longer than this for each step that takes the store."""


async def patiently(call: Callable[[], Awaitable[T]], settings: Settings) -> T:
    """What `call` answers, tried again while the store is away."""
    return await retry_call(call, PATIENCE, on=_is_away, clock=settings.clock, random=settings.random.random)


def _is_away(error: Exception) -> bool:
    return isinstance(error, StoreUnavailable)


async def briefly(coroutine: Coroutine[Any, Any, object]) -> bool:
    """Wait for it, but no longer than `FAREWELL`, in real time: a shutdown must end, also where a test owns
    the clock. What is not over by then is cancelled, and left behind. Whether it was over; raises what it
    does.
    """
    task = asyncio.ensure_future(coroutine)
    try:
        await asyncio.wait({task}, timeout=FAREWELL)
    finally:
        if not task.done():
            task.cancel()
    if not task.done():
        return False
    task.result()
    return True
