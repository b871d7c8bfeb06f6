"""A worker in a process of its own: `python -m tests.engine.traced_program URL`. It prints each span that
has ended as a line of JSON. The `part` 1 kills the process that first runs it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from treadle import Context, Result, Treadle, work
from treadle.contrib.otel import OpenTelemetry


@work(name="part")
async def part(ctx: Context, n: int) -> int:
    if n == 1 and ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return n


@work(name="ship")
async def ship(ctx: Context) -> int:
    return sum(await ctx.results(ctx.dependencies))


@work(name="order")
async def order(ctx: Context) -> Result[Any, int]:
    return ctx.queue([part(n) for n in range(3)]).next(ship())


class Printer(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            print(json.dumps(facts(span)), flush=True)  # noqa: T201
        return SpanExportResult.SUCCESS


def facts(span: ReadableSpan) -> dict[str, Any]:
    own, attributes = span.context, span.attributes or {}
    return {
        "name": span.name,
        "kind": span.kind.name,
        "trace": own.trace_id,
        "span": own.span_id,
        "parent": None if span.parent is None else span.parent.span_id,
        "links": [link.context.span_id for link in span.links],
        "id": attributes.get("messaging.message.id"),
        "attempt": attributes.get("treadle.attempt"),
        "outcome": attributes.get("treadle.outcome"),
    }


async def main(url: str) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Printer()))
    telemetry = OpenTelemetry(tracer_provider=provider)
    app = Treadle(url, work=[order, part, ship], telemetry=telemetry, lease=1, poll_interval=0.05)
    async with app:
        await asyncio.to_thread(sys.stdin.readline)  # until the test has seen enough


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
