"""Kept reads: what a page shows is read once for all who look at it, and kept for a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

KEPT_SECONDS: Final = 1.0
MOST_KEPT: Final = 200


class KeptReads:
    """Shares reads among requests.

    seconds: for how long what was read is kept.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, seconds: float = KEPT_SECONDS) -> None:
        self._clock = clock
        self._seconds = seconds
        self._reads: dict[Hashable, tuple[float, asyncio.Task[object]]] = {}
        self._running: set[asyncio.Task[object]] = set()

    async def get(self, key: Hashable, read: Callable[[], Awaitable[object]]) -> object:
        """What a read of this key returns. It is not repeated within `seconds`, and requests at the same time
        share one. It goes on if the request that began it is given up."""
        kept = self._reads.get(key)
        if kept is None or self._is_old(*kept):
            self._forget_old()
            task = asyncio.ensure_future(_read(read))
            self._running.add(task)
            task.add_done_callback(self._ended)
            kept = self._reads[key] = (self._clock(), task)
        return await asyncio.shield(kept[1])

    def forget(self) -> None:
        """Read everything anew: something was changed here. A read that has begun may not show it. Those who
        wait for it get it."""
        self._reads = {}

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # an error is no news if everyone who asked has left

    def _is_old(self, at: float, task: asyncio.Task[object]) -> bool:
        if task.get_loop() is not asyncio.get_running_loop():
            return True
        return task.done() and (task.cancelled() or self._clock() - at >= self._seconds)

    def _forget_old(self) -> None:
        self._reads = {key: kept for key, kept in self._reads.items() if not self._is_old(*kept)}
        for key in list(self._reads)[: len(self._reads) - MOST_KEPT + 1]:
            del self._reads[key]


async def _read(read: Callable[[], Awaitable[object]]) -> object:
    return await read()
