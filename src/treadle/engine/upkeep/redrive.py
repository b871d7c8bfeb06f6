"""Redrive: move dead items back to the queue while the worker is idle."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Final

from treadle.backend import Backend
from treadle.clock import Clock
from treadle.engine.hooks import Hooks
from treadle.flow_control import Redrive
from treadle.item import Filter, Reason
from treadle.timing import seconds

TRANSIENT: Final[tuple[Reason, ...]] = ("exhausted", "lease_lost")
"""Reasons of death that another attempt may avoid. The others would only repeat, or must not be undone: an
item that waited for a success that never came has to stay dead."""
LONGEST: Final = 60.0
"""The longest wait, in seconds, between two searches that found nothing."""


class Redriver:
    """Moves dead items back while the worker is idle.

    idle: whether the worker runs nothing, and found nothing to claim.
    moved: called when there is something to claim, now or soon.
    types, queues, tenants: those of the worker; None for all.
    """

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        hooks: Hooks,
        redrive: Redrive,
        *,
        idle: Callable[[], bool],
        moved: Callable[[], None],
        types: Callable[[], Iterable[str]],
        queues: tuple[str, ...] | None,
        tenants: tuple[str, ...] | None,
        interval: float,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._hooks = hooks
        self._redrive = redrive
        self._backoff = seconds(redrive.backoff, field="backoff")
        self._idle, self._moved, self._types = idle, moved, types
        self._queues = (None,) if queues is None else queues
        self._tenants = (None,) if tenants is None else tenants
        self._interval = interval

    async def run(self) -> None:
        """Redrive until cancelled. While nothing is found, search less and less often."""
        wait = self._interval
        while True:
            await self._clock.sleep(wait)
            if not self._idle():
                wait = self._interval
                continue
            moved = await self._run_or_report()
            wait = self._interval if moved else min(2 * wait, max(LONGEST, self._interval))

    async def _run_or_report(self) -> int:
        try:
            return await self.run_once()
        except Exception as error:  # noqa: BLE001  dead items can wait
            self._hooks.report(error, "claim", "could not redrive; will retry")
            return 0

    async def run_once(self) -> int:
        """Move up to `count` items back. Returns how many it moved."""
        left = self._redrive.count
        for where in self._filters():
            if left <= 0:
                break
            left -= await self._move(where, left)
        moved = self._redrive.count - left
        if moved > 0:
            self._moved()
        return moved

    def _filters(self) -> Iterable[Filter]:
        """One filter for each combination of the worker's types, queues and tenants."""
        places = product(self._types(), TRANSIENT, self._queues, self._tenants)
        for type, reason, queue, tenant in places:
            yield Filter(status=("dead",), type=type, reason=reason, queue=queue, tenant=tenant)

    async def _move(self, where: Filter, limit: int) -> int:
        changed = await self._backend.requeue(
            where, limit=limit, redrives=self._redrive.max_times, backoff=self._backoff
        )
        return len(changed.items)
