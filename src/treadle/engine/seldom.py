"""Seldom: say something once, then rarely, however often it happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

from treadle.base.wording import MINUTE

MOST_KEYS = 1000


class Seldom:
    """Decides, for each key, whether something is said again: once per `every` seconds. Threads may share
    it."""

    def __init__(self, every: float = MINUTE, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._monotonic = monotonic
        self._said: dict[Hashable, tuple[float, int]] = {}
        """When each was last said, and how often it was left out since."""
        self._lock = threading.Lock()

    def occurrence(self, key: Hashable) -> int | None:
        """It happens now. Returns None if it is not to be said, otherwise how often it was left out."""
        now = self._monotonic()
        with self._lock:
            at, left_out = self._said.get(key, (-self._every, 0))
            if key in self._said and now - at < self._every:
                self._said[key] = (at, left_out + 1)
                return None
            self._said.pop(key, None)
            self._said[key] = (now, 0)
            if len(self._said) > MOST_KEYS:
                del self._said[next(iter(self._said))]
            return left_out


def repeated(left_out: int) -> str:
    """What to append to a line that stands for others too."""
    return f" (and {left_out} more times since it was last logged)" if left_out else ""
