"""Cron words: when a schedule is due, said as a person would: `weekdays at 3:00 Europe/Paris`.

Pure. An expression that cannot be said well is shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from treadle.base.wording import duration

MOST_CHARACTERS: Final = 100
"""Longer expressions are not read."""
MOST_TIMES: Final = 4
"""Times of day that are named."""
NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July", "August"),
    *("September", "October", "November", "December"),
)
ORDINALS: Final = ("first", "second", "third", "fourth", "fifth")


def timing_words(timing: Mapping[str, Any]) -> str:
    """The timing of a schedule in words: that of `ScheduleState.timing`, without its bounds."""
    every, expression = timing.get("every"), timing.get("cron")
    if isinstance(expression, str):
        return cron_words(expression, str(timing.get("tz", "UTC")))
    if isinstance(every, int | float):
        return f"every {duration(every)}"
    return f"as {timing['next']} says" if "next" in timing else "not known"


def cron_words(expression: str, tz: str = "UTC") -> str:
    """A cron expression in words, with its time zone where that matters."""
    said = _said(expression)
    if said is None:
        return f"{expression} {tz}"
    return f"{said.text} {tz}" if said.needs_zone else said.text


class _Words(NamedTuple):
    text: str
    needs_zone: bool


def _said(expression: str) -> _Words | None:
    """None: there are no good words for it."""
    if len(expression) > MOST_CHARACTERS:
        return None
    parts = NICKNAMES.get(expression, expression).upper().split()
    seconds = parts.pop(0) if len(parts) == 6 else "0"
    if len(parts) != 5:
        return None
    if seconds != "0":
        step = _step(seconds, 60)
        return None if step is None or parts != ["*"] * 5 else _Words(_every(step, "s", "second"), False)
    minute, hour, day, month, weekday = parts
    days = _days(day, month, weekday)
    return None if days is None else _with_times(minute, hour, days)


# -------------------------------------------------------------------------------------------------- times


def _with_times(minute: str, hour: str, days: str) -> _Words | None:
    """The whole. days: empty for every day."""
    step = 1 if minute == "*" else _step(minute, 60)
    if step is not None:
        return _by_minutes(step, hour, days)
    minutes = _numbers(minute, 0, 59)
    if minutes is None:
        return None
    hours_step = 1 if hour == "*" else _step(hour, 24)
    if hours_step is not None:
        if len(minutes) > MOST_TIMES:
            return None
        at = "" if minutes == [0] else f" at {_listed([f':{each:02}' for each in minutes])}"
        text = f"{_every(hours_step, 'h', 'hour')}{at}"
        return _Words(f"{text}, {days}" if days else text, bool(days) or hours_step > 1)
    hours = _numbers(hour, 0, 23)
    if hours is None:
        return None
    if len(minutes) == 1 and len(hours) > 2 and hours == list(range(hours[0], hours[-1] + 1)):
        clock = f"every hour from {_clock(hours[0], minutes[0])} to {_clock(hours[-1], minutes[0])}"
        return _Words(f"{days}, {clock}" if days else clock, True)
    times = [_clock(each, minute) for each in hours for minute in minutes]
    return None if len(times) > MOST_TIMES else _Words(f"{days or 'every day'} at {_listed(times)}", True)


def _by_minutes(step: int, hour: str, days: str) -> _Words | None:
    text = _every(step, "min", "minute")
    if hour != "*":
        hours = _numbers(hour, 0, 23)
        if hours is None or hours != list(range(hours[0], hours[-1] + 1)):
            return None
        text = f"{text} from {_clock(hours[0], 0)} to {_clock(hours[-1], 60 - step)}"
    return _Words(f"{text}, {days}" if days else text, bool(days) or hour != "*")


def _every(step: int, unit: str, one: str) -> str:
    return f"every {one}" if step == 1 else f"every {step} {unit}"


def _clock(hour: int, minute: int) -> str:
    return f"{hour}:{minute:02}"


# --------------------------------------------------------------------------------------------------- days


def _days(day: str, month: str, weekday: str) -> str | None:
    """The days in words. Empty: every day. None: there are no good words."""
    months = [] if month == "*" else _numbers(month, 1, 12, [each[:3].upper() for each in MONTHS])
    if months is None or len(months) > MOST_TIMES:
        return None
    if day == "*" and weekday == "*":
        return f"every day in {_listed([MONTHS[each - 1] for each in months])}" if months else ""
    of_months = f"in {_listed([MONTHS[each - 1] for each in months])}" if months else "of the month"
    if weekday == "*":
        return _days_of_month(day, months, of_months)
    if day != "*":  # either of the two counts: words for that mislead
        return None
    in_month = re.fullmatch(r"(\d|[A-Z]{3})(?:#([1-5])|(L))", weekday)
    if in_month is not None:
        found = _numbers(in_month[1], 0, 7, [each[:3].upper() for each in DAYS])
        if found is None:
            return None
        which = ORDINALS[int(in_month[2]) - 1] if in_month[2] else "last"
        return f"on the {which} {DAYS[found[0] % 7]} {of_months}"
    return _weekdays(weekday, of_months if months else "")


def _days_of_month(day: str, months: Sequence[int], of_months: str) -> str | None:
    if day in ("L", "LW"):
        return f"on the last {'working ' if day == 'LW' else ''}day {of_months}"
    days = _numbers(day, 1, 31)
    if days is None or len(days) > MOST_TIMES:
        return None
    if len(months) == 1:
        return f"on {MONTHS[months[0] - 1]} {_listed([str(each) for each in days])}"
    return f"on day{'s' if len(days) > 1 else ''} {_listed([str(each) for each in days])} {of_months}"


def _weekdays(weekday: str, of_months: str) -> str | None:
    found = _numbers(weekday, 0, 7, [each[:3].upper() for each in DAYS])
    if found is None:
        return None
    days = sorted({(each - 1) % 7 for each in found})  # from Monday on
    if days == list(range(7)):
        text = "every day"
    elif days == [0, 1, 2, 3, 4]:
        text = "weekdays"
    elif days == [5, 6]:
        text = "weekends"
    elif len(days) > MOST_TIMES:
        return None
    else:
        text = _listed([f"{DAYS[(each + 1) % 7]}s" for each in days])
    return f"{text} {of_months}" if of_months else text


# ------------------------------------------------------------------------------------------------- fields


def _step(field: str, whole: int) -> int | None:
    """The step of `*/n`, if n divides the whole: else the last one is shorter than the others."""
    found = re.fullmatch(r"\*/([1-9]\d?)", field)
    step = int(found[1]) if found else 0
    return step if step and step < whole and whole % step == 0 else None


def _numbers(field: str, least: int, most: int, names: Sequence[str] = ()) -> list[int] | None:
    """The numbers that a field of lists and ranges stands for, in order. None: it is something else."""
    known = {name: place + least for place, name in enumerate(names)}
    found: set[int] = set()
    for part in field.split(","):
        ends = [
            known.get(each, int(each) if re.fullmatch(r"[0-9]{1,2}", each) else -1)
            for each in part.split("-")
        ]
        if len(ends) > 2 or any(not least <= each <= most for each in ends) or ends[0] > ends[-1]:
            return None
        found.update(range(ends[0], ends[-1] + 1))
    return sorted(found)


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
