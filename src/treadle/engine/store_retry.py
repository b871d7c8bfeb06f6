"""How long to wait for a store that does not answer while a caller waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from treadle.base.timing import Clock
from treadle.errors import StoreUnavailable
from treadle.retry import Retry, retry_call

from .settings import Settings

T = TypeVar("T")

CALLER_RETRY = Retry(attempts=6, base=0.05, factor=2.0, max=2.0, jitter=0.5)
"""For a call that a user awaits: it fails after one or two seconds if the store refuses connections."""
LOCKED_PAUSE = 0.25
"""Seconds after which requests that wait for another transaction are tried again, in a lane of their own."""
LOCKED_TRIES = 60
"""How often a settlement is tried again: for about half a minute."""
LOCKED_SECONDS = 30.0
"""How long a submit is tried again that waits for another transaction."""
CALLER_SECONDS = 2.0
"""After this time such a call is not repeated, however slowly the tries failed. A backend gives up a try
within three seconds if the store gives no sign of life, so that the caller waits for about that long. A store
that is only busy may take as long as the backend is set to wait (`busy_timeout`, `patience`)."""
STOP_TIMEOUT = 2.0
"""Seconds that a stopping process waits for each step that needs the store."""
PROGRESS_CHECK = 0.1
"""Seconds after which it looks again how much is left of a step of many calls."""
LONGEST_STOP = 20.0
"""Seconds that it waits in all for a step of many calls, as long as the store answers them."""


class CallerPatience:
    """Measures how long a caller has waited."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()

    def is_over(self) -> bool:
        return self._clock.monotonic() - self._began > CALLER_SECONDS


async def retry_unavailable(call: Callable[[], Awaitable[T]], settings: Settings) -> T:
    """The answer of `call`, repeated while the store is unavailable."""
    patience = CallerPatience(settings.clock)
    return await retry_call(
        call,
        CALLER_RETRY,
        on=lambda error: isinstance(error, StoreUnavailable) and not patience.is_over(),
        clock=settings.clock,
        random=settings.random.random,
    )


async def wait_briefly(
    coroutine: Coroutine[Any, Any, object], remaining: Callable[[], int] | None = None
) -> bool:
    """Wait for it, at most `STOP_TIMEOUT` seconds, then cancel it and leave it behind. True if it finished;
    its error is raised. Measured in real time: a shutdown must end even where a test owns the clock.

    remaining: how much there is still to do. Each time that gets less, the wait begins anew, up to
        `LONGEST_STOP` in all.
    """
    task = asyncio.ensure_future(coroutine)
    now = time.monotonic()
    until, end = now + STOP_TIMEOUT, now + LONGEST_STOP
    left = 0 if remaining is None else remaining()
    try:
        while not task.done() and now < min(until, end):
            pause = until - now if remaining is None else min(PROGRESS_CHECK, end - now)
            await asyncio.wait({task}, timeout=pause)
            now = time.monotonic()
            if remaining is not None and (rest := remaining()) < left:
                left, until = rest, now + STOP_TIMEOUT
    finally:
        if not task.done():
            task.cancel()
    if not task.done():
        return False
    task.result()
    return True
