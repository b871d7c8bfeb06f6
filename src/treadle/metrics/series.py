"""TypeMetrics and ProcessMetrics: the values, in plain attributes, so that counting costs almost nothing."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, TypeAlias, get_args

from treadle.item import DEFAULT_QUEUE, DeathReason, Loss

from .names import CALL_SECONDS, NUMBERS, SECONDS, SIZES


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
        """As `observe`, for many values: bucket by bucket, in a third of the time, and in less where they are
        alike."""
        ordered = sorted(values)
        bounds, begin, end = self.bounds, 0, len(ordered)
        while begin < end:
            bucket = bisect_left(bounds, ordered[begin])
            after = end if bucket == len(bounds) else bisect_right(ordered, bounds[bucket], begin)
            self.counts[bucket] += after - begin
            begin = after
        self.sum += sum(ordered[bisect_left(ordered, 0.0) :])

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


OTHER: Final = "_other"
"""Types beyond `MAX_TYPES`, and queues beyond `MAX_QUEUES`, are counted under this name: labels must not grow
without bounds."""
MAX_QUEUES: Final = 100
MAX_PAIRS: Final = 1000
"""Limit on the pairs of type and queue. A type beyond it is counted for `OTHER`."""
_DEATH_REASONS: Final[tuple[DeathReason, ...]] = get_args(DeathReason)
_LOSSES: Final[tuple[Loss, ...]] = get_args(Loss)


EndedAttempt: TypeAlias = tuple[float, float, int]
"""Seconds that its handler ran, seconds since the item was queued, and the number of the attempt."""


class QueueLabels:
    """The queues that have series of their own: those that this process met first."""

    __slots__ = ("_pairs", "_queues")

    def __init__(self) -> None:
        self._queues: set[str] = set()
        self._pairs = 0

    def label(self, queue: str) -> str:
        """The label for a queue that is new to a type."""
        if queue not in self._queues and len(self._queues) >= MAX_QUEUES:
            return OTHER
        if queue == OTHER or self._pairs >= MAX_PAIRS:
            return OTHER
        self._queues.add(queue)
        self._pairs += 1
        return queue


class QueueMetrics:
    """The counts of one work type in one queue."""

    __slots__ = (
        "attempts",
        "cancelled",
        "dead",
        "failed",
        "lost",
        "retried",
        "run",
        "started",
        "succeeded",
        "total",
        "wait",
    )

    def __init__(self) -> None:
        self.started = self.succeeded = self.failed = self.retried = self.dead = self.cancelled = 0
        self.lost = 0
        """Attempts of workers that died: counted by the next worker that had their items."""
        self.wait, self.run, self.total = Histogram(SECONDS), Histogram(SECONDS), Histogram(SECONDS)
        self.attempts = Histogram(NUMBERS)


class OfAllQueues:
    """An attribute of `TypeMetrics`: the histogram of this name, for all its queues together."""

    def __init__(self, name: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._bounds = bounds

    def __get__(self, series: TypeMetrics, owner: type[TypeMetrics]) -> Histogram:
        # A copy: a scrape may come from another thread.
        return added((getattr(each, self._name) for each in tuple(series.queues.values())), self._bounds)


class CountOfAllQueues:
    """An attribute of `TypeMetrics`: the counter of this name, for all its queues together."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, series: TypeMetrics, owner: type[TypeMetrics]) -> int:
        return sum(getattr(each, self._name) for each in tuple(series.queues.values()))


