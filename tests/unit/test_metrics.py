"""Metrics count the calls of the engine and show the counts in every promised form."""

import asyncio
import re
import sys

import pytest

from treadle import metrics as module
from treadle.errors import InputError
from treadle.metrics import METRICS, PROCESS_METRICS, Histogram, Metrics, TypeMetrics


def counted(metrics: Metrics, type: str = "a") -> dict[str, float]:
    """The counters and current values that are not zero, without instants."""
    flat = {sample.name: sample.value for sample in metrics.list(type=type)}
    return {
        name: value
        for name, value in flat.items()
        if not isinstance(value, Histogram) and value and not name.startswith("last_")
    }


def run_one(series: TypeMetrics) -> None:
    series.claimed()
    series.began(0.2)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(now=lambda: 1000.0)


# ----------------------------------------------------------------------------------------------- counting


def test_a_success_is_counted(metrics: Metrics) -> None:
    series = metrics.of("a")
    series.queued_some(1, 900.0)
    series.claimed()
    assert counted(metrics) == {"queued": 1, "active": 1, "pending": 1, "peak_active": 1}
    series.began(0.2)
    assert counted(metrics) == {"queued": 1, "started": 1, "active": 1, "running": 1, "peak_active": 1}
    series.succeeded_in(0.5, 0.7, 2)
    assert counted(metrics) == {"queued": 1, "started": 1, "succeeded": 1, "peak_active": 1}
    assert (series.wait.sum, series.run.sum, series.total.sum, series.attempts.sum) == (0.2, 0.5, 0.7, 2)
    assert (series.last_queued_at, series.last_started_at, series.last_succeeded_at) == (
        900.0,
        1000.0,
        1000.0,
    )


def test_successes_that_end_together_count_as_one_by_one(metrics: Metrics) -> None:
    attempts = [(0.5, 0.7, 2), (0.25, 3.0, 1), (0.0, -0.1, 1)]
    single, together = metrics.of("single"), metrics.of("together")
    for each in (single, together):
        each.claimed(3)
        for _ in attempts:
            each.began(0.2, "bulk")
    for attempt in attempts:
        single.succeeded_in(*attempt, queue="bulk", at=1200.0)
    together.succeeded_together(attempts, "bulk", 1200.0)
    assert counted(metrics, "together") == counted(metrics, "single")
    assert together.last_succeeded_at == 1200.0
    for name in ("run", "total", "attempts"):
        mine, theirs = getattr(together, name), getattr(single, name)
        assert (mine.counts, mine.sum) == (theirs.counts, theirs.sum)


def test_a_failure_that_is_retried_counts_when_it_happens(metrics: Metrics) -> None:
    run_one(series := metrics.of("a"))
    series.again("retry", 0.5)
    assert counted(metrics) == {"started": 1, "failed": 1, "retried": 1, "peak_active": 1}
    assert (series.run.count, series.total.count, series.last_failed_at) == (1, 0, 1000.0)


def test_the_last_failure_counts_as_failed_and_dead(metrics: Metrics) -> None:
    run_one(series := metrics.of("a"))
    series.died(0.5, 0.7, 3, reason="exhausted")
    assert counted(metrics) == {"started": 1, "failed": 1, "dead": 1, "peak_active": 1}
    assert (series.run.count, series.total.sum, series.attempts.sum) == (1, 0.7, 3)


def test_an_expiry_is_a_death_but_not_a_failure(metrics: Metrics) -> None:
    metrics.of("a").died(None, 0.7, 0, reason="expired", held=False)
    assert counted(metrics) == {"expired": 1, "dead": 1}
    assert metrics.of("a").run.count == 0


def test_an_item_that_this_worker_did_not_lease_changes_no_current_value(metrics: Metrics) -> None:
    series = metrics.of("a")
    series.claimed()
    series.died(None, 0.7, 1, reason="exhausted", held=False)
    series.released(False, held=False)
    assert counted(metrics) == {"dead": 1, "active": 1, "pending": 1, "peak_active": 1}


def test_a_deferral_is_neither_failure_nor_retry(metrics: Metrics) -> None:
    run_one(series := metrics.of("a"))
    series.again("defer", 0.5)
    assert counted(metrics) == {"started": 1, "deferred": 1, "peak_active": 1}


def test_a_lost_or_released_item_is_no_longer_active(metrics: Metrics) -> None:
    series = metrics.of("a")
    for verb in (series.lost, series.released):
        series.claimed()
        verb(False)
        run_one(series)
        verb(True)
    assert counted(metrics) == {"started": 2, "lease_lost": 2, "peak_active": 1}


def test_peak_active_stays(metrics: Metrics) -> None:
    series = metrics.of("a")
    for _ in range(3):
        run_one(series)
    for _ in range(3):
        series.succeeded_in(0.1, 0.1, 1)
    run_one(series)
    assert (series.active, series.peak_active) == (1, 3)


def test_times_are_never_negative(metrics: Metrics) -> None:
    series = metrics.of("a")
    series.claimed()
    series.began(-0.3)
    assert (series.wait.sum, series.wait.counts[0]) == (0.0, 1)


