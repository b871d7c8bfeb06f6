"""Template filters: how instants, durations, numbers and statuses look on a page."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from jinja2 import Environment
from markupsafe import Markup, escape

from treadle.base.wording import approximate, capped, counted_names, duration, plain, plural
from treadle.item import NEVER, ItemState
from treadle.metrics.names import SECONDS
from treadle.operate.backlog import backlog_text
from treadle.operate.bulk_states import requeue_text
from treadle.operate.filters import filter_word
from treadle.why import Reason, ReasonKind

from . import charts, timeline
from .addresses import chosen_id, segment, short_id
from .backlog import DEPTHS, WAITS
from .steps import NEVER_WORDS
from .visit import Visit

SERIES: Final = (("succeeded", "success"), ("retried", "retry"), ("dead", "dead"))
"""Parts of the bars of throughput, and their classes."""
SHAPES: Final = {
    "blocked": "◇",
    "scheduled": "◷",
    "ready": "○",
    "running": "●",
    "success": "✓",
    "succeeded": "✓",
    "dead": "✕",
    "cancelled": "–",
    "active": "●",
    "open": "●",
    "ended": "–",
    "paused": "‖",
    "failing": "✕",
    "overdue": "✕",
    "orphaned": "✕",
    "missing": "?",
    "alive": "●",
    "draining": "◷",
    "pressed": "‖",
    "manual": "○",
    "silent": "✕",
    "stopping": "◷",
    "waiting": "○",
    "canary": "◷",
    "held_back": "‖",
    "done": "✓",
    "nothing_changed": "–",
    "stopped": "–",
    "failed": "✕",
    "skipped": "–",
}
"""Statuses differ by word and shape. The colour only repeats it."""


def when(at: float | None, *, now: Callable[[], float]) -> Markup | str:
    """An instant: how long ago, by the store's clock, and the instant itself when one points at it."""
    if at is None:
        return "–"
    if at >= NEVER:
        return NEVER_WORDS
    try:
        moment = datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return "–"
    seconds = now() - at
    text = "now" if abs(seconds) < 1 else _relative(seconds)
    # A page has hundreds: a format of Markup takes five times as long. The texts are ours.
    iso = moment.isoformat(timespec="milliseconds")
    exact = f"{iso[:10]} {iso[11:19]} UTC"
    return Markup(f'<time datetime="{iso[:23]}Z" title="{exact}">{text}</time>')


def _relative(seconds: float) -> str:
    return f"{duration(seconds, brief=True)} ago" if seconds > 0 else f"in {duration(-seconds, brief=True)}"


def exact(at: float | None) -> Markup | str:
    """An instant in full."""
    if at is None:
        return "–"
    if at >= NEVER:
        return NEVER_WORDS
    moment = datetime.fromtimestamp(at, UTC)
    iso = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    text = moment.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time data-form="exact" datetime="{}" title="{} UTC">{}</time>').format(
        iso, text, text + " UTC"
    )


def age(at: float | None, *, now: Callable[[], float]) -> str:
    """How long ago an instant was: 3 min."""
    return "–" if at is None else span(max(0.0, now() - at))


def utc(at: float | None) -> str:
    """An instant in full, as text."""
    try:
        return "–" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "–"


def span(seconds: float | None) -> str:
    """A duration: 1.2 s, 340 ms, 5 min."""
    if seconds is None:
        return "–"
    if seconds < 0.0995:
        return f"{seconds * 1000:.1f} ms" if seconds < 0.00995 else f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds, brief=True)


def estimate(seconds: float | None, *, brief: bool = False) -> str:
    """A quantile of durations: it is estimated from counts in buckets, of which the last has no end."""
    if seconds is None:
        return "–"
    if seconds >= SECONDS[-1]:
        return f"{'>' if brief else 'over'} {span(SECONDS[-1])}"
    return span(seconds) if brief else f"about {span(seconds)}"


def longest(seconds: float | None) -> str:
    """The longest of durations, as far as the buckets tell: ≤ 30 s, or over the last bound."""
    if seconds is None:
        return "–"
    return f"≤ {span(seconds)}" if seconds <= SECONDS[-1] else f"> {span(SECONDS[-1])}"


def number(count: float | None) -> str:
    return "–" if count is None else f"{count:,.0f}"


def amount(value: float) -> str:
    """A number that need not be whole: 3, 2.5, 1,000."""
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def share(part: float, whole: float) -> str:
    """A share in percent."""
    return "–" if not whole else f"{100 * part / whole:.1f} %"


def status(word: str) -> Markup:
    """A status by shape, word and colour."""
    shape = SHAPES.get(word, "·")
    name = word if word in SHAPES else "other"
    said = f'<span aria-hidden="true">{shape}</span> {escape(word.replace("_", " "))}'
    return Markup(f'<span class="status {name}">{said}</span>')


