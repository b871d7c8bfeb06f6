"""Prune: remove ended items after their retention, in small portions; and report problems of the store."""

from __future__ import annotations

from treadle.backend import Inspected
from treadle.engine.core import Core

INTERVAL = 30.0
PORTION = 1000


class Pruner:
    def __init__(self, core: Core) -> None:
        self._backend = core.backend
        self._clock = core.settings.clock
        self._hooks = core.hooks

    async def run(self) -> None:
        """Prune until cancelled."""
        while True:
            await self._clock.sleep(INTERVAL)
            try:
                await self.run_once()
                await self.inspect()
            except Exception as error:  # noqa: BLE001  items that stay too long are no reason to stop
                self._hooks.report(error, "claim", "could not prune; will retry")

    async def run_once(self) -> int:
        """Remove all that may go. Returns how many items that were."""
        total = pruned = await self._backend.prune(PORTION)
        while pruned >= PORTION:
            await self._clock.sleep(0)
            pruned = await self._backend.prune(PORTION)
            total += pruned
        return total

    async def inspect(self) -> None:
        """Report what the store finds wrong with itself."""
        if isinstance(self._backend, Inspected):
            for problem in await self._backend.inspect():
                self._hooks.report(problem, "claim", "the store reports a problem")
