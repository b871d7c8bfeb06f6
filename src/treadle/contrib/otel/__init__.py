"""Traces and metrics with OpenTelemetry. Needs the extra `treadle[otel]`.

    Treadle(..., telemetry=OpenTelemetry())  # traces, and the metrics of the messaging conventions
    export_metrics(app)  # the metrics of treadle

======================  ====================================================================
`spans`                 the spans of submits and of attempts; a context as it is stored with an item
`instruments`           metrics
======================  ====================================================================

Inputs, results and messages of errors are never part of a span. See docs/headers-and-traces.md.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import Literal, TypeAlias, get_args

if find_spec("opentelemetry") is None:
    raise ImportError(
        "treadle.contrib.otel needs opentelemetry-api: pip install 'treadle[otel]'", name="opentelemetry"
    )

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, SpanKind, TracerProvider

from treadle import __version__
from treadle.define.signature import class_path
from treadle.errors import InputError
from treadle.handler.telemetry import AttemptSpan, Carried, SubmissionSpan, Trace, TracedAttempt
from treadle.item import Item
from treadle.metrics.series import StoreVerb

from .instruments import MessagingInstruments, export_metrics
from .spans import BATCH_COUNT, SpanMaker, fail, operation, pack, server_of, span_context, use_trace

__all__ = ["LinkStyle", "OpenTelemetry", "export_metrics"]

LinkStyle: TypeAlias = Literal["auto", "parent", "link"]
"""How the span of an attempt refers to the creation context of its item."""


class OpenTelemetry:
    """Traces of submits and attempts, and how many and how long they are.

    link: `auto` makes the span of an attempt a child of the attempt that queued its item, or of the span
        that submitted it, if that call waits for its end (`.result()`, `.group()`) or is a schedule. After
        any other submit it begins a new trace with a link. `parent` and `link` always do the one or the
        other.
    create_spans: an `enqueue_many` of at most this many items makes a span `create` for each of them.
    internals: spans of the engine's own calls to the store too.
    baggage: store the baggage of the submitter with its items too.
    tenant: add the attribute `treadle.tenant`.
    tracer_provider, meter_provider: default: the global ones.
    """

    def __init__(
        self,
        *,
        link: LinkStyle = "auto",
        create_spans: int = 100,
        internals: bool = False,
        baggage: bool = False,
        tenant: bool = False,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        if link not in get_args(LinkStyle):
            raise InputError.of("link", link, "must be 'auto', 'parent' or 'link'")
        if type(create_spans) is not int or create_spans < 0:
            raise InputError.of("create_spans", create_spans, "must be a whole number, 0 or more")
        self.internals = internals
        self._tracer = trace.get_tracer("treadle", __version__, tracer_provider)
        self._spans = SpanMaker(
            self._tracer,
            MessagingInstruments(meter_provider),
            link,
            create_spans,
            baggage=baggage,
            tenant=tenant,
        )

    def use_store(self, address: str) -> None:
        self._spans.server = server_of(address)

    def submission(
        self, items: Sequence[Item], *, awaited: bool, schedule: str | None = None
    ) -> SubmissionSpan:
        if schedule is not None:
            return self._spans.create(items, schedule)
        return self._spans.send(items, awaited=awaited)

    def attempt(self, attempts: Sequence[TracedAttempt], *, batch: bool) -> AttemptSpan:
        return self._spans.process_batch(attempts) if batch else self._spans.process(attempts[0])

    def step(self, name: str) -> AbstractContextManager[object]:
        return self._step(name)

    @contextmanager
    def _step(self, name: str) -> Generator[None]:
        with self._tracer.start_as_current_span(
            f"step {name}",
            attributes={STEP_NAME: name},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                fail(span, class_path(error))
                raise

    def carried(self) -> Carried | None:
        packed = pack(context.get_current(), child=False, baggage=True)
        return None if packed is None else (use_trace, packed)

    def call(self, verb: StoreVerb, traces: Sequence[Trace], count: int) -> AbstractContextManager[object]:
        return self._call(verb, traces, count)

    @contextmanager
    def _call(self, verb: StoreVerb, traces: Sequence[Trace], count: int) -> Generator[None]:
        links = [Link(found) for each in traces if (found := span_context(each)) is not None]
        attributes = operation(_OPERATIONS[verb]) | self._spans.server | {BATCH_COUNT: count}
        span = self._tracer.start_span(verb, Context(), SpanKind.CLIENT, attributes, links)
        try:
            yield
        except Exception as error:
            fail(span, class_path(error))
            raise
        finally:
            span.end()


STEP_NAME = "treadle.step.name"
_OPERATIONS: dict[StoreVerb, str] = {"submit": "send", "claim": "receive", "settle": "settle"}
