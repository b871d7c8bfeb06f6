"""Held: the leases that this worker holds, and the work types as it runs them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from logging import LogRecord
from typing import Any, Protocol, TypeAlias

import msgspec

from treadle.base.callables import check_not_awaitable
from treadle.base.wording import one_line
from treadle.codec import Codec
from treadle.codec.arguments import Arguments
from treadle.codec.hooks import to_json
from treadle.codec.shape import Shape
from treadle.define.secret_values import SecretMask
from treadle.define.signature import Handler
from treadle.define.work_type import arguments_of, declared_types, result_shape_of
from treadle.doers import Task
from treadle.doers.base import BaseDoer
from treadle.engine.guarded_telemetry import GuardedAttempt
from treadle.engine.registry import AnyType
from treadle.engine.settings import Settings
from treadle.engine.submit.build_item import ItemBuilder, ItemOptions
from treadle.engine.timers import Timer
from treadle.errors import class_name
from treadle.handler.context import Context, InterruptReason
from treadle.handler.steps import AttemptSteps
from treadle.item import Lease, Ref
from treadle.logs.kept_lines import KeptLines
from treadle.logs.lines import Seldom, field_name, log_error, repeated
from treadle.metrics import TypeMetrics
from treadle.options import RunIn
from treadle.retry import Retry


class BoundType:
    """A work type with its doer and everything that an attempt looks up. own_doer: its doer is not the
    worker's. keeps_logs: what its handler logs is kept. mask: says what in it is secret."""

    def __init__(
        self,
        type: AnyType,
        handler: Handler,
        run_in: RunIn,
        builder: ItemBuilder,
        settings: Settings,
        metrics: TypeMetrics,
        doer: BaseDoer,
        *,
        own_doer: bool,
        keeps_logs: bool,
        mask: SecretMask,
    ) -> None:
        base = builder.base(type)
        self.type = type
        self.name = type.name
        self.names = (type.name, *type.aliases)
        self.codec: Codec = type.options.get("codec", settings.codec)
        self.upcast = type.options.get("upcast")
        self.retry: Retry = base.retry
        self.timeout = base.timeout
        self.timeout_grace: float = type.options.get("timeout_grace", settings.timeout_grace)
        self.strict: bool = type.options.get("strict_return", settings.strict_return)
        self.on_failure = type.options.get("on_failure") or settings.on_failure
        fn = type.options.get("log_context")
        self.log_context = None if fn is None else LogContext(fn, type.name, settings.clock.monotonic)
        self.keeps_logs = keeps_logs
        self._mask = mask
        self.metrics = metrics
        self.doer = doer
        self.given_doer = doer
        """The one that the code gives it. `doer` is another one while a limit is ordered for this type."""
        self.own_doer = own_doer
        self.coming = 0
        """How many of its leases are on their way to a place in their pool."""
        self.use(handler, run_in)

    def use(self, handler: Handler, run_in: RunIn) -> None:
        """Call this function from the next attempt on."""
        self.fn: Callable[..., Any] = handler.fn
        self.is_async = handler.is_async
        self.wants_context = handler.wants_context
        self.wants_contexts = handler.wants_contexts
        self.run_in: RunIn = run_in
        self.pooled = run_in != "loop"
        """Whether its handler runs in a thread or a process."""
        self.is_plain = not self.pooled and self.type.batch is None
        """Whether its items run one by one, on the loop."""
        self.is_direct = self.is_async and not self.pooled and not self.wants_context
        """Whether its handler is called on the loop, with nothing but the input."""

    def new_lines(self, inputs: Iterable[Mapping[str, Any]]) -> KeptLines:
        """For what a call with these inputs logs."""
        mask, declared = self._mask, self._secret_types
        if declared is None:
            return KeptLines(mask.masked_text)
        secrets = {each for input in inputs for each in mask.secrets_in(to_json(input), *declared)}
        return KeptLines(functools.partial(mask.masked_text, secrets=sorted(secrets, key=len, reverse=True)))

    @functools.cached_property
    def _secret_types(self) -> Sequence[Mapping[str, Any]] | None:
        """The types of its arguments. None: they hold no secrets."""
        declared = declared_types(self.type)
        names = [each.name for each in self.arguments.parameters]
        known = declared and all(name in each for name in names for each in declared)
        if known and not self._mask.may_hide(*({name: each[name] for name in names} for each in declared)):
            return None
        return declared

    # Both are made at the first attempt: annotations may name classes that a module defines later.

    @functools.cached_property
    def arguments(self) -> Arguments:
        """How its calls are stored."""
        return arguments_of(self.type)

    @functools.cached_property
    def result_shape(self) -> Shape:
        """How its results are stored."""
        return result_shape_of(self.type)


