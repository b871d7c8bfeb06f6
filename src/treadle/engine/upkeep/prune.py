"""Prune: remove ended items after their retention, in small portions; and report problems of the store.

Every worker does so, and more often while there is much to remove. (One worker removes 40,000 items a second
from PostgreSQL. Larger portions would be little faster, and hold locks for longer.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from treadle.backend import Inspected
from treadle.engine.core import Core

from .unserved_types import UnservedTypes

INTERVAL = 30.0
BUSY_INTERVAL = 1.0
"""The pause after at least a portion was removed."""
PORTION = 1000


class Pruner:
    def __init__(self, core: Core) -> None:
        self._backend = core.backend
        self._clock = core.settings.clock
        self._hooks = core.hooks
        self.unserved = UnservedTypes(core)

    async def run(self) -> None:
        """Prune until cancelled."""
        inspected = self._clock.monotonic()
        busy = False
        while True:
            await self._clock.sleep(min(BUSY_INTERVAL, INTERVAL) if busy else INTERVAL)
            busy = await self._try(self._prune, "could not prune; will retry")
            if self._clock.monotonic() - inspected >= INTERVAL:
                inspected = self._clock.monotonic()
                await self._try(self.inspect, "could not ask the store for its problems; will retry")
                await self._try(self.unserved.run_once, "could not ask for types that no worker has")

    async def _try(self, action: Callable[[], Awaitable[bool]], failed: str) -> bool:
        try:
            return await action()
        except Exception as error:  # noqa: BLE001  items that stay too long are no reason to stop
            self._hooks.report(error, "claim", failed)
            return False

    async def _prune(self) -> bool:
        """Prune. Returns whether there was much to remove."""
        return await self.run_once() >= PORTION

    async def run_once(self) -> int:
        """Remove all that may go. Returns how many items that were."""
        total = pruned = await self._backend.prune(PORTION)
        while pruned >= PORTION:
            await self._clock.sleep(0)
            pruned = await self._backend.prune(PORTION)
            total += pruned
        return total

    async def inspect(self) -> bool:
        """Report what the store finds wrong with itself. Returns whether there is something."""
        problems = await self._backend.inspect() if isinstance(self._backend, Inspected) else ()
        for problem in problems:
            self._hooks.report(problem, "claim", "the store reports a problem")
        return bool(problems)
