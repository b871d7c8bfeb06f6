"""The store's clock, as far as it can be known without asking."""

from __future__ import annotations

from treadle.backend import Backend
from treadle.clock import Clock

JUMP = 1.0
"""A wall clock that moved so many seconds against the monotonic one was set, or the machine was suspended."""


class StoreClock:
    """Asked now and then; in between, this process's monotonic clock counts on. Never ahead of the store but
    for the drift in between: an answer is taken to be true when it arrives."""

    def __init__(self, backend: Backend, clock: Clock, *, every: float) -> None:
        self._backend = backend
        self._clock = clock
        self._every = every
        self._offset = 0.0
        self._wall = 0.0
        self._until: float | None = None

    @property
    def known(self) -> bool:
        return self._until is not None

    def now(self) -> float:
        return self.at(self._clock.monotonic())

    def at(self, monotonic: float) -> float:
        """What the store's clock shows at an instant of this process's monotonic one."""
        return monotonic + self._offset

    async def refresh(self) -> None:
        """Ask, if it is time to."""
        if self._is_old():
            answer = await self._backend.now()
            self._offset = answer - self._clock.monotonic()
            self._wall = self._drift()
            self._until = self._clock.monotonic() + self._every

    def _is_old(self) -> bool:
        if self._until is None or self._clock.monotonic() >= self._until:
            return True
        return abs(self._drift() - self._wall) > JUMP

    def _drift(self) -> float:
        return self._clock.now() - self._clock.monotonic()