class TypeMetrics:
    """The counts of one work type. The engine calls the methods, on the event loop only.

    Methods that end an attempt take `held`: whether `claimed` was called for the item. An item that is
    settled without having been claimed here changes no gauge.
    """

    __slots__ = (
        "_labels",
        "_now",
        "active",
        "changed",
        "deaths",
        "deferred",
        "dropped",
        "expired",
        "last_failed_at",
        "last_queued_at",
        "last_started_at",
        "last_succeeded_at",
        "losses",
        "peak_active",
        "pending",
        "queued",
        "queues",
        "running",
        "steps",
        "suspended",
        "type",
    )

    def __init__(
        self, type: str, now: Callable[[], float] = time.time, labels: QueueLabels | None = None
    ) -> None:
        self.type = type
        self._now = now
        self._labels = labels or QueueLabels()
        self.changed: Callable[[TypeMetrics], None] | None = None
        """Called after each change, if there is a subscriber."""
        self.queued = self.deferred = self.suspended = self.steps = self.expired = self.dropped = 0
        self.active = self.pending = self.running = self.peak_active = 0
        self.last_queued_at = self.last_started_at = self.last_succeeded_at = self.last_failed_at = 0.0
        self.queues: dict[str, QueueMetrics] = {}
        """What is counted for each queue."""
        # All reasons from the start: Prometheus sees no increase from a value that was absent.
        self.deaths: dict[DeathReason, int] = dict.fromkeys(_DEATH_REASONS, 0)
        self.losses: dict[Loss, int] = dict.fromkeys(_LOSSES, 0)

    # -- reading what is counted for each queue, or reason ---------------------------------------------

    @property
    def dead(self) -> int:
        return sum(self.deaths.values())

    @property
    def lease_lost(self) -> int:
        return sum(self.losses.values())

    started = CountOfAllQueues("started")
    succeeded = CountOfAllQueues("succeeded")
    failed = CountOfAllQueues("failed")
    retried = CountOfAllQueues("retried")
    cancelled = CountOfAllQueues("cancelled")
    wait = OfAllQueues("wait", SECONDS)
    run = OfAllQueues("run", SECONDS)
    total = OfAllQueues("total", SECONDS)
    attempts = OfAllQueues("attempts", NUMBERS)

    # -- counting --------------------------------------------------------------------------------------

    def _of(self, queue: str) -> QueueMetrics:
        """The counts for a queue that has none yet, or none of its own."""
        label = self._labels.label(queue)
        found = self.queues.get(label)
        if found is None:
            found = self.queues[label] = QueueMetrics()
        return found

    def queued_some(self, count: int, at: float) -> None:
        """Count items that were stored here."""
        self.queued += count
        self.last_queued_at = at
        if self.changed is not None:
            self.changed(self)

    def claimed(self, count: int = 1) -> None:
        """Count items that are leased here and have not started."""
        self.pending += count
        self.active += count
        if self.active > self.peak_active:
            self.peak_active = self.active
        if self.changed is not None:
            self.changed(self)

    def began(self, waited: float, queue: str = DEFAULT_QUEUE) -> None:
        """A pending item starts, `waited` seconds after it became ready."""
        of_queue = self.queues.get(queue) or self._of(queue)
        of_queue.started += 1
        wait = of_queue.wait
        wait.counts[bisect_left(wait.bounds, waited)] += 1  # as in `observe`, without another call
        if waited > 0.0:
            wait.sum += waited
        self.pending -= 1
        self.running += 1
        self.last_started_at = self._now()
        if self.changed is not None:
            self.changed(self)

    def began_again(self, queue: str) -> None:
        """The attempt of this item that began is one after a loss."""
        (self.queues.get(queue) or self._of(queue)).lost += 1

    def succeeded_in(
        self,
        ran: float | None,
        total: float,
        attempt: int,
        *,
        queue: str = DEFAULT_QUEUE,
        held: bool = True,
        at: float | None = None,
    ) -> None:
        """at: the time now, if it is known: the clock is read once for all items that ended together."""
        self.last_succeeded_at = self._now() if at is None else at
        of_queue = self.queues.get(queue) or self._of(queue)
        of_queue.succeeded += 1
        if ran is not None:
            of_queue.run.observe(ran)
        of_queue.total.observe(total)
        of_queue.attempts.observe(attempt)
        self._end_attempt(ran is not None, held)

    def succeeded_together(self, ended: Sequence[EndedAttempt], queue: str, at: float) -> None:
        """As `succeeded_in`, for items of a queue that were leased here and have run."""
        self.last_succeeded_at = at
        of_queue = self.queues.get(queue) or self._of(queue)
        of_queue.succeeded += len(ended)
        of_queue.run.observe_all([ran for ran, _, _ in ended])
        of_queue.total.observe_all([total for _, total, _ in ended])
        of_queue.attempts.observe_all([attempt for _, _, attempt in ended])
        self.active -= len(ended)
        self.running -= len(ended)
        if self.changed is not None:
            self.changed(self)

    def died(
        self,
        ran: float | None,
        total: float,
        attempt: int,
        *,
        reason: DeathReason,
        queue: str = DEFAULT_QUEUE,
        held: bool = True,
    ) -> None:
        """ran: None if it died without an attempt, of a verdict or of an unreadable input."""
        self.deaths[reason] += 1
        of_queue = self.queues.get(queue) or self._of(queue)
        of_queue.dead += 1
        if reason == "expired":
            self.expired += 1
        elif reason == "lease_lost":
            of_queue.lost += 1
        elif ran is not None:
            of_queue.failed += 1
            self.last_failed_at = self._now()
        if ran is not None:
            of_queue.run.observe(ran)
        of_queue.total.observe(total)
        of_queue.attempts.observe(attempt)
        self._end_attempt(ran is not None, held)

    def again(
        self,
        kind: Literal["retry", "defer"],
        ran: float | None,
        *,
        queue: str = DEFAULT_QUEUE,
        held: bool = True,
    ) -> None:
        """An attempt failed and is retried, or was deferred."""
        of_queue = self.queues.get(queue) or self._of(queue)
        if kind == "retry":
            of_queue.failed += 1
            of_queue.retried += 1
            self.last_failed_at = self._now()
        else:
            self.deferred += 1
        if ran is not None:
            of_queue.run.observe(ran)
        self._end_attempt(ran is not None, held)

    def suspended_one(self, ran: float | None, *, queue: str = DEFAULT_QUEUE, held: bool = True) -> None:
        """An attempt ended because its handler waits."""
        self.suspended += 1
        if ran is not None:
            (self.queues.get(queue) or self._of(queue)).run.observe(ran)
        self._end_attempt(ran is not None, held)

    def cancelled_one(self, queue: str = DEFAULT_QUEUE) -> None:
        """An item was cancelled from here, wherever it was."""
        (self.queues.get(queue) or self._of(queue)).cancelled += 1
        if self.changed is not None:
            self.changed(self)

    def dropped_one(self, began: bool, *, queue: str = DEFAULT_QUEUE, held: bool = True) -> None:
        """An item was cancelled because its limit, with `on_full="drop"`, was reached."""
        (self.queues.get(queue) or self._of(queue)).cancelled += 1
        self.dropped += 1
        self._end_attempt(began, held)

    def released(self, began: bool, *, held: bool = True) -> None:
        """An item was given back, as if it had never been claimed."""
        self._end_attempt(began, held)

    def lost(self, began: bool, reason: Loss = "taken", *, held: bool = True) -> None:
        """The lease was lost: another worker may own the item now, or it has ended."""
        self.losses[reason] = self.losses.get(reason, 0) + 1
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


StoreVerb: TypeAlias = Literal["claim", "settle", "submit"]
"""A call of the engine to the store that is measured and traced."""


class ProcessMetrics:
    """What is counted for the whole process: its calls to the store, and how late its event loop is."""

    __slots__ = ("batch_sizes", "claim", "loop_lag", "settle", "submit")

    def __init__(self) -> None:
        self.claim, self.settle = Histogram(CALL_SECONDS), Histogram(CALL_SECONDS)
        self.submit, self.loop_lag = Histogram(CALL_SECONDS), Histogram(CALL_SECONDS)
        self.batch_sizes: dict[StoreVerb, Histogram] = {
            verb: Histogram(SIZES) for verb in ("claim", "settle", "submit")
        }

    @property
    def batch_size(self) -> Histogram:
        return added(self.batch_sizes.values(), SIZES)

    def called(self, verb: StoreVerb, seconds: float, items: int) -> None:
        """Note a call that the store has answered, and for how many items."""
        match verb:
            case "claim":
                self.claim.observe(seconds)
            case "settle":
                self.settle.observe(seconds)
            case "submit":
                self.submit.observe(seconds)
        if items:
            self.batch_sizes[verb].observe(items)
