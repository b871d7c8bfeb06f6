"""Outage: the store is unavailable, and is so for every loop of the process at once. Say it once."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

from treadle.base.wording import duration, one_line, plural
from treadle.errors import StoreFull, StoreUnavailable, message_of
from treadle.logs.lines import WARNING, log_line

SUMMARY: Final = 60.0
"""Seconds between two lines about an outage that lasts."""
PAUSE: Final = 30.0
"""Seconds after the begin of an outage was logged in which no other is: the store may come and go."""
OUTDATED: Final = 15.0
"""Seconds after which a call that failed, and has not failed again since, no longer counts as failing. Loops
try again sooner."""
STALL: Final = 1.0
"""Seconds by which the event loop is late when calls to the store may fail because of that."""
AFTER_STALL: Final = 5.0
"""Seconds after a stall in which calls that fail count as failed because of it."""
LOOPS: Final = frozenset(("claim", "settle", "renew"))
"""The loops that call the store again and again, and tell when it has answered. The outage is over when all
of those that failed have got an answer."""


class StoreOutage:
    """Whether the store is unavailable, as one process sees it. Threads may share it.

    All loops of the process notice at once. The log has one line when it begins, one per minute while it
    lasts, one when it is over. There is no traceback: nothing is wrong with the program.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.store = ""
        """What to call the store, without passwords."""
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self.since: float | None = None
        """When the store became unavailable, as far as is known. None: it is available."""
        self._failing: dict[str, float] = {}
        """The loops whose last call failed, and when."""
        self._last_failure = 0.0
        self._calls = 0
        self._said: float | None = None
        """When the last line about this outage was logged."""
        self._next_begin = 0.0
        """No line about the begin of an outage comes before this."""
        self._unsaid = 0
        """How many outages were not logged since the last line."""
        self._stalled_at = -math.inf
        self._stall = 0.0
        """When the event loop of this process last went on, and for how long it had been blocked. 0: this was
        said."""

    def note_lag(self, seconds: float) -> None:
        """The event loop of this process is late. If it is by much, it was blocked."""
        if seconds >= STALL:
            with self._lock:
                self._stalled_at, self._stall = self._monotonic(), seconds

    def failed(self, error: BaseException, source: str) -> None:
        """A call of `source` has failed."""
        with self._lock:
            line = self._failed(error, source, self._monotonic())
        if line:
            log_line(WARNING, line)

    def answered(self, source: str) -> None:
        """The store has answered `source`."""
        if self.since is None:
            return
        with self._lock:
            line = self._answered(source, self._monotonic())
        if line:
            log_line(WARNING, line)

    def _failed(self, error: BaseException, source: str, now: float) -> str:
        if self.since is None and now - self._stalled_at < AFTER_STALL:
            return self._stall_line(error)
        if self.since is not None and now - self._last_failure > SUMMARY:
            self._end()  # no call told that it was over
        if self.since is None:
            self.since, self._calls, self._said = now, 0, None
        self._calls += 1
        self._last_failure = now
        if source in LOOPS:
            self._failing[source] = now
        if self._said is None:
            return self._begin_line(error, now)
        if now - self._said < SUMMARY:
            return ""
        self._said = now
        return (
            f"{self.name} has been unavailable for {duration(now - self.since)}: "
            f"{plural(self._calls, 'call')} failed. {_text(error)}"
        )

    def _stall_line(self, error: BaseException) -> str:
        """What failed because the event loop was blocked: the store may be well. Said once."""
        stall, self._stall = self._stall, 0.0
        if not stall:
            return ""
        return (
            f"the event loop of this process was blocked for {duration(stall)}, so calls to {self.name} took "
            f"too long; trying again: {_text(error)}"
        )

    def _begin_line(self, error: BaseException, now: float) -> str:
        if now < self._next_begin:
            return ""
        self._said, self._next_begin = now, now + PAUSE
        unsaid, self._unsaid = self._unsaid, 0
        before = f" It was {unsaid} more times since this was last logged." if unsaid else ""
        return f"{self.name} is unavailable, trying again: {_text(error)}.{before}"

    def _answered(self, source: str, now: float) -> str:
        if self.since is None:
            return ""
        self._failing.pop(source, None)
        self._failing = {each: at for each, at in self._failing.items() if now - at < OUTDATED}
        if self._failing:
            return ""
        lasted, calls, said = now - self.since, self._calls, self._said is not None
        self._end()
        if not said:
            self._unsaid += 1
            return ""
        return f"{self.name} is available again after {duration(lasted)}: {plural(calls, 'call')} had failed"

    def _end(self) -> None:
        self.since = self._said = None
        self._failing.clear()

    @property
    def name(self) -> str:
        return f"the store {one_line(self.store)}" if self.store else "the store"


def is_outage(error: BaseException) -> bool:
    """Whether the store is at fault, for now, and not the program."""
    return isinstance(error, StoreUnavailable | StoreFull)


def _text(error: BaseException) -> str:
    """Why. The class says nothing new."""
    return one_line(message_of(error).rstrip("."))
