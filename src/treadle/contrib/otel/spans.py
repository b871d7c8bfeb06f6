"""Spans: of a submit, and of a call of a handler. They become the current span while they are entered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Token
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from opentelemetry import context, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.metrics import Counter, Histogram
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from treadle.define.signature import class_path
from treadle.handler.telemetry import MOST_BYTES, Trace, TracedAttempt
from treadle.item import Item

from .instruments import MessagingInstruments

SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
CONVERSATION_ID: Final = "messaging.message.conversation_id"
BATCH_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"
SERVER: Final = "server.address"
PORT: Final = "server.port"
TYPE: Final = "treadle.type"
ATTEMPT: Final = "treadle.attempt"
TENANT: Final = "treadle.tenant"
LANE: Final = "treadle.lane"
WAIT: Final = "treadle.wait"
OUTCOME: Final = "treadle.outcome"
SCHEDULE: Final = "treadle.schedule"
DEPENDENCIES: Final = "treadle.dependencies"
OTHER: Final = "_OTHER"
"""The type of an error that is not known, as the conventions have it."""

Attributes = dict[str, str | int | float]


def operation(name: str) -> Attributes:
    """The attributes that every span of an operation has."""
    return {SYSTEM: "treadle", OPERATION: name, OPERATION_TYPE: name}


def server_of(address: str) -> Attributes:
    """Where the store is, if its address is a URL with one host."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        return {}
    if not host or "," in host:
        return {}
    return {SERVER: host} if port is None else {SERVER: host, PORT: port}


class EnteredSpan:
    """A span that is the current one while it is entered."""

    def __init__(self, span: Span, within: Context) -> None:
        self._span = span
        self._context = trace.set_span_in_context(span, within)
        self._token: Token[Context] | None = None

    def __enter__(self) -> object:
        self._token = context.attach(self._context)
        return self

    def _leave(self) -> None:
        if self._token is not None:
            context.detach(self._token)
            self._token = None


class SendSpan(EnteredSpan):
    """The span of a submit: `send`, or `create` for a schedule. sent: the items are counted there, with what
    is common to them."""

    def __init__(
        self, span: Span, within: Context, traces: Sequence[Trace | None], sent: Counter, common: Attributes
    ) -> None:
        super().__init__(span, within)
        self.traces = traces
        self._sent = sent
        self._common = common

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object, /) -> None:
        self._leave()
        if error is None:
            self._sent.add(len(self.traces), self._common)
        elif not isinstance(error, asyncio.CancelledError):
            fail(self._span, class_path(error))
        self._span.end()


class ProcessSpan(EnteredSpan):
    """The span of a call of a handler. It ends when the outcomes of all its attempts are decided.

    attempts: how many share the call. baggage: whether it is stored with what they queue. processed: its
    duration is recorded there, with what is `common` to its attempts.
    """

    def __init__(
        self,
        span: Span,
        within: Context,
        attempts: int,
        *,
        baggage: bool,
        processed: Histogram,
        common: Attributes,
    ) -> None:
        super().__init__(span, within)
        self._began = time.perf_counter()
        self._processed = processed
        self._common = common
        self.recording = span.is_recording()
        self._baggage = baggage
        self._undecided = attempts
        self._outcomes: set[str] = set()
        self._error_type: str | None = None

    @property
    def trace(self) -> Trace | None:
        # What an attempt queues is a part of its trace, so that a workflow can be seen as one.
        return pack(self._context, child=True, baggage=self._baggage) if self.recording else None

    @property
    def log_fields(self) -> Mapping[str, str]:
        own = self._span.get_span_context()
        if not own.is_valid:
            return {}
        return {
            "trace_id": trace.format_trace_id(own.trace_id),
            "span_id": trace.format_span_id(own.span_id),
        }

    def link(self, dependencies: Sequence[tuple[str, Trace]], count: int) -> None:
        self._span.set_attribute(DEPENDENCIES, count)
        for id, stored in dependencies:
            if (found := span_context(stored)) is not None:
                self._span.add_link(found, {MESSAGE_ID: id})

    def decided(self, outcome: str, error_type: str | None) -> None:
        self._outcomes.add(outcome)
        self._error_type = self._error_type or error_type
        self._undecided -= 1
        if not self._undecided:
            self._end()

    def _end(self) -> None:
        outcome = self._outcomes.pop() if len(self._outcomes) == 1 else "mixed"
        self._span.set_attribute(OUTCOME, outcome)
        if self._error_type is not None:
            fail(self._span, self._error_type)
            self._common[ERROR_TYPE] = self._error_type or OTHER
        self._span.add_event("settled", {OUTCOME: outcome})
        self._span.end()
        self._processed.record(time.perf_counter() - self._began, self._common)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object, /) -> None:
        self._leave()


def fail(span: Span, error_type: str) -> None:
    span.set_attribute(ERROR_TYPE, error_type or OTHER)
    span.set_status(StatusCode.ERROR)


