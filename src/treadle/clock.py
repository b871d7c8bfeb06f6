"""Time comes in through the door: whatever waits or looks at the clock is given a `Clock`.

`treadle.testing.ManualClock` is the other implementation.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
    def now(self) -> float:
        """Wall time in epoch seconds: for what people and stores compare. It may jump, also
        backwards.
        """
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back: for how long something took."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of monotonic time; zero or less gives other tasks a turn and
        returns.
        """
        ...


class SystemClock:
    """The machine's own clocks."""

    __slots__ = ()

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
