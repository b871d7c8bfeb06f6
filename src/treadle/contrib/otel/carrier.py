"""Carrier: a context of OpenTelemetry as it is stored with an item, and back.

It is written by this module alone: what users give in `headers=` is never read as a trace.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import msgspec
from opentelemetry import context, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from treadle.handler.telemetry import MOST_BYTES, Trace

CHILD: Final = "child"
"""Present if the spans of attempts are children of the creation context, and not linked to it."""

_trace_context = TraceContextTextMapPropagator()
_baggage = W3CBaggagePropagator()


def pack(current: Context, *, child: bool, baggage: bool) -> dict[str, str] | None:
    """A context as it is stored. None if it has no span. Baggage, and then the state of vendors, are left out
    if it would be too large."""
    carrier: dict[str, str] = {}
    _trace_context.inject(carrier, current)
    if not carrier:
        return None
    if baggage:
        _baggage.inject(carrier, current)
    if child:
        carrier[CHILD] = "1"
    for name in ("baggage", "tracestate"):
        if len(msgspec.json.encode(carrier)) <= MOST_BYTES:
            break
        carrier.pop(name, None)
    return carrier


def unpack(stored: Trace) -> Context:
    """The stored context, with nothing of the current one."""
    return _with_baggage(stored, _trace_context.extract(dict(stored), Context()))


def unpack_baggage(stored: Trace) -> Context:
    """The stored context without its span."""
    return _with_baggage(stored, Context())


def _with_baggage(stored: Trace, current: Context) -> Context:
    return _baggage.extract(dict(stored), current) if "baggage" in stored else current


def span_context(stored: Trace) -> SpanContext | None:
    """The span of a stored context. None if it has none that can be read."""
    found = trace.get_current_span(_trace_context.extract(dict(stored), Context())).get_span_context()
    return found if found.is_valid else None


@contextmanager
def use_trace(stored: Trace) -> Generator[None]:
    """Make a stored context the current one: in the process of a handler with `run_in="process"`."""
    token = context.attach(unpack(stored))
    try:
        yield
    finally:
        context.detach(token)
