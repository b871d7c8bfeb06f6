"""Tick: how a supervisor sees, from another process, that a child's event loop turns.

Eight bytes of shared memory: the child writes the time there a few times a second. The clock is the machine's
monotonic one, which all its processes share.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import time
from pathlib import Path

INTERVAL = 0.2


class Tick:
    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(struct.pack("d", 0.0))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    def beat(self) -> None:
        self._memory[:8] = struct.pack("d", time.monotonic())

    def silence(self) -> float | None:
        """Seconds since the last tick; None before the first."""
        (last,) = struct.unpack("d", self._memory[:8])
        return None if last == 0.0 else time.monotonic() - last

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(INTERVAL)

    def close(self) -> None:
        self._memory.close()
