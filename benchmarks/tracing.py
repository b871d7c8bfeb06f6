"""The cost of traces: a drain of no-ops without telemetry, with a tracer that records nothing, and with one
that records every span and throws it away.

In microseconds of processor time per item, of all threads: what else the machine does hardly changes it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.engine import noop
from benchmarks.measure import Case, Figure, rounds
from benchmarks.stores import Stores
from treadle import Client, Treadle
from treadle.contrib.otel import OpenTelemetry
from treadle.handler.telemetry import Telemetry


class ProcessorTime:
    def __enter__(self) -> ProcessorTime:
        self._start = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.process_time() - self._start


class Discard(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def recording() -> OpenTelemetry:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Discard()))
    return OpenTelemetry(tracer_provider=provider)


class Tracing:
    """The cases for one kind of store."""

    def __init__(self, stores: Stores, kind: str, count: int) -> None:
        self._stores = stores
        self._kind = kind
        self._count = count

    def cases(self) -> list[tuple[str, str, Case]]:
        return [
            ("drain, no telemetry", "us", lambda: self.drain(None)),
            ("drain, telemetry without an SDK", "us", lambda: self.drain(OpenTelemetry())),
            ("drain, every span recorded", "us", lambda: self.drain(recording())),
            ("enqueue_many, no telemetry", "us", lambda: self.enqueue_many(None)),
            ("enqueue_many, every span recorded", "us", lambda: self.enqueue_many(recording())),
        ]

    async def drain(self, telemetry: Telemetry | None) -> float:
        async with self._stores.fresh(self._kind) as url:
            app = Treadle(url, work=[noop], telemetry=telemetry)
            await self._submit(app)
            with ProcessorTime() as watch:
                await app.start()
                await app.worker.drain()
            await app.stop()
            return watch.seconds / self._count * 1e6

    async def enqueue_many(self, telemetry: Telemetry | None) -> float:
        async with self._stores.fresh(self._kind) as url:
            async with Client(url, work=[noop], telemetry=telemetry) as client:
                with ProcessorTime() as watch:
                    await self._submit(client)
            return watch.seconds / self._count * 1e6

    async def _submit(self, app: Client) -> None:
        for start in range(0, self._count, 1000):
            await app.enqueue_many([noop(i) for i in range(start, min(start + 1000, self._count))])


async def tracing(stores: Stores, kinds: Sequence[str], count: int, times: int) -> dict[str, list[Figure]]:
    return {
        kind: await rounds(Tracing(stores, kind, count).cases(), times, f"traces on {kind}") for kind in kinds
    }
