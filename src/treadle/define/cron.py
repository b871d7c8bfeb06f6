"""Cron expressions: compute when one is due next.

Five fields (minute, hour, day of month, month, day of week), or six with seconds first, as cronsim
reads them: `*`, `a-b`, `a,b`, `*/n`, names (`JAN`, `MON`), `L` and `LW` for the last (working) day
of a month, `MON#2` for the second Monday, `5L` for the last Friday. A day matches when day of month
*or* day of week does, unless one of them starts with `*`; then both must. `@hourly`, `@daily` (or
`@midnight`), `@weekly`, `@monthly` and `@yearly` (or `@annually`) stand for whole expressions.

Daylight saving follows Debian's cron. Clocks go forward: an expression at a fixed hour that is
skipped is due once, right after the gap. Clocks go back: it is due once, the first time round.
Expressions with a `*` for the minute or the hour follow elapsed time through both.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Final, overload
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from treadle.base import timing
from treadle.errors import CronError

_ALLOWED: Final = {
    "second": "0-59",
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 or SUN-SAT",
}
_NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MAX_LENGTH: Final = 255
# A leap year. An expression that is not due within the 50 years that cronsim looks ahead never is.
_PROBE: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """An expression in a time zone. Raises CronError, naming the field, if it is invalid or never due."""

    expression: str
    tz: str = "UTC"
    _zone: tzinfo = field(init=False, repr=False, compare=False)
    _fields: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_zone", _zone(self.expression, self.tz))
        object.__setattr__(self, "_fields", _fields(self.expression))
        _check(self._fields)

    def next_after(self, instant: datetime | float) -> datetime | None:
        """The first due instant strictly after `instant`, in the schedule's time zone.

        None if there is none before the year 10,000. Compare timestamps, not datetimes, where clocks go back:
        to Python, a time that occurs twice is unequal to all times of other zones.
        """
        after = timing.instant(instant, field="instant")
        try:
            # Where clocks go back, cronsim may return the first 02:30 after the second 02:10.
            dues = CronSim(self._fields, self._local(after))
            return next((due for due in dues if due.timestamp() > after), None)
        except (OverflowError, ValueError):
            return None

    def recent(self, moment: float, count: int) -> float | None:
        """The `count`-th latest due instant up to `moment`, itself included, in epoch seconds."""
        backwards = CronSim(self._fields, self._local(math.floor(moment) + 1), reverse=True)
        try:
            earlier = next(itertools.islice(backwards, count - 1, None), None)
        except (OverflowError, ValueError):
            return None
        return None if earlier is None else earlier.timestamp()

    def _local(self, moment: float) -> datetime:
        return timing.to_datetime(moment).astimezone(self._zone)


@overload
def next_after(expr: str, instant: datetime, tz: str = "UTC") -> datetime | None: ...


@overload
def next_after(expr: str, instant: float, tz: str = "UTC") -> float | None: ...


def next_after(expr: str, instant: datetime | float, tz: str = "UTC") -> datetime | float | None:
    """When `expr` is first due, strictly after `instant`.

    A datetime gives an aware datetime in `tz`, epoch seconds give epoch seconds.
    """
    due = _schedule(expr, tz).next_after(instant)
    return due.timestamp() if due is not None and not isinstance(instant, datetime) else due


@lru_cache(maxsize=256)
def _schedule(expression: str, tz: str) -> CronSchedule:
    return CronSchedule(expression, tz)


def _zone(expression: str, name: str) -> tzinfo:
    try:
        return ZoneInfo(name) if name != "UTC" else UTC
    except Exception:  # noqa: BLE001  unknown, unreadable, not a str: the same advice
        raise CronError(expression, "tz", f"no time zone is named {name!r}") from None


def _fields(expression: str) -> str:
    """The fields that a nickname stands for. Any other expression is returned as it is."""
    if not expression.startswith("@"):
        return expression
    found = _NICKNAMES.get(expression)
    if found is None:
        raise CronError(f"{expression:.77}", "expression", f"must be one of {', '.join(_NICKNAMES)}")
    return found


def _check(expression: str) -> None:
    if len(expression) > _MAX_LENGTH:
        raise CronError(f"{expression[:77]}...", "expression", f"is over {_MAX_LENGTH} characters")
    try:
        due = next(CronSim(expression, _PROBE), None)
    except Exception as error:
        raise _explain(expression, str(error)) from error
    if due is None:
        raise CronError(expression, "day-of-month", "never falls on such a day of the week")


def _explain(expression: str, problem: str) -> CronError:
    """Turn an error of cronsim, as "Bad hour", into one that quotes the field."""
    parts = expression.split()
    if len(parts) not in (5, 6):
        return CronError(expression, "fields", f"expected 5, or 6 with seconds first, got {len(parts)}")
    name = problem.removeprefix("Bad ")
    if name not in _ALLOWED:
        return CronError(expression, "expression", "cannot be read")
    text = dict(zip(list(_ALLOWED)[-len(parts) :], parts, strict=True))[name]
    if name == "day-of-month" and _is_valid(" ".join([*parts[:-2], "*", "*"])):
        return CronError(expression, name, f"{text!r} is a day that month {parts[-2]!r} never has")
    return CronError(expression, name, f"{text!r} is not within {_ALLOWED[name]}")


def _is_valid(expression: str) -> bool:
    try:
        CronSim(expression, _PROBE)
    except CronSimError:
        return False
    return True
