"""Overview: problems first, then what waits, what ran, and how it went."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, get_args

import msgspec

from treadle.dashboard.access import NotShown
from treadle.dashboard.addresses import segment
from treadle.dashboard.charts import Bar
from treadle.dashboard.payloads import shown_text
from treadle.dashboard.view import View
from treadle.dashboard.visit import Visit
from treadle.fleet_json import counts_json
from treadle.item import Status
from treadle.item_facts import Overview
from treadle.metrics.histogram import Histogram
from treadle.metrics.names import SECONDS
from treadle.operator import core_of
from treadle.problems import Problem, ProblemKind, look_at
from treadle.records import Stat
from treadle.timing import iso

from .depths import Depth, depth_json, depths

SPANS: Final = {"1h": (3600, 60), "24h": (86_400, 900), "30d": (30 * 86_400, 6 * 3600)}
"""The time that is looked back at, and one step of the chart, in seconds."""
MOST_QUEUES: Final = 12


class StatusCount(msgspec.Struct, frozen=True):
    status: Status
    count: int
    more: bool
    """There are more than were counted."""


class QueueRow(msgspec.Struct, frozen=True):
    name: str
    depth: Depth
    ready: int
    more: bool
    running: int
    scheduled: int
    paused: bool
    oldest_ready: float | None


class Throughput(msgspec.Struct, frozen=True):
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
    wait_p50: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None


class ProblemRow(msgspec.Struct, frozen=True, kw_only=True):
    kind: ProblemKind
    text: str
    fix: str
    refs: tuple[str, ...]
    path: str | None
    """The page that shows what it is about. None: there is none for this visitor."""
    q: str = ""
    """The filter of that page."""


class OverviewPage(msgspec.Struct, frozen=True):
    problems: list[ProblemRow] | None
    """None: not in time."""
    unseen: str
    """What was not looked for. Empty: all was."""
    statuses: list[StatusCount] | None
    queues: list[QueueRow]
    more_queues: int
    workers: int
    throughput: Throughput | None
    """None: this visitor sees single tenants, for which nothing is counted; or the store keeps nothing."""


async def read(visit: Visit) -> OverviewPage:
    span = span_of(visit)
    await visit.client.connect()
    look, throughput = await asyncio.gather(
        visit.in_time(look_at(core_of(visit.client), visit.tenant, quick=True)),
        read_throughput(visit, span),
    )
    overview = None if look is None else look.overview
    queues = [] if overview is None else queue_rows(overview)
    return OverviewPage(
        problems=None if look is None else [problem_row(visit, each) for each in look.problems],
        unseen="" if look is None else look.unseen,
        statuses=None if overview is None else status_counts(overview),
        queues=queues[:MOST_QUEUES],
        more_queues=max(0, len(queues) - MOST_QUEUES),
        workers=0 if overview is None else len(overview.workers),
        throughput=throughput,
    )


def problem_row(visit: Visit, problem: Problem) -> ProblemRow:
    """A problem, and the page that shows what it is about."""
    kind, first = problem.kind, problem.refs[0] if problem.refs else ""
    path, q = None, ""
    if kind == "dead":
        path = "/dead"
    elif kind in ("paused", "late") and first:
        path = f"/queues/{segment(first)}"
    elif kind == "undecodable" and first:
        path = f"/types/{segment(first)}"
    elif kind in ("killing", "not_submitted") and first:
        path, q = "/items", first
    elif visit.sees_fleet:
        path = "/schedules" if kind == "schedule" else "/workers"
    text = shown_text(visit, problem)
    return ProblemRow(kind=kind, text=text, fix=problem.fix, refs=problem.refs, path=path, q=q)


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
    wait, run = added_histogram(stats, "wait"), added_histogram(stats, "run")
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
        wait_p50=quantile(wait, 0.5),
        wait_p95=quantile(wait, 0.95),
        run_p50=quantile(run, 0.5),
        run_p95=quantile(run, 0.95),
    )


def quantile(histogram: Histogram, q: float) -> float | None:
    """None: there are no values."""
    return histogram.quantile(q) if histogram.count else None


def added_histogram(stats: Sequence[Stat], name: str) -> Histogram:
    """One histogram for all: `wait` or `run`."""
    whole = Histogram(SECONDS)
    for each in stats:
        counts: tuple[int, ...] = getattr(each, name)
        for place, count in enumerate(counts[: len(whole.counts)]):  # zeros at the end are left out
            whole.counts[place] += count
    return whole


def status_counts(overview: Overview) -> list[StatusCount]:
    """How many items are in each status that is counted: the open ones and the dead."""
    counts: Counter[Status] = Counter()
    more: set[Status] = set()
    for each in overview.counts:
        counts[each.status] += each.count
        if each.capped:
            more.add(each.status)
    shown: list[Status] = [each for each in get_args(Status) if each not in ("success", "cancelled")]
    return [StatusCount(each, counts[each], each in more) for each in shown]


def queue_rows(overview: Overview) -> list[QueueRow]:
    """The queues, those in which items have waited for the longest time first."""
    counts: Counter[tuple[str, Status]] = Counter()
    more: set[tuple[str, Status]] = set()
    for each in overview.counts:
        counts[each.queue, each.status] += each.count
        if each.capped:
            more.add((each.queue, each.status))
    found = depths(overview.counts, lambda count: count.queue)
    ages = {age.queue: age.oldest_ready for age in overview.ages}
    paused = {queue for queue, _ in overview.paused}
    names = {queue for queue, _ in counts} | set(ages) | paused
    rows = [
        QueueRow(
            name=name,
            depth=found.get(name, Depth()),
            ready=counts[name, "ready"],
            more=(name, "ready") in more,
            running=counts[name, "running"],
            scheduled=counts[name, "scheduled"],
            paused=name in paused,
            oldest_ready=ages.get(name),
        )
        for name in names
    ]
    return sorted(rows, key=lambda row: (row.oldest_ready or float("inf"), row.name))


def to_json(visit: Visit, page: OverviewPage) -> dict[str, Any]:
    """What `treadle status --json` says first, and what workers counted."""
    counts: dict[Status, tuple[int, bool]] = {
        each.status: (each.count, each.more) for each in page.statuses or ()
    }
    return {
        "healthy": None if page.problems is None else not page.problems,
        "problems": None if page.problems is None else [problem_json(each) for each in page.problems],
        "statuses": None if page.statuses is None else counts_json(counts),
        "queues": [
            {
                "queue": row.name,
                **depth_json(row.depth),
                "oldest_ready_at": iso(row.oldest_ready),
                "paused": row.paused,
            }
            for row in page.queues
        ],
        "more_queues": page.more_queues,
        "worker_count": page.workers,
        "throughput": throughput_json(page.throughput),
    }


def problem_json(problem: ProblemRow) -> dict[str, Any]:
    """The names of `Problem`."""
    return {
        "kind": problem.kind,
        "text": problem.text,
        "fix": problem.fix,
        "refs": list(problem.refs),
    }


def throughput_json(throughput: Throughput | None) -> dict[str, Any] | None:
    """What workers counted, in all and in each step. Failed attempts include those that items died of."""
    if throughput is None:
        return None
    fields = msgspec.structs.asdict(throughput)
    points: list[dict[str, Any]] = []
    for each in throughput.points:
        succeeded, failed, dead = each.parts
        points.append({"at": iso(each.at), "succeeded": succeeded, "failed": failed + dead, "dead": dead})
    return {
        **fields,
        "since": iso(throughput.since),
        "until": iso(throughput.until),
        "points": points,
    }


VIEW = View("/", "overview.html", read, "overview", to_json=to_json)
