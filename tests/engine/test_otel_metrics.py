"""The metrics of treadle for OpenTelemetry, read back from a reader in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from tests.engine.kit import PATIENCE, failure
from tests.engine.traces import Spans
from treadle import Abort, InputError, Treadle, work
from treadle.contrib.otel import export_metrics
from treadle.contrib.otel.instruments import instrument_name
from treadle.metrics import METRICS, PROCESS_METRICS, STORE_METRICS


@work(name="value")
async def value(n: int) -> int:
    return n


@work(name="dies")
async def dies() -> None:
    raise Abort("dead")


class Measured:
    """Reads all instruments of a provider."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader])

    async def read(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        """The values of each metric with their labels, as a thread of the SDK collects them."""
        data = await asyncio.to_thread(self.reader.get_metrics_data)
        metrics = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
        return {
            metric.name: [(dict(point.attributes or {}), _value(point)) for point in metric.data.data_points]
            for metric in metrics
        }


def _value(point: Any) -> Any:
    return point.count if isinstance(point, HistogramDataPoint) else point.value


async def test_every_metric_is_an_instrument() -> None:
    measured = Measured()
    async with Treadle(work=[value, dies]) as app:
        export_metrics(app, store=True, meter_provider=measured.provider)
        await app.enqueue(value(1), queue="mail").result(PATIENCE)
        await failure(app.enqueue(dies()).result(PATIENCE))
        await app.enqueue(value(2), delay=3600)
        app.schedule("nightly", every=3600, run=lambda: value(3))
        await app.pause("slow")
        found = await measured.read()
    assert found["treadle.queued"] == [({"type": "value"}, 2), ({"type": "dies"}, 1)]
    assert found["treadle.started"] == [
        ({"type": "value", "queue": "mail"}, 1),
        ({"type": "dies", "queue": "default"}, 1),
    ]
    assert ({"type": "dies", "reason": "aborted"}, 1) in found["treadle.dead"]
    assert found["treadle.run.count"] == found["treadle.started"]
    assert 0 < found["treadle.run.sum"][0][1] < PATIENCE
    assert found["treadle.store_up"] == [({}, 1)]
    assert ({"queue": "default", "type": "value", "status": "scheduled"}, 1) in found["treadle.items"]
    expected = {
        name
        for metric in (*METRICS, *PROCESS_METRICS, *STORE_METRICS)
        for name, _ in [instrument_name(metric)]
        for name in ([name] if metric.kind != "histogram" else [f"{name}.count", f"{name}.sum"])
    }
    absent = {"treadle.oldest_ready", "treadle.unserved_items", "treadle.limit_used_ratio"}  # there is none
    assert set(found) == expected - absent


async def test_the_store_is_left_out_if_it_cannot_be_asked() -> None:
    measured = Measured()
    app = Treadle(work=[value])
    export_metrics(app, store=True, meter_provider=measured.provider)
    assert "treadle.store_up" not in await measured.read()  # it is not connected
    async with app:
        assert "treadle.store_up" in await measured.read()
        on_loop = measured.reader.get_metrics_data()
    assert on_loop is not None
    names = {each.name for each in on_loop.resource_metrics[0].scope_metrics[0].metrics}
    assert "treadle.claim.count" in names
    assert "treadle.store_up" not in names
    with pytest.raises(InputError, match="bound to a tenant"):
        export_metrics(app.tenant("acme"), store=True, meter_provider=measured.provider)


async def test_submits_and_attempts_are_measured_as_the_conventions_say() -> None:
    measured = Measured()
    spans = Spans(meter_provider=measured.provider)
    async with Treadle(work=[value, dies], telemetry=spans.telemetry) as app:
        await app.enqueue(value(1), queue="mail").result(PATIENCE)
        await failure(app.enqueue(dies()).result(PATIENCE))
        await app.enqueue_many([value(2), value(3)], delay=3600)
        with pytest.raises(Exception, match="wait for each other"):
            await app.enqueue(value(4), id="x", after=["x"])
    found = await measured.read()
    system = {"messaging.system": "treadle"}
    sent = {**system, "messaging.operation.name": "send"}
    assert found["messaging.client.sent.messages"] == [
        ({**sent, "messaging.destination.name": "mail"}, 1),
        ({**sent, "messaging.destination.name": "default"}, 3),
    ]
    processed = {**system, "messaging.operation.name": "process"}
    assert found["messaging.process.duration"] == [
        ({**processed, "messaging.destination.name": "mail", "treadle.type": "value"}, 1),
        (
            {
                **processed,
                "messaging.destination.name": "default",
                "treadle.type": "dies",
                "error.type": "Abort",
            },
            1,
        ),
    ]
