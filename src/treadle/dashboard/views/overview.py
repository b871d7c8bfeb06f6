"""Overview: problems first, then what waits, what ran, and how it went."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from treadle.backend import only_store
from treadle.base.wording import approximate
from treadle.bulk_action import BulkState
from treadle.dashboard.access import Action
from treadle.dashboard.addresses import chosen_id, segment
from treadle.dashboard.payloads import shown_text
from treadle.dashboard.queue_states import (
    Depth,
    QueueState,
    depth_json,
    queue_json,
    queue_states,
    shown_queues,
    whole_depth,
)
from treadle.dashboard.throughput import Throughput, read_throughput, span_of, throughput_json
from treadle.dashboard.views import View
from treadle.dashboard.visit import Visit
from treadle.doers.limit_rules import TYPE_LIMIT
from treadle.item_facts import LimitUse, Overview, total
from treadle.operate.filters import filter_word
from treadle.operate.fleet_json import problem_json
from treadle.operate.store_look import ScheduledPart, ScheduledParts, StoreLook, count_scheduled
from treadle.problems import Problem, ProblemKind

from .limits import LimitRow, limit_rows

MOST_QUEUES: Final = 12
SCHEDULED_LOOKED_AT: Final = 50
"""Scheduled items that are looked at for suspended ones: this many of the newest, and as many of the oldest.
Also the most held items that are counted. If there are more, the page says so."""
BEYOND_STATUS: Final = ("backlog", "paused_for", "worker_count", "rate")
"""Facts of a queue that its own page has."""


class Remedy(msgspec.Struct, frozen=True):
    """What can be done about a problem with a button."""

    action: Action | None
    """What a visitor must be allowed to do. None: it is a look."""
    label: str
    url: str
    fields: Mapping[str, str | None] | None = None
    """Of the form that is sent at once. None: it is a page that asks first."""


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
    remedy: Remedy | None = None
    """None: there is none."""


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
    """Limits that are reached now and for which items wait, by the type or name that they belong to."""
    throughput: Throughput | None
    """None: this is about single tenants or one of several stores, for which nothing is counted; or the store
    keeps nothing."""
    scheduled: ScheduledParts = ScheduledParts()


async def read(visit: Visit) -> OverviewPage:
    with only_store(visit.store):
        return await _read(visit)


async def _read(visit: Visit) -> OverviewPage:
    span = span_of(visit)
    # If some were scheduled lately, they are looked at with the overview, not after it.
    key = "scheduled", visit.tenant, visit.store
    at_once = bool(await visit.site.names.get(key, _nothing))
    found, throughput, early = await asyncio.gather(
        _read_with_overview(visit, counts_scheduled=not at_once),
        read_throughput(visit, span),
        _count_scheduled(visit) if at_once else _nothing(),
    )
    overview, depth, look = found.overview, found.depth, found.look
    if depth is not None:
        visit.site.names.put(key, depth.of("scheduled") > 0)
    if look is not None:
        visit.site.names.put(_menu_key(visit), _menu_counts(look))
    several = await _has_several_marks(visit, look)
    states = shown_queues(found.states)
    queues = [each for each in states if each.depth.counts or each.paused or each.paused_for]
    reached = [row for row in limit_rows(found.uses or (), ()) if row.reached]
    return OverviewPage(
        problems=None
        if look is None
        else [problem_row(visit, each, look.requeues, several=several) for each in look.problems],
        unseen="" if look is None else look.unseen,
        depth=depth,
        queues=queues[:MOST_QUEUES],
        more_queues=max(0, len(queues) - MOST_QUEUES),
        workers=0 if overview is None else len(overview.workers),
        full_limits=[]
        if overview is None
        else [row.owner or row.name for row in _waited_for(reached, overview)],
        throughput=throughput if visit.store is None else None,
        scheduled=found.scheduled if early is None or overview is None else early,
    )


async def _nothing() -> None:
    return None


class _WithOverview(NamedTuple):
    """What is read as soon as an overview is there."""

    overview: Overview | None = None
    """None: not in time."""
    states: Sequence[QueueState] = ()
    depth: Depth | None = None
    look: StoreLook | None = None
    uses: list[LimitUse] | None = None
    scheduled: ScheduledParts = ScheduledParts()


async def _read_with_overview(visit: Visit, *, counts_scheduled: bool) -> _WithOverview:
    """counts_scheduled: with how many items are suspended or held."""
    overview = await visit.in_time(visit.overview())
    if overview is None:
        return _WithOverview()
    states = queue_states(overview, None)
    depth = whole_depth(each.depth for each in states)
    look, uses, scheduled = await asyncio.gather(
        visit.in_time(visit.client.look(quick=True, overview=overview)),
        visit.in_time(visit.client.limits(overview=overview)),
        _count_scheduled(visit) if counts_scheduled and depth.of("scheduled") else _nothing(),
    )
    return _WithOverview(overview, states, depth, look, uses, scheduled or ScheduledParts())


async def _look(visit: Visit) -> StoreLook:
    return await visit.client.look(quick=True, overview=await visit.overview())


def _waited_for(rows: Sequence[LimitRow], overview: Overview) -> list[LimitRow]:
    """The limits under which ready items may count. What a pause holds back waits for its end. A name that is
    no type may belong to any."""
    if not rows:
        return []
    ready: dict[str, set[str]] = {"": set()}
    for each in overview.counts:
        if each.status == "ready" and not overview.holds(each):
            ready[""].add(each.type)
            ready.setdefault(each.tenant, set()).add(each.type)
    known = {each.type for each in overview.counts}.union(*(each.types or () for each in overview.workers))

    def is_waited_for(row: LimitRow) -> bool:
        type, types = row.owner.removeprefix(TYPE_LIMIT), ready.get(row.tenant, set())
        return type in types if type in known else bool(types)

    return [row for row in rows if is_waited_for(row)]


async def _has_several_marks(visit: Visit, look: StoreLook | None) -> bool:
    """Whether items died of several causes, or may have: one change is not for all of them."""
    if look is None or not any(each.kind == "dead" for each in look.problems):
        return False
    if look.several_marks is not None:
        return look.several_marks
    marks = await visit.in_time(visit.client.dead.marks(count=2, cap=1))
    return marks is None or len(marks) > 1


async def _count_scheduled(visit: Visit) -> ScheduledParts:
    found = await visit.in_time(count_scheduled(visit.client.backend, visit.tenant, SCHEDULED_LOOKED_AT))
    unknown = ScheduledPart(more=True)
    return ScheduledParts(unknown, unknown) if found is None else found


def problem_row(
    visit: Visit,
    problem: Problem,
    requeues: Sequence[BulkState] = (),
    *,
    several: bool = False,
) -> ProblemRow:
    """A problem, the page that shows what it is about, and what can be done about it.

    requeues: bulk actions that run dead items again now.
    several: whether there are dead items of several marks.
    """
    kind, first = problem.kind, problem.refs[0] if problem.refs else ""
    path, q = None, ""
    if kind == "dead":
        path = "/dead"
    elif kind == "release":
        path = f"/dead/{segment(problem.mark)}" if problem.mark else "/dead"
    elif kind == "paused" and (order := problem.pause) is not None and order.queue is None:
        path = f"/types/{segment(first)}" if order.type else "/tenants" if visit.sees_fleet else None
    elif kind in ("paused", "late", "flood") and first:
        path = f"/queues/{segment(first)}"
    elif kind == "dying" and problem.mark:
        path = f"/dead/{segment(problem.mark)}"
    elif kind in ("undecodable", "dying") and first:
        path = f"/types/{segment(first)}"
    elif kind in ("killing", "not_submitted") and first:
        path, q = "/items", first
    elif visit.sees_fleet:
        path = "/schedules" if kind in ("schedule", "schedule_failed") else "/workers"
    text = shown_text(visit, problem)
    return ProblemRow(
        kind=kind,
        text=text,
        fix=problem.fix,
        refs=problem.refs,
        items=problem.items,
        path=path,
        q=q,
        remedy=_remedy_of_dead(visit, problem, requeues, several=several)
        if kind in ("dead", "release")
        else remedy_of(visit, problem),
    )


def _remedy_of_dead(
    visit: Visit, problem: Problem, requeues: Sequence[BulkState], *, several: bool
) -> Remedy | None:
    """The button for dead items: to run them again, unless a bulk action does, or they have several marks."""
    if requeues:
        return Remedy(None, "See who runs them again", visit.url(f"/bulk/{segment(requeues[0].id)}"))
    if problem.kind == "dead" and several:
        return Remedy(None, "See what they died of", visit.url("/dead"))
    if problem.kind == "dead":
        return Remedy("requeue", "Requeue all…", visit.url("/act/requeue", q="status:dead", back="/"))
    if not problem.mark:
        return None
    q = f"status:dead {filter_word('mark', problem.mark)}"
    return Remedy("requeue", "Requeue them…", visit.url("/act/requeue", q=q, back="/"))


def remedy_of(visit: Visit, problem: Problem) -> Remedy | None:
    """The button for a problem. Those about the fleet are for visitors of all tenants."""
    kind, first = problem.kind, problem.refs[0] if problem.refs else ""
    if kind == "dying":
        q = f"status:dead {filter_word('type', first)}"
        return Remedy(None, "See its dead items", visit.url("/items", q=q))
    if kind == "killing" and problem.item:
        id = chosen_id(problem.item, None if visit.tenant else problem.tenant)
        return Remedy("hold", "Hold it…", visit.url("/act/hold", id=id, back="/"))
    if not visit.sees_fleet:
        return None
    if kind == "paused" and (order := problem.pause) is not None:
        fields = {"queue": order.queue, "type": order.type, "tenant": order.tenant}
        return Remedy("resume", "Resume", visit.url("/orders/resume"), fields)
    if kind == "flood" and problem.tenant is not None:
        flood = {"queue": first, "tenant": problem.tenant}
        return Remedy("pause", "Pause this tenant there", visit.url("/orders/pause"), flood)
    if kind == "flood":
        q = f"status:ready {filter_word('type', problem.refs[1])} {filter_word('queue', first)}"
        return Remedy("update", "Lower its priority…", visit.url("/act/update", q=q, back="/"))
    if kind == "blocked" and len(problem.refs) == 1:
        return Remedy("drain_worker", "Drain it…", visit.url(f"/workers/{segment(first)}/drain", back="/"))
    if problem.schedule:
        ask = visit.url(f"/schedules/{segment(problem.schedule)}/cancel", back="/")
        return Remedy("cancel_schedule", "End it…", ask)
    return None


def to_json(visit: Visit, page: OverviewPage) -> dict[str, Any]:
    """What `treadle status --json` says first, and what workers counted."""
    return {
        "healthy": None if page.problems is None else not page.problems,
        "problems": None if page.problems is None else [problem_json(each) for each in page.problems],
        "statuses": None if page.depth is None else depth_json(page.depth),
        "suspended": page.scheduled.suspended,
        "held": page.scheduled.held,
        "queues": [
            {name: value for name, value in queue_json(each).items() if name not in BEYOND_STATUS}
            for each in page.queues
        ],
        "more_queues": page.more_queues,
        "worker_count": page.workers,
        "throughput": throughput_json(page.throughput),
    }


async def menu_counts(visit: Visit) -> dict[str, str]:
    """What the menu says beside its entries, by their sections. It is kept for a while."""

    async def read() -> dict[str, str]:
        return _menu_counts(await _look(visit))

    return cast("dict[str, str]", await visit.site.names.get(_menu_key(visit), read))


def _menu_key(visit: Visit) -> tuple[str, str | None, str | None, bool]:
    return "menu", visit.tenant, visit.store, visit.site.full_counts.fresh is None


def _menu_counts(look: StoreLook) -> dict[str, str]:
    dead, estimated = total(each for each in look.overview.counts if each.status == "dead")
    counts = {"overview": str(len(look.problems) or ""), "dead": approximate(dead, estimated) if dead else ""}
    return {section: count for section, count in counts.items() if count}


VIEW = View("/", "overview.html", read, "overview", to_json=to_json)