def shown_name(text: str) -> Markup:
    """A name. A long one is cut: the title has all of it."""
    said = escape(plain(text))
    return Markup(f'<span class="cut" title="{said}">{said}</span>') if len(text) > LONG_NAME else said


def shape(word: str) -> str:
    """The shape of a status alone, for pictures."""
    return SHAPES.get(word, "·")


def as_json(value: object) -> str:
    """A value as JSON, for people. What JSON cannot say is shown as text."""
    try:
        return msgspec.json.format(msgspec.json.encode(value, enc_hook=repr), indent=2).decode()
    except (TypeError, ValueError, RecursionError, OverflowError):
        return plain(repr(value))


def lines(text: str) -> Markup:
    """Several lines of foreign text, with control characters made visible."""
    return escape("\n".join(plain(line) for line in text.split("\n")))


OF_ITEMS: Final[frozenset[ReasonKind]] = frozenset(
    ("dependency", "doomed", "group_failed", "open", "lane_held", "isolated", "ended")
)
OF_LIMITS: Final[frozenset[ReasonKind]] = frozenset(("concurrency", "rate"))
OF_TYPES: Final[frozenset[ReasonKind]] = frozenset(("no_worker_for_type",))
OF_QUEUES: Final[frozenset[ReasonKind]] = frozenset(("no_worker_for_queue", "paused", "turn"))
OF_WORKERS: Final[frozenset[ReasonKind]] = frozenset(
    ("worker_full", "worker_blocked", "pressed", "declined", "undecodable", "lease_lapsed", "running")
)
MOST_LINKS: Final = 5
LONG_NAME: Final = 40
"""Characters of a name that is shown whole."""


class ReasonLink(NamedTuple):
    text: str
    url: str


def reason_links(visit: Visit, reason: Reason, item: ItemState | None = None) -> list[ReasonLink]:
    """The pages of what a reason speaks of. item: the item of which it is a reason."""
    kind, refs = reason.kind, reason.refs
    tenant = None if item is None else item.tenant
    if kind in OF_LIMITS:
        limits = [ReasonLink("limits", visit.url("/limits"))]
        return limits + [_item(visit, each, tenant) for each in refs[1:MOST_LINKS]]
    if kind in OF_WORKERS and refs:
        return [ReasonLink("workers", visit.url("/workers"))] if visit.sees_fleet else []
    if kind in OF_TYPES:
        return [ReasonLink(each, visit.url(f"/types/{segment(each)}")) for each in refs[:MOST_LINKS]]
    if kind in OF_QUEUES:
        pages = [(each, f"/queues/{segment(each)}") for each in refs[:MOST_LINKS]]
        return [ReasonLink(each, visit.url(path)) for each, path in pages if path != visit.path]
    if kind not in OF_ITEMS or (kind == "ended" and item is not None and item.reason == "lease_lost"):
        return []  # those are workers that are gone
    known = ("", reason.about, "" if item is None else item.type)
    return [_item(visit, each, tenant) for each in refs[:MOST_LINKS] if each not in known]


def _item(visit: Visit, id: str, tenant: str | None) -> ReasonLink:
    return ReasonLink(id, visit.item_url(id, tenant))


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "exact": exact,
    "utc": utc,
    "span": span,
    "estimate": estimate,
    "longest": longest,
    "number": number,
    "amount": amount,
    "status": status,
    "lines": lines,
    "json": as_json,
    "plain": plain,
    "segment": segment,
    "short_id": short_id,
    "approximate": approximate,
    "capped": capped,
    "counted_names": counted_names,
    "plural": plural,
    "duration": duration,
    "backlog": backlog_text,
    "requeue_text": requeue_text,
}
GLOBALS: Final[dict[str, Any]] = {
    "share": share,
    "shape": shape,
    "shown_name": shown_name,
    "chart": charts.bars,
    "share_bar": charts.share_bar,
    "series": SERIES,
    "depth_series": DEPTHS,
    "wait_series": WAITS,
    "nice_duration": charts.nice_duration,
    "say_duration": duration,
    "never": NEVER,
    "timeline_svg": timeline.timeline_svg,
    "timeline_ticks": timeline.timeline_ticks,
    "filter_word": filter_word,
    "chosen_id": chosen_id,
    "reason_links": reason_links,
}


def add_to(templates: Environment, now: Callable[[], float]) -> None:
    """Make them known to templates. now: the store's clock."""
    known_filters: dict[str, Any] = templates.filters
    known_globals: dict[str, Any] = templates.globals
    known_filters.update(FILTERS, when=partial(when, now=now), age=partial(age, now=now))
    known_globals.update(GLOBALS)
