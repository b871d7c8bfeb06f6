"""Durations and instants: checks the values that callers give and turns them into float seconds. And `Clock`.

Callers give a `Duration` (seconds or `timedelta`) or an `Instant` (aware `datetime` or epoch seconds). Values
that a store cannot hold or compare (NaN, infinity, naive datetimes, the year 30,000) raise InputError with
the name of the option.
"""

from __future__ import annotations

import asyncio
import math
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeAlias, runtime_checkable

from treadle.errors import InputError

Duration: TypeAlias = float | int | timedelta
Instant: TypeAlias = datetime | float | int

# The years 1 and 9999, which are the limits of datetime.
MIN_INSTANT = -62_135_596_800.0
MAX_INSTANT = 253_402_300_799.0
MAX_DURATION = MAX_INSTANT
LEAST_EPOCH = 1e9
"""A number that may mean either is an instant from here on: it was in 2001, and a duration of 31 years."""


def seconds(value: Duration, field: str = "duration") -> float:
    """Return `value` as finite seconds, zero or more."""
    if isinstance(value, timedelta):
        number = value.total_seconds()
    else:
        number = _number(value, field, "seconds or a timedelta")
    if number < 0:
        raise InputError.of(field, value, "must not be negative")
    if number > MAX_DURATION:
        raise InputError.of(field, value, "is longer than 8,000 years")
    return number


def instant(value: Instant, field: str = "instant") -> float:
    """Return `value` as epoch seconds. It may be in the past."""
    if isinstance(value, datetime):
        return _timestamp(value, field)
    number = _number(value, field, "epoch seconds or an aware datetime")
    if not MIN_INSTANT <= number <= MAX_INSTANT:
        raise InputError.of(field, value, "is outside the years 1 to 9999")
    return number


def end(value: Duration | Instant, now: float, field: str = "until") -> float:
    """Return when it ends, as epoch seconds: later than `now`. A duration counts from `now`. A number from
    `LEAST_EPOCH` on is an instant."""
    if isinstance(value, datetime):
        at: float = _timestamp(value, field)
    elif isinstance(value, timedelta):
        at = now + value.total_seconds()
    else:
        number = _number(value, field, "seconds or a timedelta from now, epoch seconds, or an aware datetime")
        at = number if number >= LEAST_EPOCH else now + number
    if at <= now:
        given = value.isoformat() if isinstance(value, datetime) else value
        given = given.total_seconds() if isinstance(given, timedelta) else given
        raise InputError.of(field, given, "has passed: it must be later than now")
    return instant(at, field)


def check_number(value: object, field: str, low: float, high: float) -> float:
    """Return `value` as a float, or raise InputError if it is not a number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InputError.of(field, value, f"must be a number from {low:g} to {high:g}")
    return float(value)


def to_datetime(epoch: float) -> datetime:
    """Return the instant as an aware `datetime` in UTC."""
    return datetime.fromtimestamp(epoch, UTC)


def _timestamp(value: datetime, field: str) -> float:
    if value.utcoffset() is None:
        raise InputError.of(field, value, "has no time zone: use datetime.now(UTC), or value.astimezone()")
    return value.timestamp()


def finite(value: object, *, field: str) -> float:
    """Check a number that is no time."""
    return _number(value, field, "a number")


def _number(value: object, field: str, wanted: str) -> float:
    # A bool is an int, but delay=True is a mistake.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError.of(field, value, f"must be {wanted}")
    try:
        number = float(value)
    except OverflowError:
        raise InputError.of(field, value, "is too large") from None
    if not math.isfinite(number):
        raise InputError.of(field, value, "must be finite")
    return number


def iso(at: float | None) -> str | None:
    """An instant as ISO 8601 in UTC, always with microseconds, so that texts sort like instants."""
    if at is None:
        return None
    return f"{to_datetime(min(max(at, MIN_INSTANT), MAX_INSTANT)):%Y-%m-%dT%H:%M:%S.%f}Z"


@runtime_checkable
class Clock(Protocol):
    """What tells the time. Code that waits or reads the time gets one passed in: in tests,
    `treadle.testing.ManualClock`."""

    def now(self) -> float:
        """Wall time in epoch seconds, to compare with other machines. It may jump, also backwards."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary start, to measure durations. It never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of monotonic time. Zero or less lets other tasks run once."""
        ...


class SystemClock:
    """The clocks of this machine."""

    __slots__ = ()

    # The C functions themselves: this saves a Python call each time that a clock is read.
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
