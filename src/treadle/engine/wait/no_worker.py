"""NoWorkerNotice: one line in the log if no worker can run what this process waits for.

Without it, a program that waits for a result and has forgotten the worker stands still and says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from treadle.backend import Backend
from treadle.base.clock import Clock
from treadle.base.wording import duration, plain
from treadle.engine.registry import Registry
from treadle.errors import TreadleError
from treadle.item import TERMINAL, ItemState, Ref
from treadle.logs.lines import WARNING, log_line
from treadle.store.fleet import Fleet

SLOW: Final = 2.0
"""Seconds of waiting after which the workers are read."""
SOON: Final = 15.0
"""Seconds before they are read again for another item."""
AGAIN: Final = 600.0
"""The same for this item, and after a line in the log."""


class NoWorkerNotice:
    """Looks at the item that is waited for the longest."""

    def __init__(self, backend: Backend, registry: Registry, clock: Clock) -> None:
        self._backend = backend
        self._registry = registry
        self._clock = clock
        self._oldest: Ref | None = None
        self._since = 0.0
        """Since when that one is the oldest."""
        self._not_before = 0.0
        self._not_again_before = 0.0
        """The same for the item that was looked at."""

    async def look(self, waiting: Iterable[Ref]) -> None:
        """Called at each poll with what is waited for, the oldest first."""
        oldest, now = next(iter(waiting), None), self._clock.monotonic()
        if oldest != self._oldest:
            self._oldest, self._since, self._not_again_before = oldest, now, 0.0
        elif oldest is not None and now >= max(self._since + SLOW, self._not_before, self._not_again_before):
            self._not_before, self._not_again_before = now + SOON, now + AGAIN
            if "listing" in self._backend.capabilities:
                await self._read(oldest, now - self._since)

    async def _read(self, ref: Ref, waited: float) -> None:
        tenant, id = ref
        try:
            (state,) = await self._backend.get([id], tenant=tenant)
            fleet = Fleet(await self._backend.workers(), await self._backend.now())
        except TreadleError:
            self._not_before = self._not_again_before = 0.0  # the poll reports that the store does not answer
            return
        if state is not None and state.status != "running" and not _is_served(state, fleet):
            self._not_before = self._clock.monotonic() + AGAIN
            log_line(
                WARNING,
                f"{plain(id)} still waits after {duration(waited)}: no live worker runs {plain(state.type)}"
                f"{self._local_text(state)}. `treadle why {plain(id)}` says more",
                {"id": id, "type": state.type, "tenant": tenant},
            )

    def _local_text(self, state: ItemState) -> str:
        place = self._registry.local_place(state.type)
        return "" if place is None else f", which {place}() defines, so that other processes cannot import it"


def _is_served(state: ItemState, fleet: Fleet) -> bool:
    """Whether a worker serves the item, or if it has ended, any of its group."""
    if state.status in TERMINAL:
        return bool(fleet.taking)
    return fleet.serves(type=state.type, queue=state.queue, tenant=state.tenant)
