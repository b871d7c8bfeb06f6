"""The retry policy: how often to try, and how long to wait between attempts.

A `Retry` remembers which fields were written. As an override it changes only those: `Retry(attempts=5)` at
enqueue changes the attempts of the type's policy and keeps its delays.
"""

from __future__ import annotations

import inspect
import math
import random as random_module
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import UNSET, UnsetType

from .base.callables import check_not_awaitable, check_plain
from .base.timing import MAX_DURATION, Clock, Duration, SystemClock, check_number, seconds
from .errors import Abort, InputError, RetryAfter

T = TypeVar("T")

Backoff: TypeAlias = Callable[[int], Duration]
Draw: TypeAlias = Callable[[], float] | random_module.Random
OnError: TypeAlias = Callable[[Exception], object | Awaitable[object]]


_DEFAULTS: Final = {
    "attempts": 3,
    "base": 1.0,
    "factor": 2.0,
    "max": 30.0,
    "jitter": 0.5,
    "backoff": None,
    "max_losses": 20,
    "max_deferrals": None,
}


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """How failed attempts are repeated.

    attempts: how many may fail before the item is dead. None: no limit.
    base, factor, max: the wait before retry n is `base * factor ** (n - 1)`, at most `max`.
    jitter: a random share of the wait, at most this much, is subtracted, so that many retries spread out.
    backoff: your own function `fn(n) -> seconds`, used without `max` and jitter. It is code, so it can be set
        on a type or an app, but not on a stored item.
    max_losses: how often in a row the process that runs the item may die. One more, and the item is dead
        (`lease_lost`). A loss is not a failure: it counts no attempt of `attempts`. None: no limit.
    max_deferrals: how often the handler may raise `Defer`. One more, and the item is dead (`exhausted`).
        None, the default: no limit.

    Two policies are equal if they behave the same, whichever fields were written.
    """

    attempts: int | None
    base: float
    factor: float
    max: float
    jitter: float
    backoff: Backoff | None
    max_losses: int | None
    max_deferrals: int | None
    _given: frozenset[str] = field(compare=False, repr=False)

    def __init__(
        self,
        attempts: int | UnsetType | None = UNSET,
        base: Duration | UnsetType = UNSET,
        factor: float | UnsetType = UNSET,
        max: Duration | UnsetType = UNSET,
        jitter: float | UnsetType = UNSET,
        backoff: Backoff | UnsetType | None = UNSET,
        max_losses: int | UnsetType | None = UNSET,
        max_deferrals: int | UnsetType | None = UNSET,
    ) -> None:
        written = (attempts, base, factor, max, jitter, backoff, max_losses, max_deferrals)
        values = zip(_CHECKS, written, strict=True)
        given = {name: _CHECKS[name](value, name) for name, value in values if value is not UNSET}
        for name, value in {**_DEFAULTS, **given, "_given": frozenset(given)}.items():
            object.__setattr__(self, name, value)

    def exhausted(self, failures: int) -> bool:
        """Whether this number of failed attempts is all that is allowed."""
        return self.attempts is not None and failures >= self.attempts

    def delay(self, n: int, random: Draw = random_module.random) -> float:
        """Return the seconds to wait before retry `n` (1 = the first retry)."""
        if n < 1:
            raise InputError.of("n", n, "must be 1 or more: retries are counted from 1")
        if self.backoff is not None:
            wait = self.backoff(n)
            check_not_awaitable(wait, "backoff")
            return seconds(wait, field="backoff")
        draw = random.random if isinstance(random, random_module.Random) else random
        return min(self._grown(n), self.max) * (1 - self.jitter * draw())

    def _grown(self, n: int) -> float:
        if self.base == 0:
            return 0.0
        try:
            return self.base * self.factor ** (n - 1)
        except OverflowError:
            return math.inf


def written_fields(retry: Retry) -> dict[str, object]:
    """Return the fields that were written: `Retry(**written_fields(retry))` is this policy again."""
    given = retry._given  # pyright: ignore[reportPrivateUsage]
    return {item.name: getattr(retry, item.name) for item in fields(retry) if item.name in given}


def merge_retry(policy: Retry, override: Retry | None) -> Retry:
    """Return `policy` with the written fields of `override` in place of its own."""
    changes = {} if override is None else written_fields(override)
    if not changes:
        return policy
    return Retry(**{**written_fields(policy), **changes})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def retry_call(
    fn: Callable[[], Awaitable[T]],
    retry: Retry | None = None,
    *,
    on: OnError | None = None,
    clock: Clock | None = None,
    random: Draw = random_module.random,
) -> T:
    """Await `fn()`, repeat it as `retry` says, and return its value or raise its last error.

    `on(error)`, plain or async, is called after each failure. False stops. A number is the least wait in
    seconds. Any other value leaves the decision to the policy. `Abort` stops too, and raises its cause if
    that is an exception. The wait after a `RetryAfter` is the one that it names. Cancellation is never
    retried.
    """
    policy, clock = retry or Retry(), clock or SystemClock()
    attempt = 1
    while True:
        try:
            return await fn()
        except Abort as abort:
            if isinstance(abort.cause, BaseException):
                raise abort.cause from abort.cause.__cause__
            raise
        except Exception as error:
            least = await _least_wait(on, error)
            if least is None or policy.exhausted(attempt):
                raise
            after = error.delay if isinstance(error, RetryAfter) else None
        await clock.sleep(max(least, policy.delay(attempt, random) if after is None else after))
        attempt += 1


async def _least_wait(on: OnError | None, error: Exception) -> float | None:
    answer = on(error) if on is not None else None
    if inspect.isawaitable(answer):
        answer = await answer
    if answer is False:
        return None
    return seconds(answer, field="on") if isinstance(answer, int | float) and answer is not True else 0.0


def _checked_attempts(value: Any, name: str) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise InputError.of(name, value, "must be a whole number, 1 or more, or None for no limit")
    return value


def _checked_count(value: Any, name: str) -> int | None:
    if value is not None and (type(value) is not int or value < 0):
        raise InputError.of(name, value, "must be a whole number, 0 or more, or None for no limit")
    return value


def _checked_backoff(value: Any, name: str) -> Any:
    return None if value is None else check_plain(value, name)


_CHECKS: Final[dict[str, Callable[[Any, str], object]]] = {
    "attempts": _checked_attempts,
    "base": seconds,
    "factor": lambda value, name: check_number(value, name, 0.0, MAX_DURATION),
    "max": seconds,
    "jitter": lambda value, name: check_number(value, name, 0.0, 1.0),
    "backoff": _checked_backoff,
    "max_losses": _checked_count,
    "max_deferrals": _checked_count,
}


STORE_BACKOFF: Final = Retry(attempts=None, base=0.1, factor=2.0, max=5.0, jitter=0.5)
"""How long a loop in the background waits before it asks a store again that did not answer."""
