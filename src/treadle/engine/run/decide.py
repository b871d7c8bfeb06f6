"""Decide: how an attempt that has ended is settled.

    returned -> Succeed (value, contributions, children)
    raised   -> RunAgain (retry or defer) or Die
    verdict  -> Die

The functions are pure: they read no clock and touch no store. `FailureDecider` gives them the clock, the
retry policy and the `on_failure` hook of an attempt. The settle stage carries the decision out.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from treadle.base.callables import check_not_awaitable
from treadle.base.timing import instant, seconds
from treadle.codec import Shape
from treadle.define.secret_values import holds_secret
from treadle.define.signature import class_path, type_text
from treadle.define.work import Work
from treadle.engine.core import Core
from treadle.engine.guarded_telemetry import GuardedAttempt
from treadle.engine.submit.build_item import read_stored, retry_of
from treadle.errors import (
    Abort,
    BadResultError,
    DeadlineExceeded,
    DecodeError,
    Defer,
    DuplicateIdError,
    EncodeError,
    HandlerError,
    InputError,
    LeaseLost,
    PayloadError,
    RetryAfter,
    StrictReturnError,
    UnsupportedError,
    class_name,
    message_of,
    path_text,
    shown,
)
from treadle.flow_control import FailureInfo
from treadle.handler.result import Result
from treadle.handler.result_plan import PlannedContribution, ResultPlan, plan, plan_value, unreturned
from treadle.item import (
    UNSATISFIABLE,
    DeathReason,
    ErrorInfo,
    Item,
    Lease,
    Outcome,
    StepRecord,
    Verdict,
)
from treadle.logs.tracebacks import traceback_text
from treadle.retry import Retry, merge_retry

from .handler_pools import ThreadNotStarted
from .held import LOST, BoundType, HeldLease, Stop

NOT_STARTED_DELAY = 1.0
"""Seconds after which an item is tried again, here or elsewhere, if no thread could be started for it."""
MAX_TEXT = 10_000
"""The most bytes of a message or traceback that are stored with a failed attempt."""
_CUT = "[...]"


class Succeed(msgspec.Struct, frozen=True, gc=False):
    plan: ResultPlan


class RunAgain(msgspec.Struct, frozen=True):
    """Run it again: after a failure (`retry`), or later because the handler asked for that (`defer`)."""

    kind: Literal["retry", "defer"]
    delay: float = 0.0
    run_at: float | None = None
    failure: ErrorInfo | None = None
    error: BaseException | None = None


class Die(msgspec.Struct, frozen=True):
    reason: DeathReason
    failure: ErrorInfo
    error: BaseException | None = None


class GiveBack(msgspec.Struct, frozen=True):
    """Give the lease back, without counting the attempt: at a shutdown, because this worker declined, or
    because of a limit."""

    delay: float = 0.0
    limited: bool = False
    """A fleet-wide limit holds it back: no other worker can start it either, so none is told."""


class Drop(msgspec.Struct, frozen=True):
    """End it as cancelled, without running it: a limit is reached, and it does not wait."""

    failure: ErrorInfo


class WaitingFor(NamedTuple):
    """A wait of a suspended attempt."""

    step: StepRecord
    works: tuple[Work[Any, Any], ...] = ()
    """Works to queue. It waits for their ends."""
    children: tuple[str, ...] = ()
    """Or items that are open again."""


class Await(msgspec.Struct, frozen=True):
    """Suspend it: it waits, without a worker. passed: waits that are over by the clock."""

    waits: tuple[WaitingFor, ...]
    passed: tuple[StepRecord, ...] = ()

    def until(self, now: float) -> float | None:
        """When it goes on at the latest. None: there is no limit."""
        ends = [step.until if step.delay is None else now + step.delay for step, *_ in self.waits]
        return min((end for end in ends if end is not None), default=None)


Decision: TypeAlias = Succeed | RunAgain | Die | GiveBack | Drop | Await
_VALUES: Final = frozenset((type(None), bool, int, float, str, bytes, dict))
"""Classes of values that are neither a Result nor a Work, and no list of Works."""
Classified: TypeAlias = Literal["retry", "abort"] | Defer | RetryAfter | None


def returned(lease: Lease, value: object, created: Sequence[Result[Any, Any]], strict: bool) -> Decision:
    """The handler returned `value`, and made the Results in `created`."""
    if type(value) in _VALUES and not created:
        return Succeed(plan_value(value))  # what most handlers return needs no other look
    match value:
        case Work():
            problem = f"a bare Work, {value!r:.200}; return ctx.queue(...) of it instead"
            return _refuse(BadResultError(lease.type, problem))
        case [Work(), *_]:  # pyright: ignore[reportUnknownVariableType]
            return _refuse(BadResultError(lease.type, "a list of Works; return ctx.queue(*works) instead"))
        case _:
            pass
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
    """The attempt failed with `error`. `now` is the store's clock, as the worker estimates it."""
    match error:
        case Abort():
            cause = error.cause if isinstance(error.cause, BaseException) else error
            return Die("aborted", failure_of(cause), error)
        case Defer():
            return _defer(lease, error, retry, now)
        case RetryAfter():
            cause = error.cause if isinstance(error.cause, BaseException) else error
            return _retry_after(lease, cause, error, now)
        case DeadlineExceeded():
            return Die("expired", failure_of(error), error)
        case HandlerError() | UnsupportedError():  # another attempt would not help
            return Die("bad_result", failure_of(error), error)
        case ThreadNotStarted():
            return GiveBack(NOT_STARTED_DELAY)
        case _:
            pass
    answer = classify(error)
    if answer == "abort":
        return Die("aborted", failure_of(error), error)
    if isinstance(answer, Defer):
        return _defer(lease, answer, retry, now)
    if isinstance(answer, RetryAfter):
        return _retry_after(lease, error, answer, now)
    return _retry(lease, error, now, lambda failures: retry.delay(failures, draw))


