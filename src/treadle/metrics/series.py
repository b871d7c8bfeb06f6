"""TypeMetrics and Histogram: the values, in plain attributes, so that counting costs almost nothing."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, Literal

from .names import METRICS

# All floats: to compare a float with an int takes twice as long.
SECONDS: Final[tuple[float, ...]] = tuple(
    map(float, (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600))
)
NUMBERS: Final[tuple[float, ...]] = tuple(map(float, (1, 2, 3, 5, 10, 25, 100)))


class Histogram:
    """Counts values in buckets with fixed bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        """The upper bounds of the buckets, inclusive. One more bucket counts higher values."""
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value. A negative one, because two clocks disagree, counts as zero."""
        self.counts[bisect_left(self.bounds, value)] += 1
        if value > 0.0:
            self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float:
        return self.sum / count if (count := self.count) else 0.0

    def quantile(self, q: float) -> float:
        """Estimate the value below which a share `q` (0 to 1) of all values lies, as if values were spread
        evenly within a bucket. At most the highest bound.
        """
        rank, low = q * self.count, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and rank <= count:
                return low + (bound - low) * max(rank, 0.0) / count
            rank, low = rank - count, bound
        return low if self.count else 0.0

    def cumulative(self) -> list[tuple[float, int]]:
        """For each bound, how many values do not exceed it. The last bound is infinite."""
        below, rows = 0, list[tuple[float, int]]()
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            below += count
            rows.append((bound, below))
        return rows

    def add(self, other: Histogram) -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    def __repr__(self) -> str:
        return f"<Histogram of {self.count}, mean {self.mean:g}>"


class TypeMetrics:
    """The counts of one work type. The engine calls the methods, on the event loop only.

    Methods that end an attempt take `held`: whether `claimed` was called for the item. An item that is
    settled without having been claimed here changes no gauge.
    """

    __slots__ = (*(metric.name for metric in METRICS), "_now", "changed", "type")

    def __init__(self, type: str, now: Callable[[], float] = time.time) -> None:
        self.type = type
        self._now = now
        self.changed: Callable[[TypeMetrics], None] | None = None
        """Called after each change, if there is a subscriber."""
        self.queued = self.started = self.succeeded = self.failed = self.retried = 0
        self.deferred = self.expired = self.dead = self.lease_lost = 0
        self.active = self.pending = self.running = self.peak_active = 0
        self.last_queued_at = self.last_started_at = self.last_succeeded_at = self.last_failed_at = 0.0
        self.wait, self.run, self.total = Histogram(SECONDS), Histogram(SECONDS), Histogram(SECONDS)
        self.attempts = Histogram(NUMBERS)

    def queued_one(self, at: float) -> None:
        self.queued += 1
        self.last_queued_at = at
        if self.changed is not None:
            self.changed(self)

    def claimed(self) -> None:
        """An item is leased here. It has not started."""
        self.pending += 1
        self.active += 1
        if self.active > self.peak_active:
            self.peak_active = self.active
        if self.changed is not None:
            self.changed(self)

    def began(self, waited: float) -> None:
        """A pending item starts, `waited` seconds after it became ready."""
        self.started += 1
        self.pending -= 1
        self.running += 1
        self.wait.observe(waited)
        self.last_started_at = self._now()
        if self.changed is not None:
            self.changed(self)

    def succeeded_in(
        self, ran: float | None, total: float, attempt: int, *, held: bool = True, at: float | None = None
    ) -> None:
        """at: the time now, if it is known: the clock is read once for all items that ended together."""
        self.succeeded += 1
        self.last_succeeded_at = self._now() if at is None else at
        if ran is not None:
            self.run.observe(ran)
        self.total.observe(total)
        self.attempts.observe(attempt)
        self._end_attempt(ran is not None, held)

    def died(
        self, ran: float | None, total: float, attempt: int, *, expired: bool, held: bool = True
    ) -> None:
        """ran: None if it died without an attempt, of a verdict or of an unreadable input."""
        self.dead += 1
        if expired:
            self.expired += 1
        elif ran is not None:
            self.failed += 1
            self.last_failed_at = self._now()
        if ran is not None:
            self.run.observe(ran)
        self.total.observe(total)
        self.attempts.observe(attempt)
        self._end_attempt(ran is not None, held)

    def again(self, kind: Literal["retry", "defer"], ran: float | None, *, held: bool = True) -> None:
        """An attempt failed and is retried, or was deferred."""
        if kind == "retry":
            self.failed += 1
            self.retried += 1
            self.last_failed_at = self._now()
        else:
            self.deferred += 1
        if ran is not None:
            self.run.observe(ran)
        self._end_attempt(ran is not None, held)

    def released(self, began: bool, *, held: bool = True) -> None:
        """An item was given back, as if it had never been claimed."""
        self._end_attempt(began, held)

    def lost(self, began: bool, *, held: bool = True) -> None:
        """The lease was lost: another worker may own the item now."""
        self.lease_lost += 1
        self._end_attempt(began, held)

    def _end_attempt(self, began: bool, held: bool) -> None:
        if held:
            self.active -= 1
            if began:
                self.running -= 1
            else:
                self.pending -= 1
        if self.changed is not None:
            self.changed(self)
