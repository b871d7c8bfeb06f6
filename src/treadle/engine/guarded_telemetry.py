"""Guarded telemetry: the tracer of an app, as the engine uses it. Nothing that it does reaches a submit, an
attempt or a worker.

What a tracer raises is reported as `on_error` with the phase `hook`, and logged seldom. What it hands out is
read before it is used: a trace that could not be stored, or not be read again, is left out.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from itertools import islice
from typing import Any, Final, Generic, TypeVar

import msgspec

from treadle.handler.telemetry import (
    MOST_BYTES,
    MOST_LINKS,
    AttemptSpan,
    SubmissionSpan,
    Telemetry,
    Trace,
    TracedAttempt,
)
from treadle.item import Item
from treadle.logs.lines import TRACE_FIELDS, field_name
from treadle.metrics.series import StoreVerb

from .hooks import Hooks

T = TypeVar("T")
SpanT = TypeVar("SpanT", bound="AbstractContextManager[object]")


class Guard:
    """Calls methods of a tracer, and reports what they raise."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def call(self, name: str, method: Callable[[], T], otherwise: T) -> T:
        """What a method returns. `otherwise` if it raises."""
        try:
            return method()
        except BaseException as error:  # noqa: BLE001  telemetry changes nothing
            self.failed(name, error)
            return otherwise

    def failed(self, name: str, error: BaseException) -> None:
        self._hooks.report(error, "hook", f"the telemetry failed in {name}")


class GuardedSpan(Generic[SpanT]):
    """A span around a block. It neither raises nor hides what the block raises."""

    def __init__(self, span: SpanT, guard: Guard) -> None:
        self._span = span
        self._guard = guard
        self._is_entered = False

    def __enter__(self) -> None:
        try:
            self._span.__enter__()
            self._is_entered = True
        except BaseException as error:  # noqa: BLE001  telemetry changes nothing
            self._guard.failed("__enter__", error)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any, /) -> None:
        if not self._is_entered:
            return
        try:
            self._span.__exit__(kind, error, at)
        except BaseException as own:  # noqa: BLE001  telemetry changes nothing
            if own is not error:
                self._guard.failed("__exit__", own)


class GuardedSubmission(GuardedSpan[SubmissionSpan]):
    """The span of a submit."""

    def traces(self, count: int) -> Sequence[Trace | None]:
        """What is stored with each of `count` items."""

        def read() -> list[Trace | None]:
            traces = [_checked(each) for each in self._span.traces]
            if len(traces) != count:
                raise ValueError(f"there are {len(traces)} traces for {count} items")
            return traces

        return self._guard.call("traces", read, [None] * count)

    def end(self, error: BaseException | None = None) -> None:
        """End it without a block: the items are stored, or `error` says why not."""
        self.__enter__()
        self.__exit__(None if error is None else type(error), error, None)


class GuardedAttempt(GuardedSpan[AttemptSpan]):
    """The span of one call of a handler."""

    @property
    def trace(self) -> Trace | None:
        return self._guard.call("trace", lambda: _checked(self._span.trace), None)

    @property
    def recording(self) -> bool:
        return self._guard.call("recording", lambda: bool(self._span.recording), False)

    @property
    def log_fields(self) -> dict[str, str]:
        return self._guard.call("log_fields", self._read_fields, {})

    def _read_fields(self) -> dict[str, str]:
        fields = {str(name): str(value) for name, value in self._span.log_fields.items()}
        return {name if name in TRACE_FIELDS else field_name(name): value for name, value in fields.items()}

    def link(self, dependencies: Sequence[tuple[str, Trace]], count: int) -> None:
        self._guard.call("link", lambda: self._span.link(dependencies, count), None)

    def decided(self, outcome: str, error_type: str | None) -> None:
        self._guard.call("decided", lambda: self._span.decided(outcome, error_type), None)


class GuardedTelemetry:
    """The tracer of an app, which may be wrong in every way."""

    def __init__(self, telemetry: Telemetry, hooks: Hooks) -> None:
        self._telemetry = telemetry
        self._guard = Guard(hooks)
        self.internals = self._guard.call("internals", lambda: bool(telemetry.internals), False)

    def use_store(self, address: str) -> None:
        self._guard.call("use_store", lambda: self._telemetry.use_store(address), None)

    def submission(
        self, items: Sequence[Item], *, awaited: bool = False, schedule: str | None = None
    ) -> GuardedSubmission | None:
        """As `Telemetry.submission`. None if there is no span."""
        telemetry = self._telemetry
        span = self._guard.call(
            "submission", lambda: telemetry.submission(items, awaited=awaited, schedule=schedule), None
        )
        return None if span is None else GuardedSubmission(span, self._guard)

    def attempt(self, attempts: Sequence[TracedAttempt], *, batch: bool) -> GuardedAttempt | None:
        """As `Telemetry.attempt`. None if there is no span."""
        telemetry = self._telemetry
        span = self._guard.call("attempt", lambda: telemetry.attempt(attempts, batch=batch), None)
        return None if span is None else GuardedAttempt(span, self._guard)

    def step(self, name: str) -> AbstractContextManager[object]:
        """As `Telemetry.step`."""
        span = self._guard.call("step", lambda: self._telemetry.step(name), None)
        return NOTHING if span is None else GuardedSpan(span, self._guard)

    def carried(self) -> bytes | None:
        """The current context, for `carried_context` in another process. None: there is nothing to carry."""
        carried = self._guard.call("carried", self._telemetry.carried, None)
        return None if carried is None else self._guard.call("carried", lambda: pickle.dumps(carried), None)

    def call(
        self, verb: StoreVerb, traces: Iterable[Trace | None], count: int
    ) -> AbstractContextManager[object]:
        """As `Telemetry.call`."""
        some = list(islice((each for each in traces if each is not None), MOST_LINKS))
        span = self._guard.call("call", lambda: self._telemetry.call(verb, some, count), None)
        return NOTHING if span is None else GuardedSpan(span, self._guard)


NOTHING: Final[AbstractContextManager[object]] = nullcontext()


def _checked(given: Trace | None) -> Trace | None:
    """A trace that can be stored and read again, or raise."""
    if given is None:
        return None
    trace = msgspec.convert(dict(given), dict[str, str])
    if len(msgspec.json.encode(trace)) > MOST_BYTES:
        raise ValueError(f"a trace has more than {MOST_BYTES} bytes")
    return trace


@cache
def _guard_of_process() -> Guard:
    return Guard(Hooks())


def carried_context(carried: bytes) -> AbstractContextManager[None]:
    """In the process of a handler: the context that `GuardedTelemetry.carried` has packed, to be entered."""

    def unpack() -> AbstractContextManager[object]:
        enter, trace = pickle.loads(carried)
        found: AbstractContextManager[object] = enter(trace)
        return found

    guard = _guard_of_process()
    return GuardedSpan(guard.call("carried", unpack, NOTHING), guard)


class StoreCalls:
    """The calls of the engine to the store, as a tracer with `internals` sees them."""

    def __init__(self, telemetry: GuardedTelemetry | None) -> None:
        self._telemetry = telemetry if telemetry is not None and telemetry.internals else None
        self.are_traced = self._telemetry is not None

    def traced(
        self, verb: StoreVerb, traces: Callable[[], Iterable[Trace | None]], count: int
    ) -> AbstractContextManager[object]:
        """To be entered around a call. traces: of the items that it is about, if they are wanted."""
        return NOTHING if self._telemetry is None else self._telemetry.call(verb, traces(), count)
