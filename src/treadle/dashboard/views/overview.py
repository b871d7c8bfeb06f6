"""Overview: problems first, then what waits, what ran, and how it went."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from treadle.dashboard.addresses import segment
from treadle.dashboard.payloads import shown_text
from treadle.dashboard.queue_states import (
    Depth,
    QueueState,
    depth_json,
    depths,
    queue_json,
    queue_states,
    shown_queues,
)
from treadle.dashboard.throughput import Throughput, read_throughput, span_of, throughput_json
from treadle.dashboard.views import View
from treadle.dashboard.visit import Visit
from treadle.operate.store_look import SuspendedCount, count_suspended
from treadle.problems import Problem, ProblemKind

from .limits import limit_rows

MOST_QUEUES: Final = 12
BEYOND_STATUS: Final = ("backlog", "paused_for", "worker_count", "rate")
"""Facts of a queue that its own page has."""


class ProblemRow(msgspec.Struct, frozen=True, kw_only=True):
    kind: ProblemKind
    text: str
    fix: str
    refs: tuple[str, ...]
    items: int
    path: str | None
    """The page that shows what it is about. None: there is none for this visitor."""
    q: str = ""
    """The filter of that page."""


class OverviewPage(msgspec.Struct, frozen=True):
    problems: list[ProblemRow] | None
    """None: not in time."""
    unseen: str
    """What was not looked for. Empty: all was."""
    depth: Depth | None
    """Of all queues."""
    queues: list[QueueState]
    more_queues: int
    workers: int
    full_limits: list[str]
    """Limits that are reached now, by the type or name that they belong to."""
    throughput: Throughput | None
    """None: this visitor sees single tenants, for which nothing is counted; or the store keeps nothing."""
    suspended: SuspendedCount = SuspendedCount()


async def read(visit: Visit) -> OverviewPage:
    span = span_of(visit)
    look, throughput, uses = await asyncio.gather(
        visit.in_time(visit.client.look(quick=True)),
        read_throughput(visit, span),
        visit.in_time(visit.client.limits()),
    )
    overview = None if look is None else look.overview
    states = [] if overview is None else shown_queues(queue_states(overview, None))
    depth = None if overview is None else depths(overview.counts, lambda count: "").get("", Depth())
    queues = [each for each in states if each.depth.counts or each.paused or each.paused_for]
    return OverviewPage(
        problems=None if look is None else [problem_row(visit, each) for each in look.problems],
        unseen="" if look is None else look.unseen,
        depth=depth,
        queues=queues[:MOST_QUEUES],
        more_queues=max(0, len(queues) - MOST_QUEUES),
        workers=0 if overview is None else len(overview.workers),
        full_limits=[row.owner or row.name for row in limit_rows(uses or (), ()) if row.reached],
        throughput=throughput,
        suspended=await _suspended(visit, depth),
    )


async def _suspended(visit: Visit, depth: Depth | None) -> SuspendedCount:
    if depth is None or not depth.of("scheduled"):
        return SuspendedCount()
    found = await visit.in_time(count_suspended(visit.client.backend, visit.tenant))
    return SuspendedCount(more=True) if found is None else found


def problem_row(visit: Visit, problem: Problem) -> ProblemRow:
    """A problem, and the page that shows what it is about."""
    kind, first = problem.kind, problem.refs[0] if problem.refs else ""
    path, q = None, ""
    if kind == "dead":
        path = "/dead"
    elif kind in ("paused", "late", "flood") and first:
        path = f"/queues/{segment(first)}"
    elif kind == "undecodable" and first:
        path = f"/types/{segment(first)}"
    elif kind in ("killing", "not_submitted") and first:
        path, q = "/items", first
    elif visit.sees_fleet:
        path = "/schedules" if kind == "schedule" else "/workers"
    text = shown_text(visit, problem)
    return ProblemRow(
        kind=kind, text=text, fix=problem.fix, refs=problem.refs, items=problem.items, path=path, q=q
    )


def to_json(visit: Visit, page: OverviewPage) -> dict[str, Any]:
    """What `treadle status --json` says first, and what workers counted."""
    return {
        "healthy": None if page.problems is None else not page.problems,
        "problems": None if page.problems is None else [problem_json(each) for each in page.problems],
        "statuses": None if page.depth is None else depth_json(page.depth),
        "suspended": page.suspended,
        "queues": [
            {name: value for name, value in queue_json(each).items() if name not in BEYOND_STATUS}
            for each in page.queues
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
        "items": problem.items,
    }


VIEW = View("/", "overview.html", read, "overview", to_json=to_json)
