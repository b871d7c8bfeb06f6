"""Traced: the spans of attempts, for an app with telemetry.

The life of a span:

1. `AttemptTracer.start` makes it when a handler is called, for one attempt or for a batch, and notes it in
   `HeldLease.span`. The handler runs inside it.
2. `tell_outcome` tells it how each of its attempts ends: when that is decided (`SettlementBuilder.prepare`),
   when a transaction of the handler is over (`Settler`), or when the lease is lost. With the last, it ends.
3. `PendingSettlement.span` keeps it for what follows the commit: the compensation hangs under it, and the
   lines of the log name it.

It does not wait for the commit. If the store refuses an outcome for good, the item dies and the log says so,
but the span has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec

from treadle.base.headers import trace_of
from treadle.define.condition import shown_name
from treadle.engine.core import Core
from treadle.engine.guarded_telemetry import NOTHING, GuardedTelemetry
from treadle.handler.telemetry import MOST_LINKS, Trace, TracedAttempt

from .decide import Await, Decision, Die, Drop, GiveBack, RunAgain, Succeed
from .held import HeldLease

READ_SECONDS: Final = 2.0
"""A handler waits at most this long for the traces of the items that its own waited for."""


class AttemptTracer:
    def __init__(self, core: Core, telemetry: GuardedTelemetry) -> None:
        self._backend = core.backend
        self._hooks = core.hooks
        self._telemetry = telemetry

    async def invoke(self, call: Callable[[HeldLease], Awaitable[Any]], held: HeldLease) -> Any:
        """Run one attempt with `call`, inside its span."""
        with self.start([held], batch=False):
            await self._link(held)
            return await call(held)

    def carried(self) -> bytes | None:
        """The current context, for the process of a handler."""
        return self._telemetry.carried()

    def start(self, items: Sequence[HeldLease], *, batch: bool) -> AbstractContextManager[object]:
        """Begin the span of a call for these items."""
        span = self._telemetry.attempt([_facts(held) for held in items], batch=batch)
        if span is None:
            return NOTHING
        for held in items:
            held.span = span
        return span

    async def _link(self, held: HeldLease) -> None:
        """Link the span of an attempt to what its item waited for, if it waited."""
        span, names, tenant = held.span, held.lease.after, held.lease.tenant
        if span is None or not names or not span.recording:
            return
        ids = [str(shown_name(name)) for name in names[:MOST_LINKS]]
        found: list[tuple[str, Trace]] = []
        try:
            async with asyncio.timeout(READ_SECONDS):
                states = await self._backend.get(ids, tenant=tenant)
            for state in states:
                if state is not None and (trace := trace_of(state.options)) is not None:
                    found.append((state.id, trace))
        except Exception as error:  # noqa: BLE001  a span without links
            what = f"could not read where the dependencies of {held.lease.id} came from"
            self._hooks.report(error, "hook", what)
        span.link(found, len(names))


def _facts(held: HeldLease) -> TracedAttempt:
    lease, trace = held.lease, held.stored.trace
    wait = held.store_time(held.started) - (lease.ready_at or lease.due_at)
    return TracedAttempt(lease, held.bound.name, None if trace is msgspec.UNSET else trace, max(0.0, wait))


def tell_outcome(held: HeldLease, decision: Decision | None) -> None:
    """Tell the span of an attempt, if it has one, how the attempt ends, once. None: its lease was lost."""
    if held.span is None or held.span_decided:
        return
    held.span_decided = True
    held.span.decided(*(("lost", None) if decision is None else outcome_of(decision)))


def outcome_of(decision: Decision) -> tuple[str, str | None]:
    """The outcome in one word, and the class of the error if the attempt failed."""
    match decision:
        case Succeed():
            return "success", None
        case RunAgain(kind="defer"):
            return "defer", None
        case RunAgain(failure=failure):
            return "retry", "" if failure is None else failure.type
        case Die(reason=reason, failure=failure):
            return f"dead:{reason}", failure.type
        case GiveBack():
            return "release", None
        case Await():
            return "suspend", None
        case Drop():
            return "cancelled", None
