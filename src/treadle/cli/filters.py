"""Filters: the options of commands that select items, and how their texts are read.

A command takes all of them by one parameter: `async def command(shell, filters: ItemFilters)`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, cast, get_args

import typer

from treadle.errors import InputError
from treadle.ids import check_id, check_name
from treadle.item import OPEN, TERMINAL, DeathReason, Filter, Status
from treadle.timing import instant, seconds

from .completion import complete_queue, complete_type, complete_words

STATUSES: Final[tuple[Status, ...]] = get_args(Status)
REASONS: Final[tuple[DeathReason, ...]] = get_args(DeathReason)
OPEN_STATUSES: Final[tuple[Status, ...]] = tuple(each for each in STATUSES if each in OPEN)
STATUS_GROUPS: Final[dict[str, tuple[Status, ...]]] = {
    "open": OPEN_STATUSES,
    "ended": tuple(each for each in STATUSES if each in TERMINAL),
}
"""Words that stand for several statuses."""

StatusOption = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        autocompletion=complete_words(*STATUSES, *STATUS_GROUPS),
        help=f"only items in these statuses: {', '.join(STATUSES)}; open and ended stand for several. "
        "Separate by commas, or repeat",
    ),
]
TypeOption = Annotated[
    str | None,
    typer.Option("--type", help="only items of this work type", autocompletion=complete_type),
]
QueueOption = Annotated[
    str | None, typer.Option("--queue", help="only items of this queue", autocompletion=complete_queue)
]
WorkflowOption = Annotated[str | None, typer.Option("--workflow", help="only items of this workflow")]
GroupOption = Annotated[str | None, typer.Option("--group", metavar="ID", help="only items of this group")]
KeyOption = Annotated[str | None, typer.Option("--key", help="only items with this key")]
ReasonOption = Annotated[
    str | None,
    typer.Option(
        "--reason",
        help=f"only items that died of this: {', '.join(REASONS)}",
        autocompletion=complete_words(*REASONS),
    ),
]
MarkOption = Annotated[
    str | None,
    typer.Option(
        "--mark", help="only items that died alike: a mark, as `treadle dead` shows it, or how one begins"
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="queued then or later: 2h (ago), or 2026-11-16T09:30 (UTC)"),
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="queued before then")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, help="the most items")]
RevealOption = Annotated[
    bool, typer.Option("--reveal", help="show passwords, tokens and other secrets, not ***")
]
CursorOption = Annotated[str | None, typer.Option("--cursor", help="go on where an earlier call ended")]

# When and where items run, for `run` and `update`.
DelayOption = Annotated[
    str | None, typer.Option("--delay", metavar="DURATION", help="start at the earliest so long from now")
]
RunAtOption = Annotated[
    str | None, typer.Option("--run-at", metavar="TIME", help="start at the earliest then")
]
PriorityOption = Annotated[int | None, typer.Option("--priority", help="a higher number goes first")]


@dataclass(frozen=True)
class ItemFilters:
    """The options that select items. All of those given must hold. Wrong ones are refused before anything is
    asked of the store."""

    status: StatusOption = None
    type: TypeOption = None
    queue: QueueOption = None
    workflow: WorkflowOption = None
    group: GroupOption = None
    key: KeyOption = None
    reason: ReasonOption = None
    mark: MarkOption = None
    since: SinceOption = None
    until: UntilOption = None

    def __post_init__(self) -> None:
        self.filter(tenant=None, now=0.0)

    @property
    def is_empty(self) -> bool:
        """Whether every item matches."""
        return self == ItemFilters()

    @property
    def needs_clock(self) -> bool:
        """Whether `filter` needs the time of the store's clock."""
        return any(text is not None and _is_duration(text) for text in (self.since, self.until))

    def filter(self, *, tenant: str | None, now: float, status: tuple[Status, ...] = ()) -> Filter:
        """As the store reads it. InputError names the option at fault.

        status: used if `--status` is not given.
        """
        return Filter(
            tenant=tenant,
            status=read_statuses(self.status) or status,
            type=_name(self.type, "--type"),
            queue=_name(self.queue, "--queue"),
            workflow=_name(self.workflow, "--workflow"),
            group_id=None if self.group is None else check_id(self.group, field="--group"),
            key=_name(self.key, "--key"),
            reason=cast("DeathReason | None", _word(self.reason, REASONS, "--reason")),
            mark=self.mark,
            since=read_time(self.since, now, "--since"),
            until=read_time(self.until, now, "--until"),
        )


def read_statuses(given: list[str] | None) -> tuple[Status, ...]:
    """The statuses that `--status` names."""
    found: list[Status] = []
    for word in names_in(given):
        _word(word, (*STATUSES, *STATUS_GROUPS), "--status")
        found += STATUS_GROUPS.get(word, (cast("Status", word),))
    return tuple(dict.fromkeys(found))


def names_in(given: list[str] | str | None) -> list[str]:
    """The names in an option that is repeated, or has commas."""
    texts = [given] if isinstance(given, str) else given or []
    return [name for text in texts for name in map(str.strip, text.split(",")) if name]


_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+|\d+(?:\.\d+)?")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
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
    return now - read_duration(text, field) if _is_duration(text) else _read_instant(text, field)


def read_start(text: str, now: float, field: str) -> float:
    """The same for an instant to come: a duration counts from `now`."""
    return now + read_duration(text, field) if _is_duration(text) else _read_instant(text, field)


def _is_duration(text: str) -> bool:
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


def _name(value: str | None, field: str) -> str | None:
    return None if value is None else check_name(value, field)


def _word(value: str | None, allowed: tuple[Any, ...], field: str) -> Any:
    if value is not None and value not in allowed:
        raise InputError.of(field, value, f"does not exist: it is one of {', '.join(allowed)}")
    return value
