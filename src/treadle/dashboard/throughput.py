"""Throughput: what workers counted: in a span of time, and as rates of each type or queue."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from treadle.base.timing import iso
from treadle.metrics.names import SECONDS
from treadle.metrics.series import Histogram
from treadle.records import Stat

from .access import NotShown
from .charts import Bar
from .visit import Visit

SPANS: Final = {"1h": (3600, 60), "24h": (86_400, 900), "30d": (30 * 86_400, 6 * 3600)}
"""The time that is looked back at, and one step of the chart, in seconds."""


class RunTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long items waited for their attempts, and how long these ran. None: there were none."""

    wait_p50: float | None
    wait_p95: float | None
    wait_max: float | None
    """No value is larger. Infinite: the last bucket has no end."""
    run_p50: float | None
    run_p95: float | None
    run_max: float | None


class Throughput(RunTimes, frozen=True, kw_only=True):
    """What workers counted in a span of time."""

    span: str
    since: float
    until: float
    step: int
    points: list[Bar]
    started: int
    succeeded: int
    failed: int
    """Attempts."""
    retried: int
    """Failed attempts after which the item waits for another one."""
    dead: int
    """Items, also those that died without an attempt."""
    lost: int
    """Attempts whose workers died or stopped answering: `run_max` and the others leave them out."""


class Rate(RunTimes, frozen=True, kw_only=True):
    """What workers counted for one type or queue."""

    started: float
    """A minute."""
    ended: float
    """Items that ended, a minute: success, dead or cancelled."""
    attempts: int
    """Attempts that ended, in all."""
    failed: int
    """Attempts of these that failed."""
    lost: int
    """Attempts whose workers died or stopped answering: as in `Throughput`."""
    over: float
    """Seconds in which they were counted: the whole span, or less if counting began later."""


def span_of(visit: Visit) -> str:
    """The time that the visitor wants to look back at."""
    span = visit.query("span", "1h") or "1h"
    if span not in SPANS:
        raise NotShown(f"there is no span {span!r}: there are {', '.join(SPANS)}")
    return span


async def read_throughput(
    visit: Visit, span: str, *, type: str | None = None, queue: str | None = None
) -> Throughput | None:
    """What workers counted: in all, or for one type or queue."""
    if not visit.sees_fleet or "recording" not in visit.client.backend.capabilities:
        return None
    seconds, step = SPANS[span]
    until = (visit.site.now() // step + 1) * step
    since = until - seconds
    stats = await visit.in_time(visit.client.statistics(since, until, step, type=type, queue=queue))
    return None if stats is None else throughput_of(span, since, until, step, stats)


def throughput_of(span: str, since: float, until: float, step: int, stats: Sequence[Stat]) -> Throughput:
    return Throughput(
        span=span,
        since=since,
        until=until,
        step=step,
        points=[Bar(each.at, (each.succeeded, each.retried, each.dead)) for each in stats],
        started=sum(each.started for each in stats),
        succeeded=sum(each.succeeded for each in stats),
        failed=sum(each.failed for each in stats),
        retried=sum(each.retried for each in stats),
        dead=sum(each.dead for each in stats),
        lost=sum(each.lost for each in stats),
        **run_times(stats),
    )


async def read_rates(
    visit: Visit, by: Literal["type", "queue"], seconds: int, step: int
) -> dict[str, Rate] | None:
    """The rates of all types, or of all queues, that something was counted for. None: nothing is counted for
    single tenants, or the store keeps nothing, or it was not in time."""
    if not visit.sees_fleet or "recording" not in visit.client.backend.capabilities:
        return None
    now = visit.site.now()
    since = (now - seconds) // step * step
    stats, first = await asyncio.gather(
        visit.in_time(visit.client.statistics(since, step=step, by=by)),
        visit.in_time(visit.client.statistics(since, step=step)),
    )
    if stats is None:
        return None
    over = max(60.0, now - max([since, *[each.at for each in (first or ())[:1]]]))
    return {each.type if by == "type" else each.queue: rate_of(each, over) for each in stats}


def rate_of(stat: Stat, over: float) -> Rate:
    minutes = over / 60
    return Rate(
        over=over,
        started=stat.started / minutes,
        ended=(stat.succeeded + stat.dead + stat.cancelled) / minutes,
        attempts=stat.succeeded + stat.failed,
        failed=stat.failed,
        lost=stat.lost,
        **run_times((stat,)),
    )


def run_times(stats: Sequence[Stat]) -> dict[str, float | None]:
    """The fields of `RunTimes`."""
    wait, run = _added(stats, "wait"), _added(stats, "run")
    named = (("wait_p50", wait, 0.5), ("wait_p95", wait, 0.95), ("run_p50", run, 0.5), ("run_p95", run, 0.95))
    times = {name: each.quantile(q) if each.count else None for name, each, q in named}
    return {**times, "wait_max": _longest(wait), "run_max": _longest(run)}


def _longest(histogram: Histogram) -> float | None:
    """The upper bound of the highest bucket that has values."""
    found = [bound for bound, count in zip((*SECONDS, math.inf), histogram.counts, strict=True) if count]
    return max(found, default=None)


def _added(stats: Sequence[Stat], name: str) -> Histogram:
    """One histogram for all: `wait` or `run`."""
    whole = Histogram(SECONDS)
    for each in stats:
        counts: tuple[int, ...] = getattr(each, name)
        for place, count in enumerate(counts[: len(whole.counts)]):  # zeros at the end are left out
            whole.counts[place] += count
    return whole


def throughput_json(throughput: Throughput | None) -> dict[str, Any] | None:
    """What workers counted, in all and in each step."""
    if throughput is None:
        return None
    fields = msgspec.structs.asdict(throughput)
    points: list[dict[str, Any]] = []
    for each in throughput.points:
        succeeded, retried, dead = each.parts
        points.append({"at": iso(each.at), "succeeded": succeeded, "retried": retried, "dead": dead})
    return {
        **fields,
        "since": iso(throughput.since),
        "until": iso(throughput.until),
        "points": points,
    }
