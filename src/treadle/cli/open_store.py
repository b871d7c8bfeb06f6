"""Open a store that may not be there yet: a server that starts at the same time, or is being restarted."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from treadle.base.wording import duration, one_line
from treadle.errors import StoreUnavailable, message_of
from treadle.logs.lines import WARNING, log_line
from treadle.retry import STORE_BACKOFF


class StoreAway(Exception):
    """The store was unavailable for as long as it was waited for."""


async def open_store(
    opening: Callable[[], Awaitable[object]], name: str, wait: float, stop: asyncio.Event
) -> bool:
    """Call `opening` until the store answers, for at most `wait` seconds: then `StoreAway`. Returns False if
    `stop` was set before. Other errors are raised at once."""
    began, failures = time.monotonic(), 0
    stopping: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    try:
        while not stop.is_set():
            error = await _try(opening, stopping)
            waited = time.monotonic() - began
            if error is None:
                if failures and not stop.is_set():
                    log_line(WARNING, f"the store {one_line(name)} is available after {duration(waited)}")
                return not stop.is_set()
            reason = one_line(message_of(error))
            if waited >= wait:
                raise StoreAway(_given_up(one_line(name), reason, waited if failures else 0.0)) from error
            if not failures:
                limit = "" if math.isinf(wait) else f" for {duration(wait)}"
                log_line(WARNING, f"the store {one_line(name)} is unavailable, trying again{limit}: {reason}")
            failures += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(stopping), STORE_BACKOFF.delay(failures))
        return False
    finally:
        stopping.cancel()


async def _try(
    opening: Callable[[], Awaitable[object]], stopping: asyncio.Future[Any]
) -> StoreUnavailable | None:
    trying = asyncio.ensure_future(opening())
    await asyncio.wait({trying, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not trying.done():
        trying.cancel()
        await asyncio.wait({trying})
        return None
    try:
        trying.result()
    except StoreUnavailable as error:
        return error
    return None


def _given_up(name: str, reason: str, waited: float) -> str:
    state = f"was unavailable for {duration(waited)}" if waited else "is unavailable"
    return f"the store {name} {state}: {reason}"
