"""Outcome log: what a person must know about attempts that did not succeed. It is called after the commit.

A failed attempt is a warning on one line. A death is an error, with the traceback. Lost leases come in
numbers when a store was away, or has forgotten them: the first is a line of its own, the others are
collected.
"""

from __future__ import annotations

import asyncio
from typing import Any

from treadle.base.timing import Clock
from treadle.base.wording import MINUTE, duration, one_line
from treadle.engine.guarded_telemetry import GuardedAttempt
from treadle.engine.settings import Settings
from treadle.item import TELL_TYPE, Lease, Loss
from treadle.logs.lines import (
    ERROR,
    INFO,
    WARNING,
    error_text,
    item_fields,
    log_line,
    named,
    named_items,
    traceback_of,
)

from .decide import Die, RunAgain
from .held import UNREAD, HeldLease

COLLECT = 1.0
"""Seconds for which lost leases are collected after the first."""


class OutcomeLog:
    def __init__(self, settings: Settings) -> None:
        self._failures = settings.log_failures
        self._taken = LossLines(
            settings.clock, WARNING, "lost their leases, and their outcomes here are ignored"
        )
        self._gone = LossLines(
            settings.clock, INFO, "are gone: they were deleted, or the store has forgotten them"
        )

    def failed(
        self,
        lease: Lease,
        decision: RunAgain,
        held: HeldLease | None,
        span: GuardedAttempt | None,
    ) -> None:
        """An attempt failed and is tried again. Who tells of problems says so itself."""
        if not self._failures or decision.kind != "retry" or lease.type == TELL_TYPE:
            return
        log_line(
            WARNING,
            f"{named(lease)} failed ({_attempt(lease)}), {_when(decision.delay)}: {_why(decision)}",
            _fields(lease, held, span),
        )

    def died(
        self,
        lease: Lease,
        decision: Die,
        held: HeldLease | None,
        span: GuardedAttempt | None,
        *,
        begun: bool,
    ) -> None:
        """begun: its attempt began, here or with a lease of `claim_one`."""
        if not self._failures:
            return
        after = f" after {_attempt(lease)}" if begun else ""
        log_line(
            ERROR,
            f"{named(lease)} is dead{after}, {decision.reason}: {_why(decision)}",
            {**_fields(lease, held, span), "reason": decision.reason},
            error=decision.error,
            trace="" if decision.error is None else traceback_of(decision.error),
        )

    def lost(self, held: HeldLease, why: Loss) -> None:
        """An attempt has lost its lease."""
        lease = held.lease
        fields = _fields(lease, held, held.span)
        if why == "taken":
            self._taken.add(
                lease, f"{named(lease)} lost its lease (attempt {lease.attempt}): {_LOST}", fields
            )
        elif why == "not_found":
            self._gone.add(lease, f"{named(lease)} is gone: {_GONE}", fields)
        else:
            log_line(INFO, f"{named(lease)} was {why} while it ran here", fields)

    def flush(self) -> None:
        """Log the losses that were collected."""
        self._taken.flush()
        self._gone.flush()


class LossLines:
    """Logs losses of one kind. `these`: what a line says of those that were collected."""

    def __init__(self, clock: Clock, level: int, these: str) -> None:
        self._clock = clock
        self._level = level
        self._these = these
        self._losses: list[Lease] = []
        """Leases whose loss is not logged yet."""
        self._next = 0.0
        """Before this time, losses are collected."""
        self._collecting: asyncio.TimerHandle | None = None

    def add(self, lease: Lease, line: str, fields: dict[str, Any]) -> None:
        """line: what to log if it is the first."""
        now = self._clock.monotonic()
        if now >= self._next and not self._losses:
            self._next = now + COLLECT
            log_line(self._level, line, fields)
            return
        self._losses.append(lease)
        if self._collecting is None:
            loop = asyncio.get_running_loop()
            self._collecting = loop.call_later(max(COLLECT, self._next - now), self.flush)

    def flush(self) -> None:
        if self._collecting is not None:
            self._collecting.cancel()
            self._collecting = None
        losses, self._losses = self._losses, []
        if losses:
            self._next = self._clock.monotonic() + MINUTE
            log_line(self._level, f"{len(losses)} more items {self._these}: {named_items(losses)}")


_LOST = (
    "this worker could not renew it in time, or the store has forgotten it. Another one may run the item: "
    "the outcome here is ignored"
)
_GONE = "it was deleted while it ran here, or the store has forgotten it"


def _fields(lease: Lease, held: HeldLease | None, span: GuardedAttempt | None) -> dict[str, Any]:
    """The fields of a record: as `ctx.log` of the attempt has them. The span of the attempt may belong to
    another trace than the submit."""
    fields = item_fields(lease)
    if span is not None:
        fields |= span.log_fields
    if held is not None and held.bound.log_context is not None and held.input is not UNREAD:
        fields |= held.bound.log_context.fields(held.input)
    return fields


def _attempt(lease: Lease) -> str:
    """Which attempt it is, and of how many. Attempts that were lost with their worker are numbered too, but
    do not count."""
    failure = lease.failures + 1
    if lease.attempts is None:
        return f"attempt {lease.attempt}"
    if failure == lease.attempt:
        return f"attempt {lease.attempt} of {lease.attempts}"
    return f"attempt {lease.attempt}, failure {failure} of {lease.attempts}"


def _when(delay: float) -> str:
    """When it is tried again."""
    return f"tried again in {duration(delay)}" if delay > 0.05 else "tried again at once"


def _why(decision: RunAgain | Die) -> str:
    """The error, on one line."""
    if decision.failure is not None:
        return one_line(str(decision.failure))
    return "the error is not known here" if decision.error is None else error_text(decision.error)
