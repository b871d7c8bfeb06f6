"""Redrive: move dead items back to the queue while the worker is idle."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Final

from treadle.base.timing import seconds
from treadle.engine.core import Core
from treadle.engine.settings import WorkerSettings
from treadle.flow_control import Redrive
from treadle.item import DeathReason, Filter

TRANSIENT: Final[tuple[DeathReason, ...]] = ("exhausted", "lease_lost")
"""Reasons of death that another attempt may avoid. The others would only repeat, or must not be undone: an
item that waited for a success that never came has to stay dead."""
LONGEST: Final = 60.0
"""The longest wait, in seconds, between two searches that found nothing."""


class Redriver:
    """Moves dead items back while the worker is idle.

    idle: whether the worker runs nothing, and found nothing to claim.
    types: the work types that it runs, by name.
    """

    def __init__(
        self,
        core: Core,
        worker: WorkerSettings,
        redrive: Redrive,
        *,
        idle: Callable[[], bool],
        types: Iterable[str],
    ) -> None:
        self._core = core
        self._clock = core.settings.clock
        self._redrive = redrive
        self._backoff = seconds(redrive.backoff, field="backoff")
        self._idle, self._types = idle, types
        self._queues = (None,) if worker.queues is None else worker.queues
        self._tenants = (None,) if worker.tenants is None else worker.tenants
        self._interval = core.settings.poll_interval

    async def run(self) -> None:
        """Redrive until cancelled. While nothing is found, search less and less often."""
        wait = self._interval
        while True:
            await self._clock.sleep(wait)
            if not self._idle():
                wait = self._interval
                continue
            moved = 0
            try:
                moved = await self.run_once()
            except Exception as error:  # noqa: BLE001  dead items can wait
                self._core.hooks.report(error, "claim", "could not redrive; will retry")
            wait = self._interval if moved else min(2 * wait, max(LONGEST, self._interval))

    async def run_once(self) -> int:
        """Move up to `count` items back. Returns how many it moved."""
        left = self._redrive.count
        for where in self._filters():
            if left <= 0:
                break
            left -= await self._move(where, left)
        moved = self._redrive.count - left
        if moved > 0:
            self._core.wakeups.ready()
        return moved

    def _filters(self) -> Iterable[Filter]:
        """One filter for each combination of the worker's types, queues and tenants."""
        places = product(self._types, TRANSIENT, self._queues, self._tenants)
        for type, reason, queue, tenant in places:
            yield Filter(status=("dead",), type=type, reason=reason, queue=queue, tenant=tenant)

    async def _move(self, where: Filter, limit: int) -> int:
        changed = await self._core.backend.requeue(
            where, limit=limit, redrives=self._redrive.max_times, backoff=self._backoff
        )
        return len(changed.items)
