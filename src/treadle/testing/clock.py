"""A clock that a test moves."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Generator

from treadle.base.timing import Duration, Instant, instant, seconds

SETTLE_CYCLES = 10
"""Cycles of the event loop that `await clock.advance()` gives to the tasks it woke. One is not enough: a task
that wakes may wake another one."""


class Advanced:
    """The return value of `advance`. Await it to let the tasks run that were woken. It may be ignored."""

    __slots__ = ()

    def __await__(self) -> Generator[object, None, None]:
        for _ in range(SETTLE_CYCLES):
            yield from asyncio.sleep(0).__await__()


class ManualClock:
    """A `Clock` for tests. Time stands still until `advance` or `set`.

    Time jumps: a task that sleeps 1 s in a loop wakes once from `advance(10)` and finds that ten seconds
    have passed, as after a suspended laptop. Sleepers wake in the order in which they are due, then in the
    order in which they began to sleep, so a test sees the same interleaving every time. The clock can be
    moved from another thread.
    """

    def __init__(self, start: Instant = 1_700_000_000.0) -> None:
        self._now = instant(start, field="start")
        self._monotonic = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._lock = threading.RLock()
        self._watchers: list[tuple[int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        sleeper = asyncio.get_running_loop().create_future()
        with self._lock:
            heapq.heappush(self._sleepers, (self._monotonic + seconds, next(self._order), sleeper))
            self._wake_watchers()
        await sleeper

    def advance(self, by: Duration) -> Advanced:
        """Move time forward and wake the tasks that are due. `await` it to let them run first."""
        return self._move(seconds(by, field="by"), wall=None)

    def set(self, to: Instant) -> Advanced:
        """Jump to an instant. A jump into the past moves only the wall clock: monotonic time never goes
        back."""
        target = instant(to, field="to")
        return self._move(max(0.0, target - self._now), wall=target)

    @property
    def sleepers(self) -> int:
        """The number of tasks that sleep now."""
        with self._lock:
            return sum(not sleeper.done() for _, _, sleeper in self._sleepers)

    @property
    def next_wake(self) -> float | None:
        """Seconds until the first sleeper is due. None: no task sleeps."""
        with self._lock:
            self._drop_cancelled()
            return self._sleepers[0][0] - self._monotonic if self._sleepers else None

    async def wait_for_sleepers(self, count: int = 1) -> None:
        """Return when at least `count` tasks sleep. Await it before `advance`."""
        with self._lock:
            if self.sleepers >= count:
                return
            watcher = asyncio.get_running_loop().create_future()
            self._watchers.append((count, watcher))
        await watcher

    def _move(self, by: float, *, wall: float | None) -> Advanced:
        with self._lock:
            self._monotonic += by
            self._now = self._now + by if wall is None else wall
            while self._sleepers and self._sleepers[0][0] <= self._monotonic:
                _wake(heapq.heappop(self._sleepers)[2])
        return Advanced()

    def _drop_cancelled(self) -> None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)

    def _wake_watchers(self) -> None:
        asleep = self.sleepers
        for count, watcher in self._watchers:
            if asleep >= count:
                _wake(watcher)
        self._watchers = [watcher for watcher in self._watchers if asleep < watcher[0]]


def _wake(sleeper: asyncio.Future[None]) -> None:
    loop = sleeper.get_loop()
    if loop is _running_loop():
        _finish(sleeper)
    elif not loop.is_closed():
        loop.call_soon_threadsafe(_finish, sleeper)


def _finish(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
