"""Fields: read what was typed into a form: instants, durations, numbers, JSON."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from treadle.errors import InputError

MOST_CHARACTERS: Final = 100
_RELATIVE: Final = re.compile(r"\+?\s*(\d{1,9}(?:\.\d{1,6})?)\s*(s|m|min|h|d|w)")
_UNITS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def read_duration(text: str, field: str) -> float:
    """Seconds: `90`, `90s`, `5m`, `2h`, `1d`."""
    found = _RELATIVE.fullmatch(text)
    if found is not None:
        return float(found[1]) * _UNITS[found[2]]
    return read_number(text, field, "must be seconds, or a duration such as 90s, 5m, 2h, 1d")


def read_instant(text: str, field: str, now: float) -> float:
    """Epoch seconds: `now`, from now on (`5m`), or an instant, in UTC unless it says otherwise."""
    if text == "now":
        return now
    found = _RELATIVE.fullmatch(text)
    if found is not None:
        return now + float(found[1]) * _UNITS[found[2]]
    try:
        instant = datetime.fromisoformat(text[:MOST_CHARACTERS])
    except ValueError:
        problem = "must be now, a time from now such as 5m or 2h, or an instant such as 2030-01-31 09:00"
        raise InputError.of(field, text, problem) from None
    return (instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)).timestamp()


def read_number(text: str, field: str, problem: str = "must be a number") -> float:
    try:
        return float(text[:MOST_CHARACTERS])
    except ValueError:
        raise InputError.of(field, text, problem) from None


def read_whole(text: str, field: str) -> int:
    try:
        return int(text[:MOST_CHARACTERS])
    except ValueError:
        raise InputError.of(field, text, "must be a whole number") from None


def read_json(text: str, field: str) -> Any:
    """A JSON value."""
    try:
        return msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{field} is no JSON: {error}", parameters=(field,)) from None
