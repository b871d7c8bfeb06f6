"""Liveness: how a supervisor sees, from another process, that a child's event loop runs.

A file of eight bytes is mapped into the memory of both processes. The child writes the time there a few times
a second. All processes of a machine share its monotonic clock.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import time
from pathlib import Path

INTERVAL = 0.2


class LoopLiveness:
    """One child's event loop. The child calls `run`, the supervisor `blocked_for`."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    async def run(self) -> None:
        """Write the time until cancelled."""
        while True:
            self._memory[:8] = struct.pack("d", time.monotonic())
            await asyncio.sleep(INTERVAL)

    def blocked_for(self) -> float | None:
        """Seconds since the child last wrote the time; None before the first time."""
        (last,) = struct.unpack("d", self._memory[:8])
        return None if last == 0.0 else time.monotonic() - last

    def close(self) -> None:
        self._memory.close()
