"""The words of filters as people write them: statuses, reasons, `1h30m`, `2h` ago, `2026-11-16T09:30`.
Options of commands and the filter of the dashboard read them alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast, get_args

from .errors import InputError
from .item import OPEN, TERMINAL, DeathReason, Filter, Status
from .timing import instant, iso, seconds

STATUSES: Final[tuple[Status, ...]] = get_args(Status)
REASONS: Final[tuple[DeathReason, ...]] = get_args(DeathReason)
OPEN_STATUSES: Final[tuple[Status, ...]] = tuple(each for each in STATUSES if each in OPEN)
STATUS_GROUPS: Final[dict[str, tuple[Status, ...]]] = {
    "open": OPEN_STATUSES,
    "ended": tuple(each for each in STATUSES if each in TERMINAL),
}
"""Words that stand for several statuses."""


def read_statuses(words: Iterable[str], field: str) -> tuple[Status, ...]:
    """The statuses that these words name."""
    found: list[Status] = []
    for word in words:
        _check_word(word, (*STATUSES, *STATUS_GROUPS), field)
        found += STATUS_GROUPS.get(word, (cast("Status", word),))
    return tuple(dict.fromkeys(found))


def read_reason(word: str | None, field: str) -> DeathReason | None:
    """The reason of deaths that a word names."""
    if word is not None:
        _check_word(word, REASONS, field)
    return cast("DeathReason | None", word)


def _check_word(value: str, allowed: tuple[Any, ...], field: str) -> None:
    if value not in allowed:
        raise InputError.of(field, value, f"does not exist: it is one of {', '.join(allowed)}")


_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|min|[smhdw]))+|\d+(?:\.\d+)?")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|min|[smhdw])")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LONGEST_SECONDS: Final = 9
"""Digits. A longer number without a unit is epoch seconds."""


def read_duration(text: str, field: str) -> float:
    """A duration as people write it: 90, 45s, 10m, 1h30m, 2d, 1w. Seconds if it has no unit."""
    text = text.strip().lower()
    if not _DURATION.fullmatch(text):
        raise InputError.of(field, text, "is no duration: write 45s, 10m, 1h30m, 2d or 1w")
    parts = _PART.findall(text)
    return seconds(sum(float(count) * _UNITS[unit] for count, unit in parts) if parts else float(text), field)


def read_time(text: str | None, now: float, field: str) -> float | None:
    """An instant as people write it: a duration before `now`, ISO 8601 (in UTC unless it says otherwise), or
    epoch seconds."""
    if text is None:
        return None
    return now - read_duration(text, field) if is_duration(text) else _read_instant(text, field)


def read_start(text: str, now: float, field: str) -> float:
    """The same for an instant to come: a duration counts from `now`."""
    return now + read_duration(text, field) if is_duration(text) else _read_instant(text, field)


def is_duration(text: str) -> bool:
    """Whether a text says how long, not when."""
    text = text.strip().lower()
    return _DURATION.fullmatch(text) is not None and not _is_epoch(text)


def _is_epoch(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal() and len(text.partition(".")[0]) > _LONGEST_SECONDS


def _read_instant(text: str, field: str) -> float:
    text = text.strip()
    if _is_epoch(text):
        return instant(float(text), field)
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise InputError.of(
            field, text, "is no time: write 2h (two hours ago), 2026-11-16 or 2026-11-16T09:30:00Z"
        ) from None
    return instant(read if read.utcoffset() is not None else read.replace(tzinfo=UTC), field)


def filter_text(where: Filter, everything: bool = False) -> str:
    """A filter as text: `status:dead type:mail.send`."""
    given = {
        "status": ",".join(where.status),
        "type": where.type,
        "queue": where.queue,
        "tenant": where.tenant,
        "workflow": where.workflow,
        "group": where.group_id,
        "key": where.key,
        "reason": where.reason,
        "mark": where.mark,
        "since": iso(where.since),
        "until": iso(where.until),
    }
    return words_text(given) or ("everything" if everything else "")


def words_text(given: Mapping[str, object]) -> str:
    """Words of a filter as text. Those without a value are left out."""
    return " ".join(f"{name}:{_quoted(str(value))}" for name, value in given.items() if value)


def _quoted(text: str) -> str:
    """As the filter of the dashboard reads it."""
    if not any(each.isspace() or each in '"\\' for each in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