Stop: TypeAlias = InterruptReason
"""Why an attempt is being stopped."""

LOST: frozenset[Stop] = frozenset(("taken", "completed", "cancelled", "not_found"))
"""This worker no longer owns the item: there is nothing to settle."""


UNREAD: dict[str, Any] = {}
"""The input of an item whose stored input is large: its attempt decodes it, in a thread."""


class HeldSteps(AttemptSteps, Protocol):
    """The steps of an attempt, and how they end with it: see `RunSteps`."""

    def decide(self, error: BaseException | None) -> Any:
        """The decision that steps make of the end of the attempt. None: it ends as without them."""
        ...

    async def end(self) -> None:
        """The handler has ended."""
        ...

    async def flush(self) -> None:
        """Write what the attempt has said on its way."""
        ...


class HeldLease(msgspec.Struct, eq=False):
    """A lease and the attempt that runs under it.

    (A struct and not a class with slots: it is made in a third of the time.)
    """

    lease: Lease
    bound: BoundType
    input: dict[str, Any]
    stored: ItemOptions
    sent: float
    """When its claim was sent, by the worker's monotonic clock: no later than `claimed_at`."""
    received: float
    """When the answer came, by the same clock: no earlier than `claimed_at`."""
    started: float = 0.0
    """When its handler began, by the same clock; 0 before."""
    timers: tuple[Timer, ...] = ()
    """Its deadline, and its timeout at the end, cancelled when the lease is dropped."""
    ends: float = 0.0
    """When its timeout passes, by the same clock. 0: it has none, or has not begun."""
    task: asyncio.Task[Any] | None = None
    thread: Future[Any] | None = None
    """The call of its handler in a thread."""
    ctx: Context | None = None
    span: GuardedAttempt | None = None
    """The span of its attempt, once the handler is called, if there is telemetry."""
    span_decided: bool = False
    """The span knows how the attempt ends."""
    stop: Stop | None = None
    over: bool = False
    """Nothing that the handler does from now on is settled."""
    transaction: Any = None
    """The handler's transaction, from the end of its block until it is being committed or rolled back."""
    batch: BatchCall | None = None
    """For an item of a batch: the call that it shares."""
    coming: bool = False
    """Whether it counts in `BoundType.coming`."""
    cancelled: bool = False
    """Its handler was cancelled, so that it ends: what it returns does not count for a timeout."""
    steps: HeldSteps | None = None
    """The steps of the attempt, if its item has recorded some, or its handler uses them."""
    progressed: bool = False
    """It has recorded a step: the failures before do not count."""
    lines: KeptLines | None = None
    """What its handler has logged."""

    def keep(self, record: LogRecord) -> None:
        """Its handler logs this."""
        if not self.over:
            if self.lines is None:
                self.lines = self.bound.new_lines([self.input])
            self.lines.add(record)

    @property
    def has_news(self) -> bool:
        """Whether its handler has logged something that the store does not have."""
        lines = (self.batch or self).lines
        return lines is not None and lines.has_news

    def log(self) -> bytes | None:
        """What is stored of what its handler has logged. None: nothing."""
        lines = (self.batch or self).lines
        shared_by = 1 if self.batch is None else len(self.batch.items)
        return None if lines is None else lines.encoded(self.lease.attempt, shared_by)

    @property
    def runs_in_thread(self) -> bool:
        """Whether a thread is running its handler now."""
        thread = (self.batch or self).thread
        return thread is not None and thread.running()

    def arrive(self) -> None:
        """It takes a place in its pool now, or waits for one there, or needs none any more."""
        if self.coming:
            self.coming = False
            self.bound.coming -= 1

    def leave_to_lease(self) -> None:
        """The event loop ends before the thread of a stopped worker: the item is free when the lease
        lapses."""
        self.over = True

    def store_time(self, monotonic: float) -> float:
        """The store's clock at that instant, as this worker estimates it. It may be ahead."""
        return self.lease.claimed_at + (monotonic - self.sent)

    def event_time(self, monotonic: float) -> float:
        """The same for events: it is not ahead of the store, and not before what the store did so far."""
        lease = self.lease
        return max(lease.claimed_at, lease.ready_at, lease.queued_at) + (monotonic - self.received)


def attempts_of(task: Task) -> Sequence[HeldLease]:
    """The attempts of a task that was handed to a doer: the last argument of the partial."""
    assert isinstance(task, functools.partial)
    last: HeldLease | list[HeldLease] = task.args[-1]
    return last if isinstance(last, list) else [last]


