"""Export to Prometheus: the text format, and a collector for a registry of prometheus-client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from treadle.errors import InputError

from .names import METRICS, Metric
from .registry import value_of
from .series import Histogram, TypeMetrics


def exposition(series: Sequence[TypeMetrics]) -> str:
    """All metrics in the text format that Prometheus scrapes."""
    return "".join(line for metric in METRICS for line in _lines_of(metric, series))


def _lines_of(metric: Metric, series: Sequence[TypeMetrics]) -> Iterator[str]:
    yield f"# HELP {metric.exported} {metric.help}\n# TYPE {metric.exported} {metric.kind}\n"
    for each in series:
        label, value = f'type="{_escaped(each.type)}"', value_of(metric, each)
        if not isinstance(value, Histogram):
            yield f"{metric.exported}{{{label}}} {value}\n"
            continue
        rows, total = value.cumulative(), value.sum
        for bound, below in rows:
            yield f'{metric.exported}_bucket{{{label},le="{_bound(bound)}"}} {below}\n'
        yield f"{metric.exported}_count{{{label}}} {rows[-1][1]}\n{metric.exported}_sum{{{label}}} {total}\n"


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(float(bound))


class Collector:
    """Called by prometheus-client at each scrape, perhaps from another thread."""

    def __init__(self, series: Callable[[], Sequence[TypeMetrics]]) -> None:
        try:
            from prometheus_client import core
        except ImportError as error:
            raise InputError(
                "registry= needs prometheus-client: pip install 'treadle[prometheus]'"
            ) from error
        self._series = series
        self._families: dict[str, Any] = {
            "counter": core.CounterMetricFamily,
            "gauge": core.GaugeMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }

    def describe(self) -> list[Any]:
        return [self._family(metric, ()) for metric in METRICS]

    def collect(self) -> list[Any]:
        series = self._series()
        return [self._family(metric, series) for metric in METRICS]

    def _family(self, metric: Metric, series: Sequence[TypeMetrics]) -> Any:
        family = self._families[metric.kind](metric.exported, metric.help, labels=["type"])
        for each in series:
            value = value_of(metric, each)
            if isinstance(value, Histogram):
                buckets = [(_bound(bound), below) for bound, below in value.cumulative()]
                family.add_metric([each.type], buckets, value.sum)
            else:
                family.add_metric([each.type], value)
        return family
