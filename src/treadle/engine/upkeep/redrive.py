"""Redrive: give dead items another chance while there is nothing else to do."""

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
"""The deaths that another time may spare. The others would only be repeated, or must not be undone: what was
to follow a success that never came has to stay dead."""
LONGEST: Final = 60.0
"""The longest wait between two looks that found nothing."""


class Redriver:
    """
    idle: whether the worker runs nothing, and found nothing to claim.
    moved: told that there is something to claim, now or soon.
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
        """Redrive until cancelled. While nothing is found, look less and less often."""
        wait = self._interval
        while True:
            await self._clock.sleep(wait)
            if not self._idle():
                wait = self._interval
                continue
            moved = await self._tried()
            wait = self._interval if moved else min(2 * wait, max(LONGEST, self._interval))

    async def _tried(self) -> int:
        try:
            return await self.run_once()
        except Exception as error:  # noqa: BLE001  the dead can wait
            self._hooks.report(error, "claim", "could not redrive; will again")
            return 0

    async def run_once(self) -> int:
        """Move up to `count` items back. How many there were."""
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
        """Where this worker may look: its own types, queues and tenants."""
        places = product(self._types(), TRANSIENT, self._queues, self._tenants)
        for type, reason, queue, tenant in places:
            yield Filter(status=("dead",), type=type, reason=reason, queue=queue, tenant=tenant)

    async def _move(self, where: Filter, limit: int) -> int:
        changed = await self._backend.requeue(
            where, limit=limit, redrives=self._redrive.max_times, backoff=self._backoff
        )
        return len(changed.items)