def test_types_are_counted_separately_up_to_max_types(metrics: Metrics) -> None:
    for n in range(module.MAX_TYPES + 50):
        metrics.of(f"type{n}").queued_some(1, 1.0)
    assert len(metrics.types()) == module.MAX_TYPES + 1
    assert metrics.get("queued", type="type7") == 1
    assert metrics.get("queued", type=module.OTHER) == 50
    assert metrics.of("type7") is metrics.of("type7")


def test_a_drop_is_a_cancellation(metrics: Metrics) -> None:
    series = metrics.of("a")
    series.claimed()
    series.dropped_one(False)
    series.cancelled_one()
    assert counted(metrics) == {"cancelled": 2, "dropped": 1, "peak_active": 1}


def test_queues_are_counted_separately_up_to_max_queues(metrics: Metrics) -> None:
    series = metrics.of("a")
    for n in range(module.MAX_QUEUES + 50):
        for _ in range(2):
            series.claimed()
            series.began(0.2, f"queue{n}")
            series.succeeded_in(0.5, 0.7, 1, queue=f"queue{n}")
    assert len(series.queues) == module.MAX_QUEUES + 1
    found = values(metrics.prometheus())
    assert found["treadle_started_total", frozenset({"type": "a", "queue": "queue7"}.items())] == 2
    assert found["treadle_run_seconds_count", frozenset({"type": "a", "queue": "queue7"}.items())] == 2
    assert found["treadle_started_total", frozenset({"type": "a", "queue": module.OTHER}.items())] == 100
    assert (metrics.get("started"), series.wait.count, series.attempts.count) == (300, 300, 300)


def test_pairs_of_type_and_queue_are_bounded(metrics: Metrics) -> None:
    for type in range(300):
        for queue in range(5):
            metrics.of(f"type{type}").began(0.0, f"queue{queue}")
    pairs = [queue for series in metrics.series() for queue in series.queues]
    assert len([queue for queue in pairs if queue != module.OTHER]) == 1000
    assert metrics.get("started") == 1500


# --------------------------------------------------------------------------------------------- histograms


def test_a_histogram_bucket_includes_its_bound() -> None:
    histogram = Histogram((1.0, 2.0, 5.0))
    for value in (0.5, 1.0, 1.5, 5.0, 9.0):
        histogram.observe(value)
    assert histogram.cumulative() == [(1.0, 2), (2.0, 3), (5.0, 4), (float("inf"), 5)]
    assert (histogram.count, histogram.sum, histogram.mean) == (5, 17.0, 3.4)


def test_quantiles_are_interpolated_and_end_at_the_highest_bound() -> None:
    histogram = Histogram((1.0, 2.0, 5.0))
    assert (histogram.quantile(0.5), histogram.mean) == (0.0, 0.0)
    for _ in range(10):
        histogram.observe(1.5)
    assert histogram.quantile(0.5) == pytest.approx(1.5)
    assert histogram.quantile(0.0) == pytest.approx(1.0)
    histogram.observe(99.0)
    assert histogram.quantile(1.0) == 5.0


# ------------------------------------------------------------------------------------------------ reading


def test_get_finds_by_either_name_and_adds_up_types(metrics: Metrics) -> None:
    for type, times in (("a", 2), ("b", 3)):
        for _ in range(times):
            run_one(metrics.of(type))
    metrics.of("a").succeeded_in(1.0, 2.0, 1)
    assert metrics.get(module.STARTED, type="a") == 2
    assert metrics.get("treadle_started_total") == 5
    assert metrics.get("peak_active") == 3
    assert metrics.get("started", type="unknown") == 0
    wait = metrics.get("wait")
    assert isinstance(wait, Histogram)
    assert wait.count == 5


def test_the_error_for_an_unknown_name_lists_the_known_names(metrics: Metrics) -> None:
    with pytest.raises(InputError, match="is not a metric: queued, started"):
        metrics.get("strated")


def test_every_metric_has_a_constant_and_an_attribute(metrics: Metrics) -> None:
    names = {metric.name for metric in (*METRICS, *PROCESS_METRICS)}
    assert {getattr(module, name.upper()) for name in names} == names
    assert {sample.name for sample in metrics.list(type="a")} == set()
    metrics.of("a")
    assert [sample.name for sample in metrics.list()] == [metric.name for metric in METRICS]


def test_calls_to_the_store_are_counted_for_the_process(metrics: Metrics) -> None:
    metrics.process.called("claim", 0.004, 0)
    metrics.process.called("claim", 0.006, 3)
    metrics.process.called("settle", 0.002, 20)
    metrics.process.called("submit", 0.003, 1)
    assert value(metrics, "treadle_claim_seconds_count") == 2
    assert value(metrics, "treadle_batch_size_sum", verb="claim") == 3
    assert value(metrics, "treadle_batch_size_count", verb="claim") == 1
    assert value(metrics, "treadle_batch_size_bucket", verb="settle", le="25.0") == 1
    stats = metrics.stats()
    assert (stats["claim_mean"], stats["batch_size_count"], stats["loop_lag_count"]) == (0.005, 3, 0)
    assert "claim_mean" not in metrics.stats(type="a")
    sizes = metrics.get("treadle_batch_size")
    assert isinstance(sizes, Histogram)
    assert sizes.sum == 24
    with pytest.raises(InputError, match="claim is not counted by type"):
        metrics.get("claim", type="a")


