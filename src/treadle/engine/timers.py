"""Timers: one heap of deadlines and one sleeping task, instead of a task per item."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import Callable

from treadle.backend import Backend
from treadle.base.timing import Clock, SystemClock
from treadle.logs.lines import log_error

COMPACT = 64
"""Cancelled timers stay in the heap until they are due, or until there are more than this and they are the
majority."""


class Timer:
    """One call to be made later. Cancelled, it releases everything that the call refers to."""

    __slots__ = ("_timers", "call")

    def __init__(self, timers: Timers, call: Callable[[], None]) -> None:
        self._timers = timers
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        if self.call is not None:
            self.call = None
            self._timers.cancelled()


class Timers:
    """Calls functions at instants of `clock.monotonic()`. Most timers are cancelled long before they are due:
    they are the timeouts and deadlines of attempts."""

    __slots__ = ("_cancelled", "_changed", "_clock", "_heap", "_numbers")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._changed = asyncio.Event()
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap)

    def now(self) -> float:
        """The instant by the clock of the timers."""
        return self._clock.monotonic()

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        when = self._clock.monotonic() + max(0.0, seconds)
        timer = Timer(self, call)
        heapq.heappush(self._heap, (when, next(self._numbers), timer))
        if self._heap[0][0] == when:
            self._changed.set()
        return timer

    def cancelled(self) -> None:
        """Count a cancelled timer, and rebuild the heap if most of it is cancelled."""
        self._cancelled += 1
        if self._cancelled > COMPACT and 2 * self._cancelled > len(self._heap):
            self._heap = [each for each in self._heap if each[2].call is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    async def run(self) -> None:
        """Make the calls when they are due, until cancelled."""
        while True:
            self._changed.clear()
            self._call_due()
            if self._heap:
                await first_of(self._changed, self._clock, self._heap[0][0] - self._clock.monotonic())
            else:
                await self._changed.wait()

    def _call_due(self) -> None:
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)[2]
            call, timer.call = timer.call, None
            if call is None:
                self._cancelled -= 1
                continue
            try:
                call()
            except Exception as error:  # noqa: BLE001  the other timers must still be called
                log_error("a timer's call failed", error)


async def first_of(event: asyncio.Event, clock: Clock, seconds: float) -> bool:
    """Wait for the event, at most `seconds` by this clock. True if the event is set."""
    if event.is_set() or seconds <= 0:
        return event.is_set()
    if isinstance(clock, SystemClock):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
        return event.is_set()
    # The deadline is computed here: the task starts one loop iteration later, and a test's clock may have
    # moved by then.
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


JUMP = 1.0
"""A wall clock that moved this many seconds against the monotonic one was set, or the machine was
suspended."""


class StoreClock:
    """Asks the store for its time now and then, and counts on by this process's monotonic clock.

    It is never ahead of the store, except for the drift since the last call: an answer counts from its
    arrival.
    """

    def __init__(self, backend: Backend, clock: Clock, *, every: float) -> None:
        self._backend = backend
        self._clock = clock
        self._every = every
        self._offset = 0.0
        self._wall_offset = 0.0
        self._valid_until: float | None = None

    def now(self) -> float:
        return self.at(self._clock.monotonic())

    def at(self, monotonic: float) -> float:
        """The store's time at an instant of this process's monotonic clock."""
        return monotonic + self._offset

    async def refresh(self) -> None:
        """Ask the store, if the last answer is too old."""
        if self._is_old():
            answer = await self._backend.now()
            monotonic = self._clock.monotonic()
            self._offset = answer - monotonic
            self._wall_offset = self._clock.now() - monotonic
            self._valid_until = monotonic + self._every

    def _is_old(self) -> bool:
        monotonic = self._clock.monotonic()
        if self._valid_until is None or monotonic >= self._valid_until:
            return True
        return abs(self._clock.now() - monotonic - self._wall_offset) > JUMP
