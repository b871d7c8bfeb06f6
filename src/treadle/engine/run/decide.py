"""Decide: how an attempt that ended settles. Pure: an outcome comes in, a decision goes out.

    Returned -> Succeed (value, contributions, children)
    Raised   -> RunAgain (retry or defer) or Die
    Verdict  -> Die

The settle stage carries the decision out; nothing here reads a clock or touches the store.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from treadle.errors import (
    Abort,
    BadResultError,
    DeadlineExceeded,
    Defer,
    DuplicateIdError,
    HandlerError,
    StrictReturnError,
)
from treadle.item import ErrorInfo, Lease, Reason, Verdict
from treadle.result import Result
from treadle.result_plan import ResultPlan, plan, unreturned
from treadle.retry import Retry
from treadle.work import Work

MAX_TEXT = 10_000
"""Errors are stored with every failed attempt: each text is cut here, in bytes."""
_CUT = "[...]"


class Succeed(msgspec.Struct, frozen=True, gc=False):
    plan: ResultPlan


class RunAgain(msgspec.Struct, frozen=True):
    """Run it again: after a failure (`retry`), or because the handler asked for later (`defer`)."""

    kind: Literal["retry", "defer"]
    delay: float = 0.0
    run_at: float | None = None
    failure: ErrorInfo | None = None
    error: BaseException | None = None


class Die(msgspec.Struct, frozen=True):
    reason: Reason
    failure: ErrorInfo
    error: BaseException | None = None


Decision: TypeAlias = Succeed | RunAgain | Die
Classified: TypeAlias = Literal["retry", "abort"] | Defer | None


def returned(lease: Lease, value: object, created: Sequence[Result[Any, Any]], strict: bool) -> Decision:
    """The handler came back with `value`, having made the Results in `created`."""
    if isinstance(value, Work):
        return _refuse(
            BadResultError(lease.type, f"a bare Work, {value!r:.200}; return ctx.queue(...) of it instead")
        )
    if strict and created and (lost := unreturned(created, value)):
        return _refuse(StrictReturnError(lease.type, len(lost)))
    try:
        return Succeed(plan(value, lease.id))
    except DuplicateIdError as error:
        return _refuse(BadResultError(lease.type, str(error)))


def _refuse(error: HandlerError) -> Die:
    return Die("bad_result", failure_of(error), error)


def raised(
    lease: Lease,
    error: BaseException,
    classify: Callable[[BaseException], Classified],
    retry: Retry,
    now: float,
    draw: Callable[[], float],
) -> Decision:
    """The attempt failed with `error`. `now` is the store's clock, as well as the worker knows it."""
    match error:
        case Abort():
            return Die("aborted", failure_of(_cause(error)), error)
        case Defer():
            return _defer(lease, error, now)
        case DeadlineExceeded():
            return Die("expired", failure_of(error), error)
        case HandlerError():
            return Die("bad_result", failure_of(error), error)
        case _:
            return _classified(lease, error, classify(error), retry, now, draw)


def undecodable(error: BaseException) -> Die:
    """The stored input cannot be read, or the result cannot be written. Trying again would not help."""
    return Die("undecodable", failure_of(error), error)


def _classified(
    lease: Lease,
    error: BaseException,
    verdict: Classified,
    retry: Retry,
    now: float,
    draw: Callable[[], float],
) -> Decision:
    match verdict:
        case "abort":
            return Die("aborted", failure_of(error), error)
        case Defer():
            return _defer(lease, verdict, now)
        case _:
            return _retry(lease, error, retry, now, draw)


def _retry(
    lease: Lease, error: BaseException, retry: Retry, now: float, draw: Callable[[], float]
) -> Decision:
    failure = failure_of(error)
    if lease.attempts is not None and lease.attempt >= lease.attempts:
        return Die("exhausted", failure, error)
    delay = retry.delay(lease.attempt, draw)
    if lease.deadline is not None and now + delay > lease.deadline:
        return Die("expired", failure, error)
    return RunAgain("retry", delay, None, failure, error)


def _defer(lease: Lease, error: Defer, now: float) -> Decision:
    due = error.run_at if error.run_at is not None else now + (error.delay or 0.0)
    if lease.deadline is not None and due > lease.deadline:
        late = DeadlineExceeded(lease.id, lease.deadline)
        return Die("expired", failure_of(late), late)
    if error.run_at is not None:
        return RunAgain("defer", run_at=error.run_at)
    return RunAgain("defer", delay=error.delay or 0.0)


def judged(lease: Lease, verdict: Verdict) -> Die:
    """The store has decided: the item was never to run."""
    texts = {
        "expired": ("DeadlineExceeded", "its deadline passed before it could run to its end"),
        "lease_lost": ("LeaseLost", "every worker that ran it died or stopped answering"),
        "unsatisfiable": ("Unsatisfiable", "what it waited for can no longer happen"),
        "unknown_type": ("UnknownWorkError", f"no worker has the type {lease.type!r}"),
    }
    return Die(verdict, ErrorInfo(*texts[verdict]))


def failure_of(error: BaseException) -> ErrorInfo:
    """The error in words, as it is stored."""
    return ErrorInfo(type(error).__name__, _cut(_message(error)), _cut(_trace(error), keep_end=True))


# An error whose text cannot be made is still an error.


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001
        return "(its message cannot be shown)"


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001
        return ""


def _cut(text: str, *, keep_end: bool = False) -> str:
    data = text.encode(errors="backslashreplace")  # text may hold what no store takes: half a character
    if len(data) <= MAX_TEXT:
        return data.decode()
    # The end of a traceback names the culprit, the beginning of a message says what is wrong.
    room = MAX_TEXT - len(_CUT)
    kept = (data[-room:] if keep_end else data[:room]).decode(errors="ignore")
    return _CUT + kept if keep_end else kept + _CUT


def _cause(abort: Abort) -> BaseException:
    return abort.cause if isinstance(abort.cause, BaseException) else abort
