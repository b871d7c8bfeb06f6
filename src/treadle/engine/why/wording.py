"""Wording: short words for times, workers, items, lists and commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Final

from treadle.close_names import close_names
from treadle.item import DEFAULT_TENANT, GROUP_MARK, WorkerState
from treadle.timing import to_datetime
from treadle.worker_info import WorkerInfo

MOST_TEXT: Final = 160
"""Characters of an error, or of another text from elsewhere."""
MOST_LISTED: Final = 3
MINUTE, HOUR, DAY = 60, 3600, 86400


def span(seconds: float) -> str:
    """A duration: `0.4 s`, `40 s`, `3 min`, `2 h 5 min`, `3 d 4 h`."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        tenths = f"{seconds:.1f}"
        return f"{tenths.removesuffix('.0')} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < HOUR:
        return f"{round(seconds / MINUTE)} min"
    if seconds < DAY:
        return _two(round(seconds / MINUTE), MINUTE, "h", "min")
    return _two(round(seconds / HOUR), 24, "d", "h")


def _two(small: int, each: int, large_unit: str, small_unit: str) -> str:
    large, rest = divmod(small, each)
    return f"{large} {large_unit} {rest} {small_unit}" if rest else f"{large} {large_unit}"


def until_text(now: float, at: float) -> str:
    """When something comes: `in 40 s`, `in 5 h (at 03:00 UTC)`, `in 2 d (2026-11-18 03:00 UTC)`."""
    left = at - now
    if left <= 0:
        return "now"
    return f"in {span(left)}{_clock_time(now, at) if left >= HOUR else ''}"


def since_text(now: float, at: float) -> str:
    """When something was: `40 s ago`, `5 h ago (at 03:00 UTC)`."""
    gone = now - at
    if gone < 0.05:
        return "just now"
    return f"{span(gone)} ago{_clock_time(now, at) if gone >= HOUR else ''}"


def _clock_time(now: float, at: float) -> str:
    try:
        moment, today = to_datetime(at), to_datetime(now)
    except (ValueError, OverflowError, OSError):
        return ""
    if moment.date() == today.date():
        return f" (at {moment:%H:%M} UTC)"
    return f" ({moment:%Y-%m-%d %H:%M} UTC)"


def plain(text: str, most: int = MOST_TEXT) -> str:
    """A text from elsewhere on one line: without control characters, cut if it is long."""
    shown = "".join(
        each if each.isprintable() else " " if each.isspace() else repr(each)[1:-1]
        for each in text[: 4 * most]
    )
    shown = " ".join(shown.split())
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def counted(number: int, noun: str) -> str:
    """`1 worker`, `4 workers`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(names: Iterable[str], total: int | None = None, most: int = MOST_LISTED) -> str:
    """`a, b, c and 4 more`. total: how many there are, if not all are given."""
    given = list(names)
    more = (len(given) if total is None else total) - min(len(given), most)
    shown = ", ".join(given[:most])
    return f"{shown} and {more:,} more" if more > 0 else shown


def item_name(id: str, type: str = "", *words: str) -> str:
    """`a1 (mail.send, running)`. A whole group: `group a1`."""
    name = f"group {plain(id[1:])}" if id.startswith(GROUP_MARK) else plain(id)
    inside = ", ".join(each for each in (plain(type), *words) if each)
    return f"{name} ({inside})" if inside else name


def info_of(worker: WorkerState) -> WorkerInfo | None:
    """What a worker says about itself. None: it says nothing."""
    return worker.info if isinstance(worker.info, WorkerInfo) else None


def worker_name(worker: WorkerState | str | None, workers: Sequence[WorkerState] = ()) -> str:
    """`w1 (host h, pid 7)`. By its id: found among `workers`."""
    if worker is None:
        return "a worker"
    if isinstance(worker, str):
        found = next((each for each in workers if each.id == worker), None)
        return plain(worker) if found is None else worker_name(found)
    info = info_of(worker)
    if info is None or not (info.host or info.pid):
        return plain(worker.id)
    return f"{plain(worker.id)} (host {plain(info.host)}, pid {info.pid})"


def last_seen(worker: WorkerState) -> float:
    """When its last heartbeat came, by the store's clock. If that is not known: when its lease lapsed."""
    info = info_of(worker)
    return worker.until - (0.0 if info is None else info.lease)


def close_to(name: str, names: Iterable[str]) -> str | None:
    """The name that was perhaps meant."""
    return next(iter(close_names(name, names)), None)


def command(verb: str, *args: str, tenant: str | None = None) -> str:
    """A command line, as for a shell."""
    words = ["treadle", *verb.split()]
    named = [] if tenant is None else ["--tenant", shlex.quote(tenant)]
    quoted = [shlex.quote(arg) for arg in args]
    if any(arg.startswith("-") for arg in args):
        return " ".join([*words, *named, "--", *quoted])
    return " ".join([*words, *quoted, *named])


def tenant_option(tenant: str) -> str | None:
    """The tenant for a command about an item. None: the default tenant need not be named."""
    return None if tenant == DEFAULT_TENANT else tenant