def test_stats_are_flat_numbers(metrics: Metrics) -> None:
    run_one(metrics.of("a"))
    stats = metrics.stats()
    assert all(isinstance(value, int | float) for value in stats.values())
    assert (stats["started"], stats["wait_count"], stats["wait_mean"]) == (1, 1, 0.2)
    assert metrics.stats(type="b")["started"] == 0


# --------------------------------------------------------------------------------------------- Prometheus


def busy(metrics: Metrics) -> None:
    for type in ("math.add", 'odd "type"\\\n'):
        series = metrics.of(type)
        series.queued_some(1, 900.0)
        run_one(series)
        series.succeeded_in(0.5, 0.7, 1)
        run_one(series)


def values(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The values in a text, as prometheus-client reads it. No series is there twice."""
    parser = pytest.importorskip("prometheus_client.parser")
    samples = [
        (sample.name, frozenset(sample.labels.items()), sample.value)
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    ]
    found = {(name, labels): value for name, labels, value in samples}
    assert len(found) == len(samples)
    return found


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return values(metrics.prometheus())[name, frozenset(labels.items())]


def test_prometheus_can_read_the_text(metrics: Metrics) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    busy(metrics)
    families = {family.name: family for family in parser.text_string_to_metric_families(metrics.prometheus())}
    assert {family.type for family in families.values()} == {"counter", "gauge", "histogram"}
    started = {sample.labels["type"]: sample.value for sample in families["treadle_started"].samples}
    assert started == {"math.add": 2, 'odd "type"\\\n': 2}
    run = [
        sample for sample in families["treadle_run_seconds"].samples if sample.labels["type"] == "math.add"
    ]
    assert {sample.name: sample.value for sample in run if "le" not in sample.labels} == {
        "treadle_run_seconds_count": 1,
        "treadle_run_seconds_sum": 0.5,
    }
    assert [sample.value for sample in run if sample.labels.get("le") in ("0.25", "0.5", "+Inf")] == [0, 1, 1]


def test_deaths_and_losses_are_shown_by_reason_from_the_start(metrics: Metrics) -> None:
    """Prometheus sees no increase from a value that was absent."""
    series = metrics.of("a")
    assert value(metrics, "treadle_dead_total", type="a", reason="exhausted") == 0
    assert value(metrics, "treadle_lease_lost_total", type="a", reason="taken") == 0
    run_one(series)
    series.died(0.5, 0.7, 3, reason="exhausted")
    run_one(series)
    series.lost(True, "cancelled")
    assert value(metrics, "treadle_dead_total", type="a", reason="exhausted") == 1
    assert value(metrics, "treadle_dead_total", type="a", reason="aborted") == 0
    assert value(metrics, "treadle_lease_lost_total", type="a", reason="cancelled") == 1


def test_what_is_no_registry_is_refused() -> None:
    with pytest.raises(InputError, match="registry=True is no registry of prometheus-client"):
        Metrics(registry=True)


def test_a_registry_of_prometheus_client_shows_the_same_numbers() -> None:
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    metrics = Metrics(now=lambda: 1000.0, registry=registry)
    busy(metrics)
    labels = {"type": "math.add", "queue": "default"}
    assert registry.get_sample_value("treadle_started_total", labels) == 2
    exposed = client.generate_latest(registry).decode()
    assert values(exposed) == values(metrics.prometheus())


def test_a_registry_without_prometheus_client_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(InputError, match=re.escape("treadle[prometheus]")):
        Metrics(registry=object())


# -------------------------------------------------------------------------------------------- subscribers


async def test_subscribers_get_the_changed_types_once_per_loop_iteration(metrics: Metrics) -> None:
    received: list[tuple[str, ...]] = []
    metrics.of("a")
    end = metrics.subscribe(received.append)
    for type in ("a", "b", "a"):
        run_one(metrics.of(type))
    assert received == []
    await asyncio.sleep(0)
    assert received == [("a", "b")]
    metrics.of("a").queued_some(1, 1.0)
    await asyncio.sleep(0)
    assert received == [("a", "b"), ("a",)]
    end()
    end()
    metrics.of("a").queued_some(1, 1.0)
    await asyncio.sleep(0)
    assert len(received) == 2


async def test_a_subscriber_that_raises_does_not_affect_the_others(
    metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[tuple[str, ...]] = []

    def broken(_: object) -> None:
        raise RuntimeError("boom")

    metrics.subscribe(broken)
    metrics.subscribe(received.append)
    metrics.of("a").queued_some(1, 1.0)
    await asyncio.sleep(0)
    assert received == [("a",)]
    assert "boom" in caplog.text


def test_without_subscribers_no_changes_are_recorded(metrics: Metrics) -> None:
    run_one(metrics.of("a"))
    assert metrics.of("a").changed is None
