"""Telemetry: what the engine tells a tracer. Off unless `Treadle(telemetry=...)` is given.

    submit   -> `submission`: the span of a submit. Its `traces` are stored with the items
    attempt  -> `attempt`: the span of one call of a handler. What the handler queues carries its `trace`
    process  -> `carried`: takes the current context to the process in which a handler runs

`treadle.contrib.otel` implements it with OpenTelemetry. The engine uses it through
`guarded_telemetry`: what raises changes nothing but the traces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeAlias

from treadle.item import Item, Lease
from treadle.metrics.series import StoreVerb

Trace: TypeAlias = Mapping[str, str]
"""Where an item came from: a few hundred bytes of text, which are stored with it. Opaque to the engine,
except that the log names the id in a `traceparent`."""

Carried: TypeAlias = tuple[Callable[[Trace], AbstractContextManager[object]], Trace]
"""A function at the top of a module, for another process to call with the trace."""

MOST_BYTES = 512
"""Of a trace, as JSON. A larger one is not stored."""
MOST_LINKS = 32
"""How many of the items that an item waited for its span is linked to."""


class TracedAttempt(NamedTuple):
    """One attempt that begins, as a tracer sees it."""

    lease: Lease
    type: str
    """The name of its work type. That of the lease may be an alias."""
    trace: Trace | None
    """What was stored when the item was submitted."""
    wait: float
    """Seconds from when it was ready to now."""


class SubmissionSpan(Protocol):
    """The span of one submit. While it is entered, it is the current span."""

    @property
    def traces(self) -> Sequence[Trace | None]:
        """What is stored with each of the items. None: nothing."""
        ...

    def __enter__(self) -> object: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object, /) -> None:
        """The items are stored, or `error` says why not."""


class AttemptSpan(Protocol):
    """The span of one call of a handler: of one attempt, or of a batch. While it is entered, it is the
    current span. It ends when the outcomes of all its attempts are decided."""

    @property
    def trace(self) -> Trace | None:
        """What the items that the handler queues carry. None: nothing."""
        ...

    @property
    def recording(self) -> bool:
        """Whether what is told to it is kept."""
        ...

    @property
    def log_fields(self) -> Mapping[str, str]:
        """The fields of log records that name this span."""
        ...

    def link(self, dependencies: Sequence[tuple[str, Trace]], count: int) -> None:
        """The item waited for these, by id. count: for how many in all."""

    def decided(self, outcome: str, error_type: str | None) -> None:
        """How one attempt of the call ends. error_type: the class of the error, if the attempt failed."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: object, /
    ) -> None: ...


class Telemetry(Protocol):
    """A tracer. One object serves an app with all its workers."""

    @property
    def internals(self) -> bool:
        """Whether it wants the calls of the engine to the store too."""
        ...

    def use_store(self, address: str) -> None:
        """The app is made, with the store at this address: a URL without its password, or a name."""
        ...

    def submission(
        self, items: Sequence[Item], *, awaited: bool, schedule: str | None = None
    ) -> SubmissionSpan:
        """Items are being submitted. awaited: the call that submits them waits for their end. schedule: the
        name of the schedule that submits them."""
        ...

    def attempt(self, attempts: Sequence[TracedAttempt], *, batch: bool) -> AttemptSpan:
        """A handler is about to be called, for one attempt or for a batch of them."""
        ...

    def step(self, name: str) -> AbstractContextManager[object]:
        """A step of the current attempt calls its function."""
        ...

    def carried(self) -> Carried | None:
        """The current context, for another process. None: there is nothing to carry."""
        ...

    def call(self, verb: StoreVerb, traces: Sequence[Trace], count: int) -> AbstractContextManager[object]:
        """A call of the engine to the store, for items with these traces. Only with `internals`."""
        ...
