"""Rows: the values of all metrics as plain data: to export them, and to add up those of several processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from .names import METRICS, PROCESS_METRICS, STORE_METRICS, Metric
from .series import Histogram, ProcessMetrics, TypeMetrics

_EXPORTED: Final = {metric.exported: metric for metric in (*METRICS, *PROCESS_METRICS, *STORE_METRICS)}


class MetricRow(Struct, frozen=True, array_like=True, gc=False):
    """One value, with its labels."""

    name: str
    """The name of the metric for Prometheus."""
    labels: tuple[str, ...]
    """The values of its labels, in the order of `Metric.labels`."""
    value: float
    """For a histogram: the sum of all values."""
    counts: tuple[int, ...] = ()
    """For a histogram: how many values are in each bucket."""


def rows_of_process(types: Iterable[TypeMetrics], process: ProcessMetrics) -> list[MetricRow]:
    """All values of this process."""
    return [
        *(row for series in types for metric in METRICS for row in _of_type(metric, series)),
        *(row for metric in PROCESS_METRICS for row in _of_process(metric, process)),
    ]


def rows_of_metric(
    metric: Metric, types: Iterable[TypeMetrics], process: ProcessMetrics
) -> Iterator[MetricRow]:
    """The values of one metric of this process."""
    if metric in PROCESS_METRICS:
        return _of_process(metric, process)
    return (row for series in types for row in _of_type(metric, series))


def _of_type(metric: Metric, series: TypeMetrics) -> Iterator[MetricRow]:
    name, type = metric.exported, series.type
    if metric.labels == ("type", "queue"):
        for queue, each in tuple(series.queues.items()):
            yield _row(name, (type, queue), getattr(each, metric.name))
    elif metric.name in ("dead", "lease_lost"):
        counts = series.deaths if metric.name == "dead" else series.losses
        for reason, count in counts.items():
            yield MetricRow(name, (type, reason), count)
    else:
        yield _row(name, (type,), getattr(series, metric.name))


def _of_process(metric: Metric, process: ProcessMetrics) -> Iterator[MetricRow]:
    if metric.labels == ("verb",):
        for verb, sizes in process.batch_sizes.items():
            yield _row(metric.exported, (verb,), sizes)
    else:
        yield _row(metric.exported, (), getattr(process, metric.name))


def _row(name: str, labels: tuple[str, ...], value: float | Histogram) -> MetricRow:
    if isinstance(value, Histogram):
        return MetricRow(name, labels, value.sum, tuple(value.counts))
    return MetricRow(name, labels, value)


def histogram_of(metric: Metric, row: MetricRow) -> Histogram:
    """The histogram that a row was made of."""
    histogram = Histogram(metric.bounds)
    histogram.counts, histogram.sum = list(row.counts), row.value
    return histogram


def merged_rows(groups: Iterable[Iterable[MetricRow]]) -> list[MetricRow]:
    """One set of rows for several processes. Rows that this version does not know are left out."""
    whole: dict[tuple[str, tuple[str, ...]], MetricRow] = {}
    for rows in groups:
        for row in rows:
            metric = _EXPORTED.get(row.name)
            if metric is None or not _fits(metric, row):
                continue
            key = (row.name, row.labels)
            known = whole.get(key)
            whole[key] = row if known is None else _both(metric, known, row)
    return list(whole.values())


def _fits(metric: Metric, row: MetricRow) -> bool:
    buckets = len(metric.bounds) + 1 if metric.kind == "histogram" else 0
    return len(row.labels) == len(metric.labels) and len(row.counts) == buckets


def _both(metric: Metric, one: MetricRow, other: MetricRow) -> MetricRow:
    if metric.highest:
        return one if one.value >= other.value else other
    counts = tuple(a + b for a, b in zip(one.counts, other.counts, strict=True))
    return MetricRow(one.name, one.labels, one.value + other.value, counts)


def rows_of_ended(rows: Iterable[MetricRow]) -> list[MetricRow]:
    """What stays of the rows of a process that has ended: counts, instants and peaks."""
    return [
        row
        for row in rows
        if (metric := _EXPORTED.get(row.name)) is not None and (metric.kind != "gauge" or metric.highest)
    ]


def by_metric(metrics: Sequence[Metric], rows: Iterable[MetricRow]) -> list[tuple[Metric, list[MetricRow]]]:
    """The rows of each metric, in the order of the metrics."""
    found: dict[str, list[MetricRow]] = {metric.exported: [] for metric in metrics}
    for row in rows:
        if row.name in found:
            found[row.name].append(row)
    return [(metric, found[metric.exported]) for metric in metrics]
