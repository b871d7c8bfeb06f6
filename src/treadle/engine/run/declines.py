"""Declines: how many items of each type the `accept` hook of a worker declined in the last minute."""

from __future__ import annotations

from collections import deque
from typing import Final

from treadle.base.wording import MINUTE

STEP: Final = 5.0
"""Declines are counted in steps of so many seconds."""


class Declines:
    def __init__(self) -> None:
        self._steps: deque[tuple[float, dict[str, int]]] = deque()
        """The beginning of each step, by the monotonic clock, and its counts by type. The newest is last."""

    def add(self, type: str, now: float) -> None:
        """An item of this type was declined."""
        if not self._steps or now - self._steps[-1][0] >= STEP:
            self._remove_old(now)
            self._steps.append((now, {}))
        counts = self._steps[-1][1]
        counts[type] = counts.get(type, 0) + 1

    def last_minute(self, now: float) -> dict[str, int]:
        """The counts of the last minute, by type."""
        self._remove_old(now)
        total: dict[str, int] = {}
        for _, counts in self._steps:
            for type, count in counts.items():
                total[type] = total.get(type, 0) + count
        return total

    def _remove_old(self, now: float) -> None:
        while self._steps and now - self._steps[0][0] > MINUTE:
            self._steps.popleft()