def overrides(stop: Stop, error: BaseException | None, *, cancelled: bool) -> bool:
    """Whether the reason to stop counts more than the handler's own outcome. A shutdown does so only if it
    ended the handler: by cancellation, or by `raise_if_set`, which raises `LeaseLost`. A timeout does so too
    once the handler was cancelled: until then, it had time to end by itself."""
    ended_by_stop = isinstance(error, asyncio.CancelledError | LeaseLost)
    return ended_by_stop or stop in LOST or stop == "deadline" or (stop == "timeout" and cancelled)


def undecodable(error: BaseException) -> Die:
    """The stored input cannot be decoded, or the result cannot be encoded. A retry would not help."""
    return Die("undecodable", failure_of(error), error)


def _retry_after(lease: Lease, error: BaseException, given: RetryAfter, now: float) -> Decision:
    try:
        delay = _delay_of(given)
    except InputError as problem:
        return Die("bad_result", failure_of(problem), problem)
    return _retry(lease, error, now, lambda _: delay)


def _retry(lease: Lease, error: BaseException, now: float, wait: Callable[[int], float]) -> Decision:
    """wait: the delay after this many failures."""
    failure = failure_of(error)
    failures = lease.failures + 1
    if lease.attempts is not None and failures >= lease.attempts:
        return Die("exhausted", failure, error)
    delay = wait(failures)
    if lease.deadline is not None and now + delay > lease.deadline:
        return Die("expired", failure, error)
    return RunAgain("retry", delay, None, failure, error)


def _defer(lease: Lease, error: Defer, retry: Retry, now: float) -> Decision:
    try:
        delay, run_at = _time_of(error)
    except InputError as problem:
        return Die("bad_result", failure_of(problem), problem)
    if retry.max_deferrals is not None and lease.deferrals >= retry.max_deferrals:
        failure = failure_of(error)
        why = cut_text(f"once more than max_deferrals={retry.max_deferrals} allows: {failure.message}")
        return Die("exhausted", msgspec.structs.replace(failure, message=why), error)
    due = now + delay if run_at is None else run_at
    if lease.deadline is not None and due > lease.deadline:
        late = DeadlineExceeded(lease.id, lease.deadline)
        return Die("expired", failure_of(late), late)
    return RunAgain("defer", delay=delay, run_at=run_at)


