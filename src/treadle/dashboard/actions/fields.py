"""Fields: read what was typed into a form: instants, numbers, JSON."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from treadle.errors import InputError
from treadle.operate.filters import read_start

MOST_CHARACTERS: Final = 100


def read_instant(text: str, field: str, now: float) -> float:
    """Epoch seconds: `now`, from now on (`5m`), or an instant, in UTC unless it says otherwise."""
    if text == "now":
        return now
    try:
        return read_start(text[:MOST_CHARACTERS].removeprefix("+"), now, field)
    except InputError:
        problem = "must be now, a time from now such as 5m or 2h, or an instant such as 2030-01-31 09:00"
        raise InputError.of(field, text, problem) from None


def read_number(text: str, field: str) -> float:
    try:
        return float(text[:MOST_CHARACTERS])
    except ValueError:
        raise InputError.of(field, text, "must be a number") from None


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
