"""Queues: what waits in each, since when, how fast it moves, and who serves it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from treadle.base.ids import check_name
from treadle.base.timing import iso
from treadle.dashboard.access import NotShown
from treadle.dashboard.backlog import BacklogHistory, backlogs_of, history_json, read_history
from treadle.dashboard.payloads import shown_reasons
from treadle.dashboard.queue_states import (
    Depth,
    QueueState,
    declared_queues,
    depth_json,
    depths,
    queue_json,
    queue_states,
    shown_queues,
    unused,
)
from treadle.dashboard.throughput import (
    Throughput,
    read_rates,
    read_throughput,
    span_of,
    throughput_json,
)
from treadle.dashboard.views import Pages, View, page_of, pages_json
from treadle.dashboard.visit import Visit
from treadle.item_facts import LimitUse, Overview
from treadle.operate.fleet_json import reason_json
from treadle.records import Line, QueueBacklog
from treadle.store.fleet import Fleet
from treadle.why import Reason, Why

from .limits import LimitRow, limit_rows, limits_of_types, rows_json
from .workers import WorkerRow, row_json, worker_row

PER_PAGE: Final = 200
MOST_WORKERS: Final = 50
MOST_LINES: Final = 50
RECENT: Final = 600
"""Seconds over which rates are counted."""


class QueuesPage(msgspec.Struct, frozen=True):
    queues: list[QueueState] | None
    """None: not in time."""
    pages: Pages
    rates: bool
    """Whether rates are known."""


class QueuePage(msgspec.Struct, frozen=True):
    name: str
    state: QueueState | None
    """None: not in time."""
    status: str
    reasons: list[Reason] | None
    throughput: Throughput | None
    history: BacklogHistory | None
    lines: list[Line] | None
    more_lines: bool
    types: dict[str, Depth]
    limits: list[LimitRow] | None
    workers: list[WorkerRow]
    more_workers: int
    """Visitors of single tenants are told only how many there are."""


async def read_all(visit: Visit) -> QueuesPage:
    overview, rates = await asyncio.gather(
        visit.in_time(visit.overview()), read_rates(visit, "queue", RECENT, 60)
    )
    if overview is None:
        return QueuesPage(None, Pages(1, 1, 0), False)
    backlogs = await backlogs_of(visit, overview)
    states = shown_queues(queue_states(overview, rates, declared_queues(visit), backlogs))
    if visit.access.tenants is not None:  # what others use is not told
        states = [state for state in states if _is_used(state)]
    shown, pages = page_of(visit, states, PER_PAGE)
    return QueuesPage(shown, pages, rates is not None)


async def read_one(visit: Visit) -> QueuePage:
    name, span = check_name(visit.part("queue"), field="queue"), span_of(visit)
    client = visit.client
    (overview, why, backlogs, uses), throughput, history, lines = await asyncio.gather(
        _read_with_overview(visit, name),
        read_throughput(visit, span, queue=name),
        read_history(visit, span, name),
        visit.in_time(client.lines(name, count=MOST_LINES + 1)),
    )
    overview = overview or Overview(now=0.0)
    states = queue_states(overview, None, declared_queues(visit), backlogs)
    known = {each.name: each for each in states}
    is_known = name in known or bool(throughput is not None and throughput.started)
    if visit.access.tenants is not None:  # what others use is not told
        is_known = name in known and _is_used(known[name])
    if overview.now and not is_known and not await visit.uses(queue=name):
        raise NotShown(f"there is no queue {name!r}")
    types, fleet = _types(overview, name), Fleet(overview.workers, overview.now)
    workers = [worker_row(fleet, worker) for worker in fleet.serving(queue=name)]
    most = MOST_WORKERS if visit.access.tenants is None else 0
    limits = None if uses is None else limits_of_types(uses, client.types, types)
    return QueuePage(
        name=name,
        state=known.get(name, unused(name, len(workers))) if overview.now else None,
        status="" if why is None or why.status == "unknown" else why.status,
        reasons=None if why is None else shown_reasons(visit, why),
        throughput=throughput,
        history=history,
        lines=None if lines is None else lines[:MOST_LINES],
        more_lines=lines is not None and len(lines) > MOST_LINES,
        types=types,
        limits=None if limits is None else limit_rows(limits, overview.workers),
        workers=workers[:most],
        more_workers=max(0, len(workers) - most),
    )


def _is_used(state: QueueState) -> bool:
    """Whether a visitor of single tenants is told of a queue without a look for ended items."""
    return bool(state.depth.counts or state.paused or state.paused_for)


async def _read_with_overview(
    visit: Visit, name: str
) -> tuple[Overview | None, Why | None, Sequence[QueueBacklog], list[LimitUse] | None]:
    """What is read with the overview, so that orders and workers are read once."""
    overview = await visit.in_time(visit.overview())
    return (
        overview,
        *await asyncio.gather(
            visit.in_time(visit.client.why_queue(name, overview=overview)),
            backlogs_of(visit, overview),
            visit.in_time(visit.client.limits(overview=overview)),
        ),
    )


def _types(overview: Overview, queue: str) -> dict[str, Depth]:
    """The types that have items in a queue, those with the most open ones first."""
    found = depths((count for count in overview.counts if count.queue == queue), attrgetter("type"))
    return dict(sorted(found.items(), key=lambda each: (-each[1].open, each[0]))[:PER_PAGE])


# ---------------------------------------------------------------------------------------------- programs


def all_json(visit: Visit, page: QueuesPage) -> dict[str, Any]:
    queues = None if page.queues is None else [queue_json(each) for each in page.queues]
    return {"queues": queues, **pages_json(page.pages)}


def one_json(visit: Visit, page: QueuePage) -> dict[str, Any]:
    unknown = {**dict.fromkeys(queue_json(unused(page.name))), "queue": page.name}
    return {
        **(unknown if page.state is None else queue_json(page.state)),
        "status": page.status or None,
        "reasons": None if page.reasons is None else [reason_json(each) for each in page.reasons],
        "throughput": throughput_json(page.throughput),
        "history": history_json(page.history),
        "lines": None if page.lines is None else [line_json(each) for each in page.lines],
        "more_lines": page.more_lines,
        "types": [{"type": type, **depth_json(depth)} for type, depth in page.types.items()],
        "limits": rows_json(page.limits),
        "workers": [row_json(visit, each) for each in page.workers],
        "more_workers": page.more_workers,
    }


def line_json(line: Line) -> dict[str, Any]:
    """The names of `Line`."""
    return {
        "tenant": line.tenant,
        "lane": line.lane,
        "count": line.count,
        "capped": line.capped,
        "oldest_ready_at": iso(line.oldest_ready),
        "first": line.first,
    }


VIEW = View("/queues", "queues.html", read_all, "queues", to_json=all_json)
QUEUE_VIEW = View("/queues/{queue}", "queue.html", read_one, "queues", to_json=one_json)
