"""Metrics: all counts of this process, to read and to subscribe to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct

from treadle.base.callables import check_not_awaitable, check_plain
from treadle.errors import InputError
from treadle.logs.lines import log_error

from .names import BY_NAME, METRICS, PROCESS_METRICS, Kind, Metric
from .series import OTHER, Histogram, ProcessMetrics, QueueLabels, TypeMetrics, added

if TYPE_CHECKING:
    from .rows import MetricRow

MAX_TYPES: Final = 500


Value: TypeAlias = int | float | Histogram


class Sample(Struct, frozen=True):
    """One value of one type, when it was read."""

    name: str
    type: str
    kind: Kind
    value: Value


class Metrics:
    """All counts of this process.

    now: wall time, for `last_*_at`.
    registry: a registry of prometheus-client (extra `prometheus`) to export all metrics to.
    """

    def __init__(self, *, now: Callable[[], float] = time.time, registry: Any = None) -> None:
        self._now = now
        self.by_type: dict[str, TypeMetrics] = {}
        """The metrics of types that were counted. `of` makes others."""
        self._labels = QueueLabels()
        self.process = ProcessMetrics()
        """What is counted for the process, not for a type."""
        self._changed: dict[str, None] = {}
        self._subscribers: list[Callable[[tuple[str, ...]], object]] = []
        if registry is not None:
            from .prometheus import Collector

            collector = Collector(self.rows)  # first: it says which extra to install
            if not callable(getattr(registry, "register", None)):
                raise InputError.of(
                    "registry",
                    registry,
                    "is no registry of prometheus-client: give prometheus_client.REGISTRY, or a "
                    "CollectorRegistry of your own",
                )
            registry.register(collector)

    def of(self, type: str) -> TypeMetrics:
        """The metrics of this type, made if needed. Beyond `MAX_TYPES` types: those of `OTHER`."""
        found = self.by_type.get(type)
        if found is not None:
            return found
        name = type if len(self.by_type) < MAX_TYPES or type == OTHER else OTHER
        if name not in self.by_type:
            self.by_type[name] = made = TypeMetrics(name, self._now, self._labels)
            made.changed = self._record_change if self._subscribers else None
        return self.by_type[name]

    def find(self, type: str) -> TypeMetrics | None:
        """The metrics of this type, if any were counted."""
        return self.by_type.get(type)

    def types(self) -> list[str]:
        return list(self.by_type)

    # -- reading ---------------------------------------------------------------------------------------

    def get(self, name: str, *, type: str | None = None) -> Value:
        """The current value of a metric, by its name here or for Prometheus; without `type`, of all types."""
        metric = BY_NAME.get(name)
        if metric is None:
            known = ", ".join(each.name for each in (*METRICS, *PROCESS_METRICS))
            raise InputError.of("name", name, f"is not a metric: {known}")
        if metric in PROCESS_METRICS:
            if type is not None:
                raise InputError.of("type", type, f"is not asked for: {metric.name} is not counted by type")
            return self._of_process(metric)
        return _merged(metric, self.series(type))

    def _of_process(self, metric: Metric) -> Value:
        value: Value = getattr(self.process, metric.name)
        return value

    def list(self, *, type: str | None = None) -> list[Sample]:
        """All current values that are counted by type."""
        return [
            Sample(metric.name, series.type, metric.kind, value_of(metric, series))
            for series in self.series(type)
            for metric in METRICS
        ]

    def stats(self, *, type: str | None = None) -> dict[str, float]:
        """All current values as numbers by name. A histogram gives its count, its mean and two quantiles.
        type: only the values of this type."""
        flat: dict[str, float] = {}
        values = [(metric, _merged(metric, self.series(type))) for metric in METRICS]
        if type is None:
            values += [(metric, self._of_process(metric)) for metric in PROCESS_METRICS]
        for metric, value in values:
            if isinstance(value, Histogram):
                flat |= {f"{metric.name}_count": value.count, f"{metric.name}_mean": value.mean}
                flat |= {f"{metric.name}_p{q}": value.quantile(q / 100) for q in (50, 95)}
            else:
                flat[metric.name] = value
        return flat

    def prometheus(self) -> str:
        """All metrics in the text format that Prometheus scrapes."""
        from .prometheus import exposition

        return exposition(self.rows())

    def rows(self) -> Sequence[MetricRow]:
        """All current values as plain data."""
        from .rows import rows_of_process  # few programs need it

        return rows_of_process(self.series(), self.process)

    def series(self, type: str | None = None) -> Sequence[TypeMetrics]:
        """The metrics of every type, or of one."""
        # A copy: a scrape may come from another thread.
        if type is None:
            return tuple(self.by_type.values())
        found = self.by_type.get(type)
        return () if found is None else (found,)

    # -- subscribing -----------------------------------------------------------------------------------

    def subscribe(self, fn: Callable[[tuple[str, ...]], object]) -> Callable[[], None]:
        """Call `fn` with the names of the types whose metrics changed, once for all changes of one iteration
        of the event loop. Returns a function that ends the subscription.
        """
        self._subscribers.append(check_plain(fn, "fn"))
        self._connect()

        def end() -> None:
            if fn in self._subscribers:
                self._subscribers.remove(fn)
                self._connect()

        return end

    def _connect(self) -> None:
        for series in self.by_type.values():
            series.changed = self._record_change if self._subscribers else None

    def _record_change(self, series: TypeMetrics) -> None:
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._notify)
        self._changed[series.type] = None

    def _notify(self) -> None:
        types, self._changed = tuple(self._changed), {}
        for fn in tuple(self._subscribers):
            try:
                check_not_awaitable(fn(types), "a subscriber to metrics")
            except BaseException as error:  # noqa: BLE001  the user's function
                log_error("a subscriber to metrics failed", error)


def value_of(metric: Metric, series: TypeMetrics) -> Value:
    value: Value = getattr(series, metric.name)
    return value


def _merged(metric: Metric, series: Iterable[TypeMetrics]) -> Value:
    values = [value_of(metric, each) for each in series]
    if metric.kind == "histogram":
        return added((value for value in values if isinstance(value, Histogram)), metric.bounds)
    numbers = [value for value in values if not isinstance(value, Histogram)]
    # Instants and peaks are not added up: peaks of several types need not coincide.
    return max(numbers, default=0) if metric.highest else sum(numbers)
