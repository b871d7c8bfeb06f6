"""Spans in memory, for tests of `treadle.contrib.otel`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext

from tests.engine.kit import PATIENCE
from treadle.contrib.otel import OpenTelemetry


class Spans:
    """Keeps the spans that have ended. `telemetry` is for an app, `tracer` for the test itself."""

    def __init__(self, **settings: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.telemetry = OpenTelemetry(tracer_provider=self.provider, **settings)
        self.tracer = self.provider.get_tracer("test")

    def all(self, name: str | None = None) -> Sequence[ReadableSpan]:
        """The spans in the order of their ends."""
        spans = self._exporter.get_finished_spans()
        return [span for span in spans if name is None or span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.all(name)
        return span

    async def until(self, name: str, count: int = 1) -> Sequence[ReadableSpan]:
        """Wait until this number of spans of this name have ended. An attempt ends after its decision, so
        that a waiter may hear of it first, or later."""
        async with asyncio.timeout(PATIENCE):
            while len(found := self.all(name)) < count:  # noqa: ASYNC110  spans have no event to wait for
                await asyncio.sleep(0.005)
        return found

    def clear(self) -> None:
        self._exporter.clear()

    def by_context(self, context: SpanContext | None) -> str | None:
        """The name of the span with this context."""
        if context is None:
            return None
        return next((span.name for span in self.all() if span.context.span_id == context.span_id), "unknown")

    def shape(self, span: ReadableSpan) -> tuple[str, str, str | None, list[str | None]]:
        """A span as the table of docs/headers-and-traces.md has it: name, kind, parent and links."""
        links = [self.by_context(link.context) for link in span.links]
        return span.name, span.kind.name, self.by_context(span.parent), links


def linked_ids(links: Sequence[Link]) -> list[Any]:
    """The items that links name."""
    return [(link.attributes or {}).get("messaging.message.id") for link in links]
