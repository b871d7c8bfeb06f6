"""Instruments: the metrics of treadle for OpenTelemetry, and those of the messaging conventions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from typing import Final, TypeAlias

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from treadle import __version__
from treadle.base.callables import runs_here
from treadle.client import Client, sync_loop_of
from treadle.metrics.names import METRICS, PROCESS_METRICS, STORE_METRICS, Metric
from treadle.metrics.rows import MetricRow, rows_of_metric
from treadle.store_metrics import TIMEOUT, StoreMetrics

DURATION_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""The buckets that the messaging conventions name."""

_Rows: TypeAlias = Callable[[Metric], Iterable[MetricRow]]


def meter_of(provider: MeterProvider | None) -> Meter:
    """The meter of this library. provider: None is the global one."""
    return metrics.get_meter("treadle", __version__, provider)


class MessagingInstruments:
    """What dashboards for any messaging system know."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = meter_of(provider)
        self.sent: Final = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Items that were submitted."
        )
        self.processed: Final = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "How long calls of handlers took.",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDS,
        )


def export_metrics(app: Client, *, store: bool = False, meter_provider: MeterProvider | None = None) -> None:
    """Make the metrics of this process instruments of OpenTelemetry: `treadle_queued_total` is
    `treadle.queued`. Each histogram is two counters, as in `treadle.wait.count` and `treadle.wait.sum`.

    store: those of the store too. One process of a fleet is enough.
    meter_provider: default: the global one.
    """
    meter, counts = meter_of(meter_provider), app.metrics
    for metric in (*METRICS, *PROCESS_METRICS):
        _observe(meter, metric, lambda each: rows_of_metric(each, counts.series(), counts.process))
    if store:
        values = StoreValues(app)
        for metric in STORE_METRICS:
            _observe(meter, metric, values.of)


def _observe(meter: Meter, metric: Metric, rows: _Rows) -> None:
    name, unit = instrument_name(metric)
    if metric.kind == "histogram":
        meter.create_observable_counter(f"{name}.count", [_callback(metric, rows, _count)], "", metric.help)
        meter.create_observable_counter(f"{name}.sum", [_callback(metric, rows, _value)], unit, metric.help)
    elif metric.kind == "counter":
        meter.create_observable_counter(name, [_callback(metric, rows, _value)], unit, metric.help)
    else:
        meter.create_observable_gauge(name, [_callback(metric, rows, _value)], unit, metric.help)


def instrument_name(metric: Metric) -> tuple[str, str]:
    """The name and the unit of an instrument."""
    name = metric.exported.removesuffix("_total").replace("treadle_", "treadle.", 1)
    short = name.removesuffix("_seconds")
    return short, "" if short == name else "s"


def _callback(
    metric: Metric, rows: _Rows, value: Callable[[MetricRow], float]
) -> Callable[[CallbackOptions], list[Observation]]:
    def observe(options: CallbackOptions) -> list[Observation]:
        return [
            Observation(value(row), dict(zip(metric.labels, row.labels, strict=True))) for row in rows(metric)
        ]

    return observe


def _value(row: MetricRow) -> float:
    return row.value


def _count(row: MetricRow) -> float:
    return sum(row.counts)


class StoreValues:
    """The values of the store, for the thread that collects. It asks on the event loop of the app."""

    def __init__(self, app: Client) -> None:
        self._loop = sync_loop_of(app)
        self._store = StoreMetrics(app)
        self._silent_until = 0.0
        """Until then the loop is not asked: it has not answered."""

    def of(self, metric: Metric) -> list[MetricRow]:
        return [row for row in self._rows() if row.name == metric.exported]

    def _rows(self) -> Sequence[MetricRow]:
        loop = self._loop.connected
        if loop is None or not loop.is_running() or time.monotonic() < self._silent_until:
            return ()
        if runs_here(loop):  # a flush by the app itself: the loop cannot wait for itself
            return ()
        asked = asyncio.run_coroutine_threadsafe(self._store.rows(), loop)
        try:
            return asked.result(TIMEOUT + 1)
        except (TimeoutError, CancelledError):
            asked.cancel()
            self._silent_until = time.monotonic() + 2 * TIMEOUT
            return ()