class SpanMaker:
    """Starts spans, with the attributes and parents that the settings of `OpenTelemetry` ask for."""

    def __init__(
        self,
        tracer: Tracer,
        instruments: MessagingInstruments,
        link: str,
        create_spans: int,
        *,
        baggage: bool,
        tenant: bool,
    ) -> None:
        self._tracer = tracer
        self._instruments = instruments
        self._link = link
        self._create_spans = create_spans
        self._baggage = baggage
        self._tenant = tenant
        self.server: Attributes = {}
        """Where the store is."""

    # -- submits ---------------------------------------------------------------------------------------

    def send(self, items: Sequence[Item], *, awaited: bool) -> SendSpan:
        single = items[0] if len(items) == 1 else None
        queue = _common([item.queue for item in items])
        attributes = operation("send") | self.server
        if single is not None:
            attributes |= self._of_item(single)
        else:
            attributes[BATCH_COUNT] = len(items)
            attributes |= {} if queue is None else {DESTINATION: queue}
        within = context.get_current()
        span = self._tracer.start_span(
            "send" if queue is None else f"send {queue}",
            within,
            SpanKind.PRODUCER if single is not None else SpanKind.CLIENT,
            attributes,
        )
        inside = trace.set_span_in_context(span, within)
        traces = self._traces(span, inside, items, awaited)
        return SendSpan(span, within, traces, self._instruments.sent, _measured("send", queue))

    def _traces(self, span: Span, inside: Context, items: Sequence[Item], child: bool) -> list[Trace | None]:
        if not span.is_recording():
            return [None] * len(items)
        if 1 < len(items) <= self._create_spans:
            return [self._created(item, inside, child) for item in items]
        return [self._pack(inside, child)] * len(items)

    def _created(self, item: Item, inside: Context, child: bool) -> Trace | None:
        attributes = operation("create") | self.server | self._of_item(item)
        span = self._tracer.start_span(f"create {item.queue}", inside, SpanKind.PRODUCER, attributes)
        span.end()
        return self._pack(trace.set_span_in_context(span, inside), child)

    def create(self, items: Sequence[Item], schedule: str) -> SendSpan:
        """The span of an occurrence of a schedule: the root of a trace. Attempts are its children."""
        within = Context()
        attributes = operation("create") | self.server | self._of_item(items[0]) | {SCHEDULE: schedule}
        span = self._tracer.start_span(f"create {schedule}", within, SpanKind.PRODUCER, attributes)
        stored = None
        if span.is_recording():
            stored = self._pack(trace.set_span_in_context(span, within), child=True)
        common = _measured("create", items[0].queue)
        return SendSpan(span, within, [stored] * len(items), self._instruments.sent, common)

    def _of_item(self, item: Item) -> Attributes:
        attributes: Attributes = {
            DESTINATION: item.queue,
            MESSAGE_ID: item.id,
            CONVERSATION_ID: item.workflow or item.id,
            TYPE: item.type,
        }
        return attributes | self._of_line(item.lane, item.tenant)

    def _of_line(self, lane: str, tenant: str) -> Attributes:
        lanes: Attributes = {LANE: lane} if lane else {}
        return lanes | {TENANT: tenant} if self._tenant else lanes

    # -- attempts --------------------------------------------------------------------------------------

    def process(self, attempt: TracedAttempt) -> ProcessSpan:
        lease, stored = attempt.lease, attempt.trace
        attributes = (
            operation("process")
            | self.server
            | {
                DESTINATION: lease.queue,
                MESSAGE_ID: lease.id,
                CONVERSATION_ID: lease.workflow or lease.group_id,
                TYPE: attempt.type,
                ATTEMPT: lease.attempt,
                WAIT: attempt.wait,
            }
        )
        attributes |= self._of_line(lease.lane, lease.tenant)
        within, links = Context(), list[Link]()
        if stored is not None and (self._link == "parent" or (self._link == "auto" and CHILD in stored)):
            within = unpack(stored)
        elif stored is not None:
            within, links = unpack_baggage(stored), _links([attempt])
        return self._process(attempt.type, within, attributes, links, attempts=1)

    def process_batch(self, attempts: Sequence[TracedAttempt]) -> ProcessSpan:
        first = attempts[0]
        attributes = operation("process") | self.server | {TYPE: first.type, BATCH_COUNT: len(attempts)}
        queue = _common([attempt.lease.queue for attempt in attempts])
        attributes |= {} if queue is None else {DESTINATION: queue}
        attributes[WAIT] = max(attempt.wait for attempt in attempts)
        links, count = _links(attempts), len(attempts)
        return self._process(first.type, Context(), attributes, links, attempts=count)

    def _process(
        self,
        type: str,
        within: Context,
        attributes: Attributes,
        links: list[Link],
        *,
        attempts: int,
    ) -> ProcessSpan:
        span = self._tracer.start_span(f"process {type}", within, SpanKind.CONSUMER, attributes, links)
        return ProcessSpan(
            span,
            within,
            attempts,
            baggage=self._baggage,
            processed=self._instruments.processed,
            common=_measured("process", attributes.get(DESTINATION)) | {TYPE: type},
        )

    def _pack(self, current: Context, child: bool) -> Trace | None:
        return pack(current, child=child, baggage=self._baggage)


def _measured(name: str, queue: Any) -> Attributes:
    """The attributes of what is measured for an operation. queue: if it has one."""
    attributes: Attributes = {SYSTEM: "treadle", OPERATION: name}
    return attributes if queue is None else attributes | {DESTINATION: queue}


def _links(attempts: Sequence[TracedAttempt]) -> list[Link]:
    return [
        Link(found, {MESSAGE_ID: attempt.lease.id, ATTEMPT: attempt.lease.attempt})
        for attempt in attempts
        if attempt.trace is not None and (found := span_context(attempt.trace)) is not None
    ]


def _common(values: Sequence[Any]) -> Any:
    """The value that all of these are. None if they differ."""
    return values[0] if len(set(values)) == 1 else None


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