def _time_of(error: Defer) -> tuple[float, float | None]:
    """The delay and the instant of a Defer. Checked: a subclass may set its own, or none."""
    if error.run_at is not None:
        return 0.0, instant(error.run_at, field="run_at")
    return _delay_of(error), None


def _delay_of(error: Defer | RetryAfter) -> float:
    if error.delay is None:
        raise InputError(
            f"a {class_name(error)} without a time: its __init__ must call super().__init__(delay=...)",
            parameters=("delay", "run_at"),
        )
    return seconds(error.delay, field="delay")


def lost_too_often(lease: Lease, retry: Retry) -> bool:
    return retry.max_losses is not None and lease.losses > retry.max_losses


def is_lost_too_often(lease: Lease, base: Retry) -> bool:
    """`base`: the policy of its type."""
    try:
        return lost_too_often(lease, retry_of(read_stored(lease.options), base))
    except PayloadError:
        return False  # its options cannot be read: it ends for that reason


def unbegun(lease: Lease) -> Lease:
    """The lease of an item that ends without another attempt, with the attempts that have begun."""
    return lease if lease.begun else msgspec.structs.replace(lease, attempt=lease.attempt - 1)


def judged(lease: Lease, verdict: Verdict | Literal["lease_lost"]) -> Die:
    """The item must end without running: the store said so, or it was lost too often."""
    texts = {
        "expired": ("DeadlineExceeded", "its deadline passed before it could run to its end"),
        "lease_lost": (
            "LeaseLost",
            f"{lease.losses} workers in a row died or stopped answering while they ran it",
        ),
        "unsatisfiable": (UNSATISFIABLE, "what it waited for can no longer happen"),
        "unknown_type": ("UnknownWorkError", f"no worker has the type {lease.type!r}"),
    }
    return Die(verdict, ErrorInfo(*texts[verdict]))


def failure_of(error: BaseException) -> ErrorInfo:
    """The error as it is stored: type, message and traceback."""
    return ErrorInfo(
        cut_text(class_path(error)),
        cut_text(message_of(error)),
        cut_text(traceback_text(error), keep_end=True),
    )


def undecidable(error: BaseException) -> Die:
    """The last resort: what to do with the outcome of an attempt could not be found out, because of `error`.
    The item must still be settled."""
    return Die("bad_result", failure_of(error), error)


def cut_text(text: str, *, keep_end: bool = False) -> str:
    """A text of at most `MAX_TEXT` bytes that can be stored."""
    data = text.encode(errors="backslashreplace")  # lone surrogates cannot be stored
    if len(data) <= MAX_TEXT:
        return data.decode()
    # A traceback names the cause at its end, a message at its beginning.
    room = MAX_TEXT - len(_CUT)
    kept = (data[-room:] if keep_end else data[:room]).decode(errors="ignore")
    return _CUT + kept if keep_end else kept + _CUT


class FailureDecider:
    """Decides how a failed attempt settles, by its retry policy and its `on_failure` hook."""

    def __init__(self, core: Core) -> None:
        self._clock = core.settings.clock
        self._draw = core.settings.random.random
        self._hooks = core.hooks

    def decide(self, held: HeldLease, error: BaseException) -> Decision:
        """It never raises: an attempt without a decision would run for ever."""
        retry = retry_of(held.stored, held.bound.retry)
        try:
            return self._raised(held, error, retry)
        except BaseException as own:  # noqa: BLE001  a `backoff` function, or the error's own class
            self._report(own)
        try:
            return self._raised(held, error, merge_retry(retry, Retry(backoff=None)))
        except BaseException as own:  # noqa: BLE001  the error's own class
            return undecidable(own)

    def _raised(self, held: HeldLease, error: BaseException, retry: Retry) -> Decision:
        now = held.store_time(self._clock.monotonic())
        lease = msgspec.structs.replace(held.lease, failures=0) if held.progressed else held.lease
        return raised(lease, error, functools.partial(self._classify, held), retry, now, self._draw)

    def _classify(self, held: HeldLease, error: BaseException) -> Classified:
        if held.bound.on_failure is None:
            return None
        lease = held.lease
        try:
            info = FailureInfo(lease.id, lease.type, lease.attempt, lease.attempts)
            return _checked(held.bound.on_failure(error, info))
        except BaseException as own:  # noqa: BLE001  a hook that raises means retry
            self._report(own)
            return None

    def _report(self, error: BaseException) -> None:
        self._hooks.report(error, "hook", "a user's hook failed")


