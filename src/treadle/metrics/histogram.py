"""Histogram: counts values in buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence


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

    def observe_all(self, values: Iterable[float]) -> None:
        """As `observe`, for many values: it takes half the time for each."""
        bounds, counts, sum = self.bounds, self.counts, 0.0
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            if value > 0.0:
                sum += value
        self.sum += sum

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


def added(histograms: Iterable[Histogram], bounds: Sequence[float]) -> Histogram:
    """One histogram for all of them, which have these bounds."""
    whole = Histogram(bounds)
    for each in histograms:
        whole.add(each)
    return whole
