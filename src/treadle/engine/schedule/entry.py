"""A schedule in one process: its code, and what this process knows of its stored state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from treadle.base.callables import call
from treadle.define.work import Work
from treadle.engine.guarded_telemetry import GuardedSubmission
from treadle.item import Fire, Schedule
from treadle.retry import STORE_BACKOFF

from .occurrence import CatchUp, Lateness, Timing

RunFn: TypeAlias = Callable[[], Work[Any, Any] | Awaitable[Work[Any, Any] | None] | None]

EARLY: Final = 0.001
"""An occurrence counts as due this many seconds before its time: no sleep is more exact."""


class Recurrence(msgspec.Struct, frozen=True, kw_only=True):
    """What recurs and when: the arguments of `app.schedule`, checked."""

    name: str
    tenant: str
    timing: Timing
    run: RunFn
    catch_up: CatchUp
    options: Mapping[str, Any]
    spec: bytes
    """The timing as it is stored. A different spec makes it a different schedule."""

    async def make_work(self) -> Work[Any, Any] | None:
        """Call `run`. None: there is nothing to submit this time."""
        work: Work[Any, Any] | None = await call(self.run)
        if not isinstance(work, Work | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"run of schedule {self.name!r} must return a Work or None, not {work!r:.80}")
        return work


class ScheduleEntry:
    """One recurrence in one process."""

    def __init__(self, recurrence: Recurrence, now: float) -> None:
        self.recurrence = recurrence
        self.cancelled = False
        self.reset(now)

    def reset(self, now: float) -> None:
        """Forget what is known of the store, and count from `now` on, by the monotonic clock."""
        self.began = now
        self.waiting_since: float | None = None
        """From this instant of the store's clock on, this process waits for occurrences."""
        self.slept_until = 0.0
        """Up to this instant of the store's clock, this process may have been suspended."""
        self.stored: Schedule | None = None
        self.pending: Fire | None = None
        """The occurrence that is being fired, until the store has answered."""
        self.span: GuardedSubmission | None = None
        """The span of what it submits."""
        self.maybe_fired = False
        """The pending occurrence may have been fired already: an answer was lost."""
        self.firing = False
        self.not_before = 0.0
        """Nothing is tried before this instant of the monotonic clock."""
        self.failures = 0

    @property
    def next_at(self) -> float | None:
        """When this process has to fire it next. None: never, as things stand."""
        if self.pending is not None:
            return self.pending.at
        stored = self.stored
        if self.cancelled or stored is None or stored.paused or stored.spec != self.recurrence.spec:
            return None
        return stored.next_at

    def is_due(self, now: float) -> bool:
        """Whether it has to fire at `now`, by the store's clock."""
        at = self.next_at
        return at is not None and at <= now + EARLY

    def may_fire(self, now: float, monotonic: float) -> bool:
        """Whether it has to fire at `now`, by the store's clock, and may be tried at `monotonic`."""
        return self.is_due(now) and self.not_before <= monotonic

    def lateness(self, at: float, now: float, tolerance: float) -> tuple[Lateness, float]:
        """Why the occurrence `at` is late, and up to when occurrences are late for that reason."""
        since = now if self.waiting_since is None else self.waiting_since
        if now - at > tolerance and at < since:
            return "missed", since
        if now - at > tolerance and at < self.slept_until:
            return "slept", self.slept_until
        return "due", at

    def count_failure(self, draw: Callable[[], float]) -> float:
        """Count one more failure. Returns how many seconds to wait before the next try."""
        self.failures += 1
        return STORE_BACKOFF.delay(self.failures, draw)
