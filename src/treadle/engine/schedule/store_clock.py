"""The store's clock, estimated between two calls to the store."""

from __future__ import annotations

from treadle.backend import Backend
from treadle.base.clock import Clock

JUMP = 1.0
"""A wall clock that moved this many seconds against the monotonic one was set, or the machine was
suspended."""


class StoreClock:
    """Asks the store for its time now and then, and counts on by this process's monotonic clock.

    It is never ahead of the store, except for the drift since the last call: an answer counts from its
    arrival.
    """

    def __init__(self, backend: Backend, clock: Clock, *, every: float) -> None:
        self._backend = backend
        self._clock = clock
        self._every = every
        self._offset = 0.0
        self._wall_offset = 0.0
        self._valid_until: float | None = None

    def now(self) -> float:
        return self.at(self._clock.monotonic())

    def at(self, monotonic: float) -> float:
        """The store's time at an instant of this process's monotonic clock."""
        return monotonic + self._offset

    async def refresh(self) -> None:
        """Ask the store, if the last answer is too old."""
        if self._is_old():
            answer = await self._backend.now()
            monotonic = self._clock.monotonic()
            self._offset = answer - monotonic
            self._wall_offset = self._clock.now() - monotonic
            self._valid_until = monotonic + self._every

    def _is_old(self) -> bool:
        monotonic = self._clock.monotonic()
        if self._valid_until is None or monotonic >= self._valid_until:
            return True
        return abs(self._clock.now() - monotonic - self._wall_offset) > JUMP