def _checked(answer: object) -> Classified:
    """The answer of `on_failure`, or raise TypeError."""
    check_not_awaitable(answer, "on_failure")
    if isinstance(answer, Defer):
        _time_of(answer)
        return answer
    if isinstance(answer, RetryAfter):
        _delay_of(answer)
        return answer
    if answer is None or answer in ("retry", "abort"):
        return answer
    raise TypeError(
        f"on_failure must return 'retry', 'abort', a Defer, a RetryAfter or None, not {shown(answer)}"
    )


class PendingSettlement(msgspec.Struct, eq=False, gc=False):
    """One attempt on its way through settling."""

    lease: Lease
    decision: Decision
    result: bytes | None = None
    """The item's own value, encoded."""
    children: tuple[Item, ...] = ()
    contributions: tuple[PlannedContribution, ...] = ()
    started: float = 0.0
    """When the attempt began, by the worker's monotonic clock; 0 if it did not."""
    held_since: float = 0.0
    """For a lease without a worker: when it was claimed, by the same clock."""
    outcome: Outcome | None = None
    """The store's final answer."""
    locked: bool = False
    """It waits for another transaction: it is settled apart from the others."""
    span: GuardedAttempt | None = None
    """The span of the attempt, if it is traced. What it queues comes from there."""
    childless: bool = False
    """The store has refused the compensation of the item: it dies without."""
    log: bytes | None = None
    """What the attempt has logged."""
    ran_steps: bool = False
    """The attempt had steps."""
    undoable: tuple[StepRecord, ...] | None = None
    """For an item that dies: its steps that have an undo, in the order in which they were recorded. None:
    not read."""
    maybe_applied: PendingSettlement | None = None
    """The settlement that may have been applied instead, by a transaction whose commit was not confirmed."""

    @property
    def may_undo(self) -> bool:
        """Whether there may be steps to undo, if the item dies."""
        return self.ran_steps or self.lease.has_steps

    @property
    def attempts_begun(self) -> int:
        """How many attempts of the item began, for an item that dies."""
        lease, decision = self.lease, self.decision
        lost = isinstance(decision, Die) and decision.reason == "lease_lost"
        began = self.started or self.held_since or lost or lease.verdict is not None
        return lease.attempt if began else lease.attempt - 1


_SHOWN: Final = (str, bytes, int, float)
"""Values of these classes are shown, and their subclasses are not. Others may hold anything."""


def unstorable(error: BaseException) -> Die:
    """What an attempt leads to cannot be stored: its result, its children, or the value of its group."""
    if isinstance(error, DecodeError):  # what the group had before
        return undecodable(error)
    return Die("bad_result", failure_of(error), error)


def unfit_result(bound: BoundType, value: Any, error: EncodeError) -> BadResultError:
    """The error for a result that cannot be encoded."""
    problem = _problem(bound.result_shape, value, error)
    return BadResultError.of(bound.name, f"{problem}; the handler is in {_place(bound.fn)}")


def _problem(shape: Shape, value: Any, error: EncodeError) -> str:
    fits = shape.fits(value)
    start = "cannot be stored" if fits else f"does not fit its annotation `{type_text(shape.type)}`"
    if holds_secret(shape.type):
        return f"{start}: what is wrong is not shown, because it may be secret"
    if error.path != "$":
        return f"{start}: at {path_text(error.path)}: {error.problem}"
    if fits:
        return f"{start}: {error.problem}"
    got = f"got `{type_text(type(value))}`"
    if inspect.iscoroutine(value):
        value.close()
        return f"{start}: {got}: is an `await` missing?"
    return f"{start}: {got} ({shown(value)})" if type(value) in _SHOWN else f"{start}: {got}"


def _place(fn: Callable[..., Any]) -> str:
    """The file and the line of a function: `shop.py, line 12`."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None:
        return getattr(fn, "__qualname__", type(fn).__qualname__)
    return f"{Path(code.co_filename).name}, line {code.co_firstlineno}"
