"""The metrics: their names here and for Prometheus, their labels, and what each counts."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

QUEUED: Final = "queued"
STARTED: Final = "started"
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
RETRIED: Final = "retried"
DEFERRED: Final = "deferred"
SUSPENDED: Final = "suspended"
STEPS: Final = "steps"
EXPIRED: Final = "expired"
DEAD: Final = "dead"
CANCELLED: Final = "cancelled"
DROPPED: Final = "dropped"
LEASE_LOST: Final = "lease_lost"
ACTIVE: Final = "active"
PENDING: Final = "pending"
RUNNING: Final = "running"
PEAK_ACTIVE: Final = "peak_active"
LAST_QUEUED_AT: Final = "last_queued_at"
LAST_STARTED_AT: Final = "last_started_at"
LAST_SUCCEEDED_AT: Final = "last_succeeded_at"
LAST_FAILED_AT: Final = "last_failed_at"
WAIT: Final = "wait"
RUN: Final = "run"
TOTAL: Final = "total"
ATTEMPTS: Final = "attempts"
CLAIM: Final = "claim"
SETTLE: Final = "settle"
SUBMIT: Final = "submit"
BATCH_SIZE: Final = "batch_size"
LOOP_LAG: Final = "loop_lag"

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

# All floats: to compare a float with an int takes twice as long.
SECONDS: Final[tuple[float, ...]] = tuple(
    map(
        float,
        (
            *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            *(60, 120, 300, 600, 1200, 1800, 3600),
        ),
    )
)
CALL_SECONDS: Final[tuple[float, ...]] = tuple(
    map(float, (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30))
)
NUMBERS: Final[tuple[float, ...]] = tuple(map(float, (1, 2, 3, 5, 10, 25, 100)))
SIZES: Final[tuple[float, ...]] = tuple(map(float, (1, 2, 5, 10, 25, 50, 100, 250, 500)))


class Metric(Struct, frozen=True):
    """One metric. `exported` is its name for Prometheus."""

    name: str
    kind: Kind
    exported: str
    help: str
    labels: tuple[str, ...] = ("type",)
    bounds: tuple[float, ...] = ()
    """For a histogram: the upper bounds of its buckets."""
    highest: bool = False
    """Several values of it are not added up: the highest counts. Instants and peaks."""


_BY_QUEUE: Final = ("type", "queue")
_BY_REASON: Final = ("type", "reason")


def _instant(name: str, event: str, help: str) -> Metric:
    return Metric(name, "gauge", f"treadle_last_{event}_timestamp_seconds", help, highest=True)


METRICS: Final[tuple[Metric, ...]] = (
    Metric(QUEUED, "counter", "treadle_queued_total", "Items submitted."),
    Metric(STARTED, "counter", "treadle_started_total", "Attempts that started.", _BY_QUEUE),
    Metric(SUCCEEDED, "counter", "treadle_succeeded_total", "Items that ended with success."),
    Metric(FAILED, "counter", "treadle_failed_total", "Attempts that failed, retried or not."),
    Metric(RETRIED, "counter", "treadle_retried_total", "Failed attempts that are retried."),
    Metric(DEFERRED, "counter", "treadle_deferred_total", "Attempts that their handlers deferred."),
    Metric(
        SUSPENDED, "counter", "treadle_suspended_total", "Attempts that ended because their handlers wait."
    ),
    Metric(STEPS, "counter", "treadle_steps_total", "Steps that handlers have recorded."),
    Metric(EXPIRED, "counter", "treadle_expired_total", "Items that died because their deadline passed."),
    Metric(DEAD, "counter", "treadle_dead_total", "Items that died, by reason.", _BY_REASON),
    Metric(
        CANCELLED,
        "counter",
        "treadle_cancelled_total",
        "Items cancelled from here: by an operator, or by a limit.",
    ),
    Metric(
        DROPPED, "counter", "treadle_dropped_total", "Cancelled items: a limit with on_full=drop was reached."
    ),
    Metric(
        LEASE_LOST,
        "counter",
        "treadle_lease_lost_total",
        "Attempts whose lease was lost: taken by another worker, or the item was ended by an operator.",
        _BY_REASON,
    ),
    Metric(ACTIVE, "gauge", "treadle_active", "Items leased to workers."),
    Metric(PENDING, "gauge", "treadle_pending", "Active items that have not started."),
    Metric(RUNNING, "gauge", "treadle_running", "Active items that run."),
    Metric(
        PEAK_ACTIVE,
        "gauge",
        "treadle_peak_active",
        "The most items that were active in a process at once.",
        highest=True,
    ),
    _instant(LAST_QUEUED_AT, "queued", "When an item was last queued."),
    _instant(LAST_STARTED_AT, "started", "When an attempt last started."),
    _instant(LAST_SUCCEEDED_AT, "succeeded", "When an item last succeeded."),
    _instant(LAST_FAILED_AT, "failed", "When an attempt last failed."),
    Metric(
        WAIT,
        "histogram",
        "treadle_wait_seconds",
        "From being ready to the start of an attempt.",
        _BY_QUEUE,
        SECONDS,
    ),
    Metric(RUN, "histogram", "treadle_run_seconds", "How long attempts ran.", _BY_QUEUE, SECONDS),
    Metric(
        TOTAL,
        "histogram",
        "treadle_total_seconds",
        "From submission to the end of an item.",
        _BY_QUEUE,
        SECONDS,
    ),
    Metric(
        ATTEMPTS,
        "histogram",
        "treadle_attempts",
        "How many attempts an item took to end.",
        _BY_QUEUE,
        NUMBERS,
    ),
)
"""What is counted for each type."""

PROCESS_METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        CLAIM,
        "histogram",
        "treadle_claim_seconds",
        "How long the store took to answer claims.",
        (),
        CALL_SECONDS,
    ),
    Metric(
        SETTLE,
        "histogram",
        "treadle_settle_seconds",
        "How long the store took to settle attempts, for each call.",
        (),
        CALL_SECONDS,
    ),
    Metric(
        SUBMIT,
        "histogram",
        "treadle_submit_seconds",
        "How long the store took to store new items, for each call.",
        (),
        CALL_SECONDS,
    ),
    Metric(
        BATCH_SIZE,
        "histogram",
        "treadle_batch_size",
        "How many items a call to the store was for. Claims that found nothing are left out.",
        ("verb",),
        SIZES,
    ),
    Metric(
        LOOP_LAG,
        "histogram",
        "treadle_loop_lag_seconds",
        "How late the event loop of a worker was, twice a second.",
        (),
        CALL_SECONDS,
    ),
)
"""What is counted for the whole process."""

BY_NAME: Final = {
    name: metric for metric in (*METRICS, *PROCESS_METRICS) for name in (metric.name, metric.exported)
}


def _of_store(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, "gauge", f"treadle_{name}", help, labels)


STORE_METRICS: Final[tuple[Metric, ...]] = (
    _of_store("store_up", "1 if the store answered in time. If 0, the other values of the store are absent."),
    _of_store(
        "items",
        "Open and dead items. Exact for about a million items, an estimate beyond: see items_exact.",
        "queue",
        "type",
        "status",
    ),
    _of_store(
        "items_exact",
        "1 if the items of the queue and status were counted, 0 if their number is an estimate.",
        "queue",
        "status",
    ),
    _of_store("oldest_ready_seconds", "How long the oldest ready item of the queue has waited.", "queue"),
    _of_store(
        "backlog_seconds",
        "Seconds that the ready items of the queue take at the rate of the last minutes. If none ended, or "
        "nothing waits for long: the age of the oldest.",
        "queue",
    ),
    _of_store("unserved_items", "Ready items whose type no live worker has.", "type"),
    _of_store("workers", "Live workers that claim items: no manual leases, and none that is stopping."),
    _of_store("worker_last_beat_timestamp_seconds", "When the last heartbeat of any worker came."),
    _of_store("queue_paused", "1 if the queue is paused for all tenants.", "queue"),
    _of_store(
        "limit_used_ratio", "How far a fleet-wide limit is used: 1 if no permit of it is left.", "limit"
    ),
    _of_store("schedule_next_timestamp_seconds", "When the schedule fires next.", "schedule"),
    _of_store(
        "schedule_orphaned", "1 if no live worker has the code of the schedule: it does not fire.", "schedule"
    ),
    _of_store("schedule_failing", "1 if the last run of the schedule failed.", "schedule"),
)
"""What is read from the store: see `treadle.StoreMetrics`."""
