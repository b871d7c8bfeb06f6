"""Backlog: how fast what is due in each queue grows or drains, from samples and statistics of the fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from treadle.backend import Backend
from treadle.base.wording import approximate, duration
from treadle.bulk_action import BULK_TYPE
from treadle.item_facts import Overview, counts_by, total
from treadle.records import MINUTE, MOST_SAMPLED, BacklogSample, QueueBacklog
from treadle.store.rules.records import begin_of, kept_step

from .bulk_states import newest_actions

WINDOW: Final = 5 * MINUTE
"""Seconds over which rates are counted, at most."""
STALE: Final = 2.5 * MINUTE
"""Age of the last sample in seconds, from which on nothing is known about rates."""
STEADY: Final = 0.5
"""Items a minute below which a queue neither grows nor drains."""
LOST_SHARE: Final = 0.1
"""Share of the ends by which fewer items may seem to arrive than none: workers count some seconds later."""


NEWEST: Final = 2 * MINUTE
"""Seconds over which rates are counted if they have changed since the minutes before."""
CHANGED_LEAST: Final = 10.0
"""Items a minute by which the growth of a queue has changed then, at least: less comes and goes by chance."""
CHANGED_SHARE: Final = 0.5
"""Share of the growth by which it has changed then, at least."""
SAMPLED_WITHIN: Final = 5.0
"""Seconds after the begin of a minute in which its sample is taken: what changes then may be in it."""
MOVED_LEAST: Final = 5
"""Items that operators move in a minute, from which on they change its rates by more than rounding does."""
AUDITS_LOOKED_AT: Final = 100
"""Changes of operators that are looked at, the newest."""
MOVES: Final = frozenset(("requeue", "cancel", "complete", "trigger", "hold", "unhold", "update", "delete"))
"""Changes by which items become due, or are due no more, without an arrival or an end."""
ORDERS: Final = frozenset(("pause", "resume", "set_limit", "clear_limit"))
"""Changes after which a queue ends more items, or less, than before."""

Span: TypeAlias = tuple[float, float]
"""From when to when."""


class RateWindow(NamedTuple):
    """The minutes of a queue of which its rates are counted."""

    samples: tuple[BacklogSample, ...]
    """Those between them, the oldest first: two at least."""
    waited: bool
    """Whether items waited all the time, so that the rate is that of a fleet which was busy."""
    clean: tuple[Span, ...]
    """Parts of the window in which no operator moved items or gave orders. Empty: there are none, and it is
    not known what came."""

    @property
    def parts(self) -> tuple[Span, ...]:
        """The parts of which ends are counted."""
        return self.clean or ((self.samples[0].at, self.samples[-1].at),)

    @property
    def minutes(self) -> float:
        return sum(until - since for since, until in self.parts) / MINUTE

    @property
    def growth(self) -> float | None:
        """By how many items it grew in a minute."""
        depth = {each.at: each.depth for each in self.samples}
        return (
            sum(depth[until] - depth[since] for since, until in self.clean) / self.minutes
            if self.clean
            else None
        )

    def between(self, since: float, until: float) -> RateWindow:
        """The part of it in this time."""
        parts = ((max(since, begin), min(until, end)) for begin, end in self.clean)
        return self._replace(clean=tuple(part for part in parts if part[0] < part[1]))


class Changes(NamedTuple):
    """What operators have changed in the last minutes."""

    moves: tuple[Span, ...] = ()
    """When they moved items."""
    orders: tuple[tuple[float, str | None], ...] = ()
    """When they gave orders, and the queue. None: of all queues."""

    def clean(self, samples: Sequence[BacklogSample], queue: str) -> tuple[Span, ...]:
        """Parts between samples of a queue, in which nothing was moved, after the last order."""
        since = max((at for at, name in self.orders if name in (None, queue)), default=0.0)
        found: list[Span] = []
        for first, last in pairwise(samples):
            until = last.at + SAMPLED_WITHIN
            if since >= first.at or any(begin <= until and end >= first.at for begin, end in self.moves):
                continue
            if found and found[-1][1] == first.at:
                found[-1] = (found[-1][0], last.at)
            else:
                found.append((first.at, last.at))
        return tuple(found)


async def read_backlogs(backend: Backend, overview: Overview, *, rates: bool = True) -> list[QueueBacklog]:
    """Each queue that has ready or running items, or had some in the last minutes, by name.

    rates: False: without them, as for one tenant: they are not kept by tenant.
    """
    samples: Sequence[BacklogSample] = ()
    if rates and "recording" in backend.capabilities:
        samples = await backend.samples(begin_of(overview.now - WINDOW, MINUTE))
    due = [each for each in overview.counts if each.status in ("ready", "running")]
    counts, known = counts_by(due, "queue"), _by_time(samples, overview.now)
    changes = await _changes(backend, overview) if known else Changes()
    windows = {
        queue: window
        for queue in {*counts, *(each.queue for each in samples if each.queue)}
        if (window := _window(known, queue, changes)) is not None
    }
    ends = await _ends(backend, windows)
    ages = {each.queue: max(0.0, overview.now - each.oldest_ready) for each in overview.ages}
    found: list[QueueBacklog] = []
    for queue in sorted({*counts, *windows}):
        ready, about = total(each for each in counts.get(queue, ()) if each.status == "ready")
        running, also = total(each for each in counts.get(queue, ()) if each.status == "running")
        paused = [each for each in counts.get(queue, ()) if each.status == "ready" and overview.holds(each)]
        backlog = QueueBacklog(
            queue=queue,
            ready=ready,
            running=running,
            estimated=about or also,
            paused=total(paused)[0],
            oldest=ages.get(queue),
        )
        window = windows.get(queue)
        found.append(backlog if window is None else _with_rates(backlog, window, ends.get(queue, 0)))
    return found


def _by_time(samples: Sequence[BacklogSample], now: float) -> dict[float, dict[str, BacklogSample]]:
    """The samples of each minute. Empty if the last one is too old."""
    found: dict[float, dict[str, BacklogSample]] = {}
    for each in samples:
        found.setdefault(each.at, {})[each.queue] = each
    return found if found and now - max(found) <= STALE else {}


def _window(known: dict[float, dict[str, BacklogSample]], queue: str, changes: Changes) -> RateWindow | None:
    """The minutes in which items of the queue have waited without a break until the last sample. If they have
    not: all minutes. None: there are less than two samples."""
    found: list[BacklogSample] = []
    for at, samples in sorted(known.items(), reverse=True):
        if queue not in samples and len(samples) > MOST_SAMPLED:
            break  # it is not known how much it had
        found.insert(0, samples.get(queue, BacklogSample(at=at, queue=queue)))
    waiting = next((index for index, each in enumerate(reversed(found)) if not each.ready), len(found))
    if waiting > 1:
        found = found[-waiting:]
    elif len(found) < 2:
        return None
    window = RateWindow(tuple(found), waiting > 1, changes.clean(found, queue))
    split = max((each.at for each in found if each.at <= found[-1].at - NEWEST), default=0.0)
    before, after = window.between(0.0, split), window.between(split, found[-1].at)
    return after if _has_changed(before.growth, after.growth) else window


def _has_changed(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return False
    return abs(after - before) >= max(CHANGED_LEAST, CHANGED_SHARE * max(abs(before), abs(after)))


async def _changes(backend: Backend, overview: Overview) -> Changes:
    """What operators have changed in the last minutes, as far as they have said who they are: see `by`."""
    since = begin_of(overview.now - WINDOW, MINUTE)
    page = await backend.audits(limit=AUDITS_LOOKED_AT)
    recent = [each for each in page.entries if each.at >= since]
    moves, orders = list[Span](), list[tuple[float, str | None]]()
    moved = Counter[float]()
    for each in recent:
        if each.verb in MOVES:
            moved[begin_of(each.at, MINUTE)] += each.count
        elif each.verb in ORDERS:
            orders.append((each.at, None if each.about or each.tenant else next(iter(each.ids), None)))
    for each in recent:
        if each.verb in MOVES and moved[begin_of(each.at, MINUTE)] >= MOVED_LEAST:
            moves.append((each.at, each.at))
    if len(recent) == len(page.entries) and page.cursor is not None:
        moves.append((since, recent[-1].at))  # what was before is not read
    if any(each.type == BULK_TYPE for each in overview.counts) or any(
        each.verb.startswith("bulk ") for each in recent
    ):
        states = await newest_actions(backend)
        ended = (
            (each.started_at, overview.now if each.ended_at is None else each.ended_at)
            for each in states
            if each.matched  # otherwise it has moved nothing
        )
        moves += (span for span in ended if span[1] >= since)
    return Changes(tuple(moves), tuple(orders))


async def _ends(backend: Backend, windows: dict[str, RateWindow]) -> dict[str, int]:
    """How many items of each queue ended in its window."""
    found = Counter[str]()
    for span in {span for each in windows.values() for span in each.parts}:
        for stat in await backend.stats(span[0], until=span[1], by="queue"):
            window = windows.get(stat.queue)
            if window is not None and span in window.parts:
                found[stat.queue] += stat.succeeded + stat.dead + stat.cancelled
    return found


def _with_rates(backlog: QueueBacklog, window: RateWindow, ends: int) -> QueueBacklog:
    growth, ended = window.growth, ends / window.minutes
    came = None if growth is None else growth + ended
    return replace(
        backlog,
        growth=growth,
        ends=ended,
        arrivals=None if came is None else max(0.0, came),
        over=window.minutes * MINUTE,
        waited=window.waited,
        # Less than none: they were moved by code that does not say who it is.
        rough=any(each.estimated for each in window.samples)
        or (came or 0.0) < -max(STEADY, LOST_SHARE * ended),
    )


def backlog_text(backlog: QueueBacklog, sign: str = "≈") -> str:
    """`drains in 14 min`, `grows by 120 a minute`, `neither grows nor drains`, `paused`. Empty: nothing
    waits, or it is not known."""
    growth, paused = backlog.growth, ""
    if not backlog.ready or growth is None or not backlog.waited:
        return ""
    if backlog.paused:
        paused = f"{approximate(backlog.paused, backlog.estimated, sign)} paused"
    if all_paused := backlog.paused >= backlog.ready:
        if growth < STEADY:
            return "paused"
        paused = ""
    if abs(growth) < STEADY:
        text = "neither grows nor drains"
    elif growth > 0:
        text = f"grows by {approximate(round(growth), backlog.rough, sign)} a minute"
    else:
        about = sign if backlog.rough or backlog.estimated else ""
        text = f"drains in {about}{duration(backlog.drains_in or 0.0, brief=True)}"
        paused = f"but for {paused}" if paused else ""
    short = "" if backlog.over >= WINDOW - MINUTE else f" (last {duration(backlog.over, brief=True)})"
    return ", ".join(filter(None, ("paused" if all_paused else "", text + short, paused)))


def rate(value: float, sign: str = "") -> str:
    """A number of items a minute: `1,200`, `3.4`, `< 0.1`."""
    if value >= 10:
        return approximate(round(value), bool(sign), sign)
    return f"{sign}{value:.1f}".removesuffix(".0") if value >= 0.05 or not value else "< 0.1"


async def read_history(
    backend: Backend, queue: str, since: float, until: float | None, step: int
) -> list[BacklogSample]:
    """A sample for each step in which the fleet has looked: averages, and the longest wait."""
    kept = kept_step(step)
    found = await backend.samples(since, until=until, step=kept, queues=("", queue))
    own = {each.at: each for each in found if each.queue == queue}
    steps: dict[float, list[BacklogSample]] = {}
    for each in found:
        if not each.queue:
            empty = BacklogSample(at=each.at, samples=each.samples)
            steps.setdefault(begin_of(each.at, step), []).append(own.get(each.at, empty))
    return [_mean(at, step, queue, parts) for at, parts in steps.items()]


def _mean(at: float, step: int, queue: str, parts: Sequence[BacklogSample]) -> BacklogSample:
    seen = sum(each.samples for each in parts)
    return BacklogSample(
        at=at,
        step=step,
        queue=queue,
        samples=seen,
        ready=sum(each.ready * each.samples for each in parts) / seen,
        running=sum(each.running * each.samples for each in parts) / seen,
        oldest=max(each.oldest for each in parts),
        estimated=any(each.estimated for each in parts),
    )
