"""Metrics: counts by work type, in plain attributes that cost almost nothing to update.

The engine keeps a reference to the `TypeMetrics` of each type and calls its methods. Names and labels are
made only when values are read: by `get`, `list`, `stats`, `prometheus`, or a registry of prometheus-client.

- counters: queued, started, succeeded, failed, retried, deferred, expired, dead, cancelled, dropped,
  lease_lost
- gauges: active (= pending + running), peak_active, last_*_at
- histograms: wait, run, total (in seconds), attempts
- histograms of the process: claim, settle, submit, loop_lag (in seconds), batch_size

`failed` counts failed *attempts*, retried or not. `dead` counts items. All values are those of this process.
`started` and the histograms of types are counted by queue too, `dead` and `lease_lost` by reason: that is
shown to Prometheus only.

    names             each metric: its name, labels, help, and the buckets of a histogram
    series            the values of a type and of the process
    registry          all of this process, to read and to subscribe to
    rows, prometheus  as plain data, to add up processes; the text format
"""

from __future__ import annotations

from .names import (
    ACTIVE,
    ATTEMPTS,
    BATCH_SIZE,
    CANCELLED,
    CLAIM,
    DEAD,
    DEFERRED,
    DROPPED,
    EXPIRED,
    FAILED,
    LAST_FAILED_AT,
    LAST_QUEUED_AT,
    LAST_STARTED_AT,
    LAST_SUCCEEDED_AT,
    LEASE_LOST,
    LOOP_LAG,
    METRICS,
    PEAK_ACTIVE,
    PENDING,
    PROCESS_METRICS,
    QUEUED,
    RETRIED,
    RUN,
    RUNNING,
    SETTLE,
    STARTED,
    STEPS,
    STORE_METRICS,
    SUBMIT,
    SUCCEEDED,
    SUSPENDED,
    TOTAL,
    WAIT,
    Kind,
    Metric,
)
from .registry import MAX_TYPES, Metrics, Sample, Value
from .series import MAX_QUEUES, OTHER, Histogram, ProcessMetrics, TypeMetrics

__all__ = [
    "ACTIVE",
    "ATTEMPTS",
    "BATCH_SIZE",
    "CANCELLED",
    "CLAIM",
    "DEAD",
    "DEFERRED",
    "DROPPED",
    "EXPIRED",
    "FAILED",
    "LAST_FAILED_AT",
    "LAST_QUEUED_AT",
    "LAST_STARTED_AT",
    "LAST_SUCCEEDED_AT",
    "LEASE_LOST",
    "LOOP_LAG",
    "MAX_QUEUES",
    "MAX_TYPES",
    "METRICS",
    "OTHER",
    "PEAK_ACTIVE",
    "PENDING",
    "PROCESS_METRICS",
    "QUEUED",
    "RETRIED",
    "RUN",
    "RUNNING",
    "SETTLE",
    "STARTED",
    "STEPS",
    "STORE_METRICS",
    "SUBMIT",
    "SUCCEEDED",
    "SUSPENDED",
    "TOTAL",
    "WAIT",
    "Histogram",
    "Kind",
    "Metric",
    "Metrics",
    "ProcessMetrics",
    "Sample",
    "TypeMetrics",
    "Value",
]
