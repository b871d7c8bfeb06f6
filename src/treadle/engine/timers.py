"""One heap of deadlines and one sleeping task, instead of a timer per item."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import Callable

from treadle.clock import Clock, SystemClock

from .hooks import LOGGER

COMPACT = 64
"""Entries that were taken back stay in the heap until they surface, or until there are so many, and more of
them than of others."""


class Timer:
    """An entry: what is to be called. Taken back, it lets go of everything at once."""

    __slots__ = ("_alarm", "call")

    def __init__(self, alarm: Timers, call: Callable[[], None]) -> None:
        self._alarm = alarm
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        if self.call is not None:
            self.call = None
            self._alarm.cancelled()


class Timers:
    """Calls functions at instants of `clock.monotonic()`. An attempt's timeout and deadline are usually
    taken back long before they are due."""

    __slots__ = ("_cancelled", "_changed", "_clock", "_entries", "_numbers")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._changed = asyncio.Event()
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._entries)

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        when = self._clock.monotonic() + max(0.0, seconds)
        bell = Timer(self, call)
        heapq.heappush(self._entries, (when, next(self._numbers), bell))
        if self._entries[0][0] == when:
            self._changed.set()
        return bell

    def cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled > COMPACT and 2 * self._cancelled > len(self._entries):
            self._entries = [entry for entry in self._entries if entry[2].call is not None]
            heapq.heapify(self._entries)
            self._cancelled = 0

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            self._changed.clear()
            self._ring()
            await self._until_next()

    def _ring(self) -> None:
        now = self._clock.monotonic()
        while self._entries and self._entries[0][0] <= now:
            bell = heapq.heappop(self._entries)[2]
            call, bell.call = bell.call, None
            if call is None:
                self._cancelled -= 1
                continue
            try:
                call()
            except Exception as error:  # noqa: BLE001  the others must ring too
                LOGGER.warning("a timeout could not be carried out: %s", error, exc_info=error)

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