class BatchCall(msgspec.Struct, eq=False):
    """The one call of a handler that the items of a batch share."""

    bound: BoundType
    items: Sequence[HeldLease] = ()
    """The items whose attempts it is; none before the call."""
    task: asyncio.Task[Any] | None = None
    thread: Future[Any] | None = None
    """The call of the handler in a thread."""
    stop: Stop | None = None
    """Why the whole call is being stopped. An item may be stopped alone."""
    lines: KeptLines | None = None
    """What the handler has logged."""
    stopped_by: HeldLease | None = None
    """The item whose timeout or lease stops it."""

    def keep(self, record: LogRecord) -> None:
        """As for a single item. The items share what the call logs."""
        if self.lines is None:
            self.lines = self.bound.new_lines(held.input for held in self.items)
        self.lines.add(record)

    def leave_to_lease(self) -> None:
        """As for a single item."""
        for held in self.items:
            held.leave_to_lease()


class HeldLeases:
    """The table of one worker's leases. A lease is in it until it is settled or lost."""

    __slots__ = ("by_token", "on_drop", "refs", "taken", "without_attempt")

    def __init__(self) -> None:
        self.by_token: dict[int, HeldLease] = {}
        """The attempts, by the token of their lease."""
        self.refs: dict[Ref, int] = {}
        """The tokens, by tenant and id."""
        self.without_attempt: dict[int, Lease] = {}
        """The leases of items that are being settled without an attempt, by token."""
        self.taken = 0
        """How many leases have been taken so far."""
        self.on_drop: Callable[[Lease], None] | None = None
        """Called when a lease with an attempt is removed."""

    def take(self, attempts: Sequence[HeldLease]) -> None:
        """Take leases that are about to run. They are counted together."""
        by_token, refs = self.by_token, self.refs
        claimed: dict[BoundType, int] = {}
        for held in attempts:
            lease, bound = held.lease, held.bound
            by_token[lease.token] = held
            refs[lease.tenant, lease.id] = lease.token
            claimed[bound] = claimed.get(bound, 0) + 1
            if bound.pooled:
                held.coming = True
                bound.coming += 1
        self.taken += len(attempts)
        for bound, count in claimed.items():
            bound.metrics.claimed(count)

    def take_without_attempt(self, lease: Lease) -> None:
        """Take the lease of an item that is settled without an attempt."""
        self.taken += 1
        self.without_attempt[lease.token] = lease

    def drop(self, lease: Lease) -> HeldLease | None:
        """Remove a lease. None if it had no attempt, or was removed before."""
        token = lease.token
        held = self.by_token.pop(token, None)
        if held is None:
            self.without_attempt.pop(token, None)
        else:
            if held.coming:
                held.arrive()
            for timer in held.timers:
                timer.cancel()
            ref = (lease.tenant, lease.id)
            if self.refs.get(ref) == token:
                del self.refs[ref]
        if not self.by_token:
            # A dict that was large once keeps its size until it is cleared.
            self.by_token.clear()
            self.refs.clear()
        if self.on_drop is not None and held is not None:
            self.on_drop(lease)
        return held

    def unknown_tokens(self, tokens: Sequence[int]) -> frozenset[int]:
        """Those of these tokens whose leases are not in the table."""
        by_token, others = self.by_token, self.without_attempt
        return frozenset([token for token in tokens if token not in by_token and token not in others])

    def tokens(self) -> list[int]:
        """The tokens of all leases, with and without an attempt."""
        return [*self.by_token, *self.without_attempt]

    def leases(self) -> list[Lease]:
        """All leases, with and without an attempt."""
        return [*[held.lease for held in self.by_token.values()], *self.without_attempt.values()]

    def all(self) -> list[HeldLease]:
        return list(self.by_token.values())

    def unfinished(self) -> list[HeldLease]:
        """The attempts that are not over."""
        return [held for held in self.by_token.values() if not held.over]

    def find(self, ctx: Context) -> HeldLease | None:
        """The attempt that was given this context."""
        return next((held for held in self.by_token.values() if held.ctx is ctx), None)


class LogContext:
    """The `log_context` of a type. If it raises, its fields are missing, and that is logged seldom: a log
    must not fail an attempt, and must not fill itself."""

    def __init__(
        self, fn: Callable[[Any], Mapping[str, Any]], type: str, monotonic: Callable[[], float]
    ) -> None:
        self._fn = fn
        self._type = type
        self._seldom = Seldom(monotonic=monotonic)

    def fields(self, input: Mapping[str, Any]) -> dict[str, Any]:
        """The fields for an attempt with this input."""
        try:
            fields = self._fn(input)
            check_not_awaitable(fields, "log_context")
            return {field_name(name): value for name, value in fields.items()}
        except BaseException as error:  # noqa: BLE001  the user's function
            left_out = self._seldom.occurrence(class_name(error))
            if left_out is not None:
                missing = f"its fields are missing in the log{repeated(left_out)}"
                log_error(f"log_context of {one_line(self._type, 100)} failed, {missing}", error)
            return {}
