"""Metrics: counts by work type, in plain attributes that cost almost nothing to update.

The engine keeps a reference to the `TypeMetrics` of each type and calls its methods. Names and labels are
made only when values are read: by `get`, `list`, `stats`, `prometheus`, or a registry of prometheus-client.

- counters: queued, started, succeeded, failed, retried, deferred, expired, dead, lease_lost
- gauges: active (= pending + running), peak_active, last_*_at
- histograms: wait, run, total (in seconds), attempts

`failed` counts failed *attempts*, retried or not. `dead` counts items. All values are those of this process.
"""

from __future__ import annotations

from .names import (
    ACTIVE,
    ATTEMPTS,
    DEAD,
    DEFERRED,
    EXPIRED,
    FAILED,
    LAST_FAILED_AT,
    LAST_QUEUED_AT,
    LAST_STARTED_AT,
    LAST_SUCCEEDED_AT,
    LEASE_LOST,
    METRICS,
    PEAK_ACTIVE,
    PENDING,
    QUEUED,
    RETRIED,
    RUN,
    RUNNING,
    STARTED,
    SUCCEEDED,
    TOTAL,
    WAIT,
    Kind,
    Metric,
)
from .registry import MAX_TYPES, OTHER, Metrics, Sample, Value
from .series import Histogram, TypeMetrics

__all__ = [
    "ACTIVE",
    "ATTEMPTS",
    "DEAD",
    "DEFERRED",
    "EXPIRED",
    "FAILED",
    "LAST_FAILED_AT",
    "LAST_QUEUED_AT",
    "LAST_STARTED_AT",
    "LAST_SUCCEEDED_AT",
    "LEASE_LOST",
    "MAX_TYPES",
    "METRICS",
    "OTHER",
    "PEAK_ACTIVE",
    "PENDING",
    "QUEUED",
    "RETRIED",
    "RUN",
    "RUNNING",
    "STARTED",
    "SUCCEEDED",
    "TOTAL",
    "WAIT",
    "Histogram",
    "Kind",
    "Metric",
    "Metrics",
    "Sample",
    "TypeMetrics",
    "Value",
]
