"""Liveness: what a supervisor and a child tell each other without a message.

A file of sixteen bytes is mapped into the memory of both processes. The child writes there, a few times a
second, the time: its event loop runs. The supervisor writes the time of its last heartbeat for the child: the
child's lease is alive. All processes of a machine share its monotonic clock.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import time
from pathlib import Path

INTERVAL = 0.2
_TIME = struct.Struct("d")


class LoopLiveness:
    """One child's event loop. The child calls `run` and `last_beat`, the supervisor the others."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 2 * _TIME.size)

    async def run(self) -> None:
        """Write the time until cancelled."""
        while True:
            _TIME.pack_into(self._memory, 0, time.monotonic())
            await asyncio.sleep(INTERVAL)

    def blocked_for(self) -> float | None:
        """Seconds since the child last wrote the time; None before the first time."""
        (last,) = _TIME.unpack_from(self._memory, 0)
        return None if last == 0.0 else time.monotonic() - last

    def beat_sent(self, at: float) -> None:
        """A heartbeat for the child that was sent then has been answered."""
        _TIME.pack_into(self._memory, _TIME.size, at)

    def last_beat(self) -> float:
        """When the supervisor's last heartbeat that was answered was sent, by the monotonic clock."""
        (last,) = _TIME.unpack_from(self._memory, _TIME.size)
        return float(last)

    def close(self) -> None:
        self._memory.close()
