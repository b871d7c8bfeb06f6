"""The metrics: their names here and for Prometheus, and what each counts."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

QUEUED: Final = "queued"
STARTED: Final = "started"
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
RETRIED: Final = "retried"
DEFERRED: Final = "deferred"
EXPIRED: Final = "expired"
DEAD: Final = "dead"
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

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


class Metric(Struct, frozen=True):
    """One metric. `exported` is its name for Prometheus."""

    name: str
    kind: Kind
    exported: str
    help: str


METRICS: Final[tuple[Metric, ...]] = (
    Metric(QUEUED, "counter", "treadle_queued_total", "Items submitted."),
    Metric(STARTED, "counter", "treadle_started_total", "Attempts that started."),
    Metric(SUCCEEDED, "counter", "treadle_succeeded_total", "Items that ended with success."),
    Metric(FAILED, "counter", "treadle_failed_total", "Attempts that failed, retried or not."),
    Metric(RETRIED, "counter", "treadle_retried_total", "Failed attempts that are retried."),
    Metric(DEFERRED, "counter", "treadle_deferred_total", "Attempts that their handlers deferred."),
    Metric(EXPIRED, "counter", "treadle_expired_total", "Items that died because their deadline passed."),
    Metric(DEAD, "counter", "treadle_dead_total", "Items that died, for any reason."),
    Metric(LEASE_LOST, "counter", "treadle_lease_lost_total", "Attempts whose lease was lost."),
    Metric(ACTIVE, "gauge", "treadle_active", "Items leased to workers of this process."),
    Metric(PENDING, "gauge", "treadle_pending", "Active items that have not started."),
    Metric(RUNNING, "gauge", "treadle_running", "Active items that run."),
    Metric(PEAK_ACTIVE, "gauge", "treadle_peak_active", "The most items that were active at once."),
    Metric(LAST_QUEUED_AT, "gauge", "treadle_last_queued_timestamp_seconds", "When an item was last queued."),
    Metric(
        LAST_STARTED_AT, "gauge", "treadle_last_started_timestamp_seconds", "When an attempt last started."
    ),
    Metric(
        LAST_SUCCEEDED_AT, "gauge", "treadle_last_succeeded_timestamp_seconds", "When an item last succeeded."
    ),
    Metric(LAST_FAILED_AT, "gauge", "treadle_last_failed_timestamp_seconds", "When an attempt last failed."),
    Metric(WAIT, "histogram", "treadle_wait_seconds", "From being ready to the start of an attempt."),
    Metric(RUN, "histogram", "treadle_run_seconds", "How long attempts ran."),
    Metric(TOTAL, "histogram", "treadle_total_seconds", "From submission to the end of an item."),
    Metric(ATTEMPTS, "histogram", "treadle_attempts", "How many attempts an item took to end."),
)
BY_NAME: Final = {name: metric for metric in METRICS for name in (metric.name, metric.exported)}
