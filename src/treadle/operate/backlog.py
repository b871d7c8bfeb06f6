"""Backlog: how fast what is due in each queue grows or drains, from samples and statistics of the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from treadle.backend import Backend
from treadle.base.wording import approximate, duration
from treadle.item_facts import Overview, counts_by, total
from treadle.records import MINUTE, MOST_SAMPLED, BacklogSample, QueueBacklog
from treadle.store.rules.records import begin_of, kept_step

WINDOW: Final = 5 * MINUTE
"""Seconds over which rates are counted, at most."""
STALE: Final = 2.5 * MINUTE
"""Age of the last sample in seconds, from which on nothing is known about rates."""
STEADY: Final = 0.5
"""Items a minute below which a queue neither grows nor drains."""


class RateWindow(NamedTuple):
    """Two samples of a queue, between which its rates are counted."""

    first: BacklogSample
    last: BacklogSample
    waited: bool
    """Whether items waited all the time, so that the rate is that of a fleet which was busy."""

    @property
    def minutes(self) -> float:
        return (self.last.at - self.first.at) / MINUTE


async def read_backlogs(backend: Backend, overview: Overview, *, rates: bool = True) -> list[QueueBacklog]:
    """Each queue that has ready or running items, or had some in the last minutes, by name.

    rates: False: without them, as for one tenant: they are not kept by tenant.
    """
    samples: Sequence[BacklogSample] = ()
    if rates and "recording" in backend.capabilities:
        samples = await backend.samples(begin_of(overview.now - WINDOW, MINUTE))
    due = [each for each in overview.counts if each.status in ("ready", "running")]
    counts, known = counts_by(due, "queue"), _by_time(samples, overview.now)
    windows = {
        queue: window
        for queue in {*counts, *(each.queue for each in samples if each.queue)}
        if (window := _window(known, queue)) is not None
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


def _window(known: dict[float, dict[str, BacklogSample]], queue: str) -> RateWindow | None:
    """The minutes in which items of the queue have waited without a break until the last sample. If they have
    not: all minutes. None: there are less than two samples."""
    found: list[BacklogSample] = []
    for at, samples in sorted(known.items(), reverse=True):
        if queue not in samples and len(samples) > MOST_SAMPLED:
            break  # it is not known how much it had
        found.insert(0, samples.get(queue, BacklogSample(at=at, queue=queue)))
    waiting = next((index for index, each in enumerate(reversed(found)) if not each.ready), len(found))
    if waiting > 1:
        return RateWindow(found[-waiting], found[-1], True)
    return RateWindow(found[0], found[-1], False) if len(found) > 1 else None


async def _ends(backend: Backend, windows: dict[str, RateWindow]) -> dict[str, int]:
    """How many items of each queue ended in its window."""
    found: dict[str, int] = {}
    for since, until in {(each.first.at, each.last.at) for each in windows.values()}:
        for stat in await backend.stats(since, until=until, by="queue"):
            window = windows.get(stat.queue)
            if window is not None and window.first.at == since:
                found[stat.queue] = stat.succeeded + stat.dead + stat.cancelled
    return found


def _with_rates(backlog: QueueBacklog, window: RateWindow, ends: int) -> QueueBacklog:
    growth = (window.last.depth - window.first.depth) / window.minutes
    ended = ends / window.minutes
    return replace(
        backlog,
        growth=growth,
        ends=ended,
        arrivals=max(0.0, growth + ended),
        over=window.minutes * MINUTE,
        waited=window.waited,
        rough=window.first.estimated or window.last.estimated,
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
