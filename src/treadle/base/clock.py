"""Clock: code that waits or reads the time gets one passed in.

`treadle.testing.ManualClock` is the other implementation.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
    def now(self) -> float:
        """Wall time in epoch seconds, to compare with other machines. It may jump, also backwards."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary start, to measure durations. It never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of monotonic time. Zero or less lets other tasks run once."""
        ...


class SystemClock:
    """The clocks of this machine."""

    __slots__ = ()

    # The C functions themselves: this saves a Python call each time that a clock is read.
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
