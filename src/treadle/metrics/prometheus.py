"""Export to Prometheus: the text format, and a collector for a registry of prometheus-client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from treadle.errors import InputError

from .names import METRICS, PROCESS_METRICS, Metric
from .rows import MetricRow, by_metric, histogram_of

OF_PROCESS = (*METRICS, *PROCESS_METRICS)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(rows: Iterable[MetricRow], metrics: Sequence[Metric] = OF_PROCESS) -> str:
    """Values of these metrics in the text format that Prometheus scrapes."""
    return "".join(line for metric, found in by_metric(metrics, rows) for line in _lines(metric, found))


def _lines(metric: Metric, rows: Iterable[MetricRow]) -> Iterator[str]:
    name = metric.exported
    yield f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n"
    for row in rows:
        pairs = [
            f'{label}="{_escaped(value)}"' for label, value in zip(metric.labels, row.labels, strict=True)
        ]
        labels = ",".join(pairs)
        if metric.kind != "histogram":
            yield f"{name}{_braces(labels)} {row.value}\n"
            continue
        below = 0
        for bound, count in zip((*metric.bounds, float("inf")), row.counts, strict=True):
            below += count
            yield f"{name}_bucket{_braces(','.join([*pairs, _le(bound)]))} {below}\n"
        yield f"{name}_count{_braces(labels)} {below}\n{name}_sum{_braces(labels)} {row.value}\n"


def _braces(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _le(bound: float) -> str:
    return f'le="{_bound(bound)}"'


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(float(bound))


class Collector:
    """Called by prometheus-client at each scrape, perhaps from another thread."""

    def __init__(self, rows: Callable[[], Iterable[MetricRow]]) -> None:
        try:
            from prometheus_client import core
        except ImportError as error:
            raise InputError(
                "registry= needs prometheus-client: pip install 'treadle[prometheus]'"
            ) from error
        self._rows = rows
        self._families: dict[str, Any] = {
            "counter": core.CounterMetricFamily,
            "gauge": core.GaugeMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }

    def describe(self) -> list[Any]:
        return [self._family(metric, ()) for metric in OF_PROCESS]

    def collect(self) -> list[Any]:
        return [self._family(metric, rows) for metric, rows in by_metric(OF_PROCESS, self._rows())]

    def _family(self, metric: Metric, rows: Iterable[MetricRow]) -> Any:
        family = self._families[metric.kind](metric.exported, metric.help, labels=metric.labels)
        for row in rows:
            if metric.kind == "histogram":
                histogram = histogram_of(metric, row)
                buckets = [(_bound(bound), below) for bound, below in histogram.cumulative()]
                family.add_metric(row.labels, buckets, histogram.sum)
            else:
                family.add_metric(row.labels, row.value)
        return family
