"""Filter options: which items a caller asks for, checked, as the Filter for the store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast, get_args

from typing_extensions import TypedDict, Unpack

from treadle.base.ids import check_id, check_name
from treadle.base.timing import Instant, instant, iso, seconds
from treadle.base.wording import did_you_mean
from treadle.bulk_action import OPERATORS
from treadle.errors import InputError
from treadle.item import OPEN, TERMINAL, DeathReason, Filter, ItemState, Status


class FilterOptions(TypedDict, total=False):
    """Which items: all that is given must hold."""

    status: Status | Sequence[Status] | None
    type: str | None
    queue: str | None
    tenant: str | None
    workflow: str | None
    since: Instant | None
    until: Instant | None
    group_id: str | None
    key: str | None
    reason: DeathReason | None
    mark: str | None


def item_filter(own_tenant: str | None, /, **where: Unpack[FilterOptions]) -> Filter:
    """The filter for these options. own_tenant: of the client, which it cannot leave.

    `InputError` for a status or a reason that does not exist, for texts that are no names, and for options
    that do not exist.
    """
    for name in where:
        if name not in FilterOptions.__annotations__:
            known = FilterOptions.__annotations__
            raise InputError(
                f"there is no filter {name!r}: {did_you_mean(name, known, ', '.join(known))}",
                parameters=(name,),
            )
    status, group_id, mark = where.get("status"), where.get("group_id"), where.get("mark")
    since, until, reason = where.get("since"), where.get("until"), where.get("reason")
    return Filter(
        tenant=_name(where.get("tenant"), "tenant") if own_tenant is None else own_tenant,
        status=_words((status,) if isinstance(status, str) else status or (), Status, "status"),
        type=_name(where.get("type"), "type"),
        queue=_name(where.get("queue"), "queue"),
        workflow=_name(where.get("workflow"), "workflow"),
        since=None if since is None else instant(since, field="since"),
        until=None if until is None else instant(until, field="until"),
        group_id=None if group_id is None else check_id(group_id, field="group_id"),
        key=_name(where.get("key"), "key"),
        reason=None if reason is None else _words((reason,), DeathReason, "reason")[0],
        mark=_name(mark, "mark") if mark else mark,
    )


def check_tenant(value: object) -> str:
    """Return `value`, or raise InputError if no client can be bound to a tenant of this name."""
    if value == OPERATORS:
        raise InputError.of(
            "tenant", value, "is reserved for bulk actions of all tenants: choose another name"
        )
    return check_name(value, "tenant")


def _name(value: str | None, field: str) -> str | None:
    return None if value is None else check_name(value, field)


def _words(given: Iterable[Any], words: Any, field: str) -> tuple[Any, ...]:
    """Return `given`, or raise InputError if one is not among the allowed words."""
    allowed, wanted = get_args(words), tuple(given)
    for each in wanted:
        if each not in allowed:
            raise InputError.of(field, each, f"does not exist: it is one of {', '.join(allowed)}")
    return wanted


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


def attempt_words(item: ItemState) -> str:
    """How many attempts have begun, and how many it may have."""
    if item.attempt == 0:
        return ""
    # Lost attempts do not count among those that may fail: with one of them there may be more.
    ends_well = item.status in ("running", "success", "cancelled", "dead") and item.reason != "lease_lost"
    counts = item.attempts is not None and item.attempt <= min(item.attempts, item.failures + ends_well)
    return f"{item.attempt}/{item.attempts}" if counts else str(item.attempt)


def matters_at(item: ItemState) -> float | None:
    """The instant that matters in its status: when it ended, began, is due, became ready or was queued."""
    match item.status:
        case "success" | "dead" | "cancelled":
            return item.ended_at
        case "running":
            return item.started_at or item.claimed_at
        case "scheduled":
            return item.due_at
        case "ready":
            return max(item.due_at, item.queued_at)
        case "blocked":
            return item.queued_at
