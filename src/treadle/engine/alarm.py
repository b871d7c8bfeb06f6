"""One heap of deadlines and one sleeping task, instead of a timer per item."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import Callable

from treadle.clock import Clock, SystemClock


class Alarm:
    """Calls functions at instants of `clock.monotonic()`. An entry cannot be taken back: what it calls
    looks whether it still matters. Entries are few (attempts with a timeout or a deadline) and short-lived.
    """

    __slots__ = ("_changed", "_clock", "_entries", "_numbers")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._changed = asyncio.Event()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        when = self._clock.monotonic() + max(0.0, seconds)
        heapq.heappush(self._entries, (when, next(self._numbers), call))
        if self._entries[0][0] == when:
            self._changed.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            self._changed.clear()
            self._ring()
            await self._until_next()

    def _ring(self) -> None:
        now = self._clock.monotonic()
        while self._entries and self._entries[0][0] <= now:
            heapq.heappop(self._entries)[2]()

    async def _until_next(self) -> None:
        if not self._entries:
            await self._changed.wait()
            return
        wait = self._entries[0][0] - self._clock.monotonic()
        await first_of(self._changed, self._clock, wait)


async def first_of(event: asyncio.Event, clock: Clock, seconds: float) -> bool:
    """Wait for the event, but no longer than `seconds` by this clock. Whether the event came."""
    if event.is_set() or seconds <= 0:
        return event.is_set()
    if isinstance(clock, SystemClock):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
        return event.is_set()
    # Counted from here: the task begins a turn later, and a clock that tests move may have moved by then.
    sleeping = asyncio.ensure_future(_sleep_until(clock, clock.monotonic() + seconds))
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({sleeping, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sleeping.cancel()
        waiting.cancel()
    return event.is_set()


async def _sleep_until(clock: Clock, instant: float) -> None:
    await clock.sleep(instant - clock.monotonic())
