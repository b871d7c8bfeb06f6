"""Read: ask the store for facts, and follow what an item waits for down to what holds everything up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from treadle.backend import Backend, left_out
from treadle.base.wording import plain
from treadle.engine.core import Core
from treadle.engine.declared_limits import limits_of, used_limit
from treadle.engine.run.unsatisfied import cause_in, named_causes
from treadle.engine.submit.build_item import read_undo
from treadle.item import (
    GROUP_MARK,
    TERMINAL,
    Filter,
    ItemState,
    Limit,
    Order,
    Recorded,
    Status,
    StepRecord,
    WorkerState,
)
from treadle.item_facts import Explanation, LimitUse, Overview, Prerequisite, UnservedType
from treadle.operate.tenant_view import (
    has_others,
    paused_queues,
    read_orders,
    read_overview,
    seen_limits,
    seen_workers,
)
from treadle.records import AuditEntry
from treadle.store.fleet import Fleet
from treadle.store.rules.listing import LARGEST_PAGE
from treadle.store.rules.steps import is_over, join_of, unreadable_step
from treadle.why import Reason, Why

from .blocked import open_prerequisites
from .facts import GroupFacts, ItemFacts, LimitFact, NoItem, QueueFacts, ScheduleFacts
from .fleet import WorkerFleet
from .meaning import reasons_of
from .wording import item_name, releases_text

MOST_DEEP: Final = 20
"""Items that are followed, from one to what it waits for."""
MOST_DEAD: Final = 3
"""Items that died of others and are told before the first death."""
RUNNING_LOOKED_AT: Final = 500
"""Running items that are looked at for what full workers run."""
MEMBERS: Final = 20
"""Open members of a group that are read."""
MOVING: Final[tuple[Status, ...]] = ("running", "ready", "scheduled")
BLOCKED: Final[tuple[Status, ...]] = ("blocked",)
PREREQUISITES: Final = 1000
"""Prerequisites that are read of an item that died because of one."""
MOST_TYPES: Final = 3
"""Types of a queue that are named if no worker has them."""
MARKS: Final = 20
"""Limit on the marks among which that of a dead item is searched, those with the newest deaths first."""
DEATHS: Final = 1000
"""Limit on the deaths of each that are counted."""
HELD_UP: Final = frozenset(("paused", "no_worker", "no_worker_for_queue", "no_worker_for_tenant"))
"""Reasons of a whole queue: its oldest item has no others that matter."""


async def why_item(core: Core, id: str, tenant: str | None) -> Why:
    """Why an item, or a group, is where it is."""
    facts = await _read(core, id, tenant, viewer=tenant)
    reasons = [*_reasons_for(facts, tenant), *await _follow(core, facts, viewer=tenant)]
    return Why(id=id, status=_status(facts), reasons=tuple(reasons))


def _reasons_for(facts: ItemFacts | GroupFacts | NoItem | QueueFacts, viewer: str | None) -> list[Reason]:
    """The reasons as they are told to a client of one tenant: they speak of the workers that serve it."""
    reasons = list(reasons_of(facts))
    if viewer is None:
        return reasons
    others = isinstance(facts, ItemFacts | QueueFacts) and facts.others
    return [_for_tenant(each, viewer, others) for each in reasons]


def _for_tenant(reason: Reason, viewer: str, others: bool) -> Reason:
    name = plain(viewer)
    if reason.kind == "no_worker" and others:
        if not reason.refs:
            text = f"no live worker serves tenant {name}"
            return replace(reason, kind="no_worker_for_tenant", text=text, refs=(viewer,))
        serving = f"no worker that serves tenant {name}"
        return replace(reason, text=reason.text.replace("no worker", serving, 1))
    if reason.kind == "next":  # what else may be in its way is not told
        return replace(reason, fix="look again")
    return reason


def _status(facts: ItemFacts | GroupFacts | NoItem) -> Status | Literal["unknown", "open", "ended"]:
    match facts:
        case ItemFacts():
            return facts.explained.item.status
        case GroupFacts():
            return "open" if facts.open else "ended"
        case NoItem():
            return "unknown"


# -- what holds an item up -----------------------------------------------------------------------------


async def _follow(core: Core, facts: ItemFacts | GroupFacts | NoItem, *, viewer: str | None) -> list[Reason]:
    """The reasons of what it waits for, down to an item that does not wait for another."""
    reasons: list[Reason] = []
    seen: set[str] = set()
    while isinstance(facts, ItemFacts | GroupFacts) and len(seen) < MOST_DEEP:
        tenant = facts.tenant if isinstance(facts, GroupFacts) else facts.explained.item.tenant
        name = next_name(facts)
        if name is None or name in seen:
            break
        if len(seen) >= MOST_DEAD and isinstance(facts, ItemFacts) and facts.causes and facts.root:
            name = facts.root.id
        seen.add(name)
        if name.startswith(GROUP_MARK):
            group = await _read_group(core.backend, name[1:], tenant)
            facts = NoItem(id=name, away=tuple(left_out())) if group is None else group
        else:
            facts = await _read(core, name, tenant, viewer=viewer)
        reasons += _about(name, facts, viewer)
    return reasons


def next_name(facts: ItemFacts | GroupFacts) -> str | None:
    """The item, or with `GROUP_MARK` the group, that holds this one up. None: no other does."""
    if isinstance(facts, GroupFacts):
        first = facts.members[0] if facts.members else facts.cause
        return None if first is None else first.id
    explained = facts.explained
    item = explained.item
    if item.status in TERMINAL:
        if facts.group is not None:
            return next_name(facts.group)
        return facts.causes[0].id if facts.causes else None
    if item.status == "ready" and explained.verdict is None:
        return explained.lane_holder if explained.lane_holder != item.id else None
    if explained.verdict == "unsatisfiable":
        lost = [each for each in explained.prerequisites if each.status in ("dead", "cancelled")]
        return lost[0].id if lost else None
    for signal, join in facts.joins.items():
        waits_for = open_prerequisites(join)
        return waits_for[0].id if waits_for else join_of(signal)
    waits_for = open_prerequisites(explained) if item.status == "blocked" else []
    return waits_for[0].id if waits_for else None


def _about(name: str, facts: ItemFacts | GroupFacts | NoItem, viewer: str | None) -> list[Reason]:
    """The reasons of another item, which say so."""
    if isinstance(facts, NoItem):
        return []  # it was removed just now
    reasons = _reasons_for(facts, viewer)
    if isinstance(facts, GroupFacts):
        return [replace(each, about=facts.id) for each in reasons]
    prefix = item_name(name, facts.explained.item.type)
    return [replace(each, text=f"{prefix}: {each.text}", about=name) for each in reasons]


# -- reading -------------------------------------------------------------------------------------------


async def _read(
    core: Core,
    id: str,
    tenant: str | None,
    *,
    viewer: str | None,
    orders: Sequence[Order] | None = None,
) -> ItemFacts | GroupFacts | NoItem:
    """viewer: the tenant whose client asks. None: one that sees all tenants. orders: those in force, as far
    as the viewer sees them. None: they are read."""
    backend = core.backend
    explained = await backend.explain(id, tenant=tenant)
    if explained is None:
        return await _read_group(backend, id, tenant) or NoItem(id=id, tenant=tenant, away=tuple(left_out()))
    others = has_others(explained.workers, viewer, explained.now)
    explained = replace(explained, workers=seen_workers(explained.workers, viewer))
    item = explained.item
    group = None
    if item.status in TERMINAL and item.group_id == item.id:
        found = await _read_group(backend, id, item.tenant)
        if found is not None and (found.open or (found.cause is not None and found.cause.id != id)):
            group = found
    if item.status in TERMINAL:
        orders = ()
    elif orders is None:
        orders = await read_orders(backend, viewer)
    recorded = await _read_recorded(backend, item)
    causes = await _read_causes(backend, item) or await _read_dead_children(backend, item, recorded)
    waits = tuple(step for step in recorded.steps if not is_over(step, explained.now))
    return ItemFacts(
        explained=explained,
        paused=tuple(each for each in orders if each.holds(item.queue, item.type, item.tenant)),
        hold=await _read_hold(backend, item, viewer),
        limits=await _read_limits(core, explained, viewer, orders),
        causes=causes,
        root=await _read_root(backend, item.tenant, causes or _lost_prerequisites(explained)),
        group=group,
        others=others,
        runs=await _read_runs(backend, explained, viewer),
        waits=waits,
        mailbox=recorded.mailbox,
        unreadable=_unreadable(item, recorded),
        undone=tuple(step.name for step in recorded.steps if _was_undone(item, step)),
        dead_undos=await _read_dead_undos(backend, item, recorded),
        joins=await _read_joins(backend, item.tenant, waits),
        releases=await _read_releases(backend, item, viewer),
    )


async def _read_releases(backend: Backend, item: ItemState, viewer: str | None) -> str:
    if item.status != "dead" or not item.release:
        return ""
    marks = await backend.marks(tenant=viewer, count=MARKS, cap=DEATHS)
    found = (releases_text(mark) for mark in marks if mark.mark == item.mark)
    return next(found, "") or f"it died under {plain(item.release)}"


async def _read_runs(backend: Backend, explained: Explanation, viewer: str | None) -> dict[str, list[str]]:
    """The types of what the workers run that could run a ready item, if they are full. They may be those of
    other tenants: one is not told."""
    item = explained.item
    fleet = WorkerFleet(explained.workers, explained.now)
    workers = fleet.serving(type=item.type, queue=item.queue, tenant=item.tenant)
    full = any(each.kind == "worker_full" for each in fleet.busy(workers, item.type))
    if viewer is not None or item.status != "ready" or not full or "listing" not in backend.capabilities:
        return {}
    page = await backend.list(Filter(status=("running",)), limit=RUNNING_LOOKED_AT, reach=RUNNING_LOOKED_AT)
    found: dict[str, list[str]] = {}
    for each in page.items:
        if each.worker is not None and each.started_at is not None:
            found.setdefault(each.worker, []).append(each.type)
    return found


async def _read_hold(backend: Backend, item: ItemState, viewer: str | None) -> AuditEntry | None:
    """Who holds a held item, as far as the last entries of the audit say. A hold of an item that is held
    already changes nothing."""
    if not item.held or "recording" not in backend.capabilities:
        return None
    page = await backend.audits(tenant=viewer, limit=LARGEST_PAGE)
    seen: AuditEntry | None = None
    for each in page.entries:
        if each.verb not in ("hold", "unhold") or item.id not in each.ids or not each.count:
            continue
        if each.tenant not in (None, item.tenant):
            continue
        if each.verb == "unhold":
            break
        seen = each
        if each.count >= len(each.ids):  # it changed all that it names; others may have changed this one
            break
    return seen


async def _read_joins(backend: Backend, tenant: str, waits: Sequence[StepRecord]) -> dict[str, Explanation]:
    names = [wait.signal for wait in waits if wait.kind == "children"]
    found = {name: await backend.explain(join_of(name), tenant=tenant) for name in names}
    return {name: each for name, each in found.items() if each is not None}


async def _read_recorded(backend: Backend, item: ItemState) -> Recorded:
    waits = item.suspended and item.status == "scheduled"
    if not waits and not (item.has_steps and item.status == "dead"):
        return Recorded()
    (found,) = await backend.steps([item.id], tenant=item.tenant)
    return found or Recorded()


def _unreadable(item: ItemState, recorded: Recorded) -> StepRecord | None:
    """The step that an item died of. Its error names it, as `unreadable_step` writes it."""
    error = item.error or ""
    steps = recorded.steps if item.reason == "undecodable" else ()
    return next((step for step in steps if unreadable_step(step.name, "") in error), None)


def _was_undone(item: ItemState, step: StepRecord) -> bool:
    return item.status == "dead" and step.undo is not None


def undo_types(steps: Iterable[StepRecord]) -> Iterator[str]:
    """The types of the undos of these steps, as far as this version can read them."""
    for step in steps:
        with suppress(msgspec.MsgspecError):
            yield read_undo(step).wanted.type


async def _read_dead_undos(backend: Backend, item: ItemState, recorded: Recorded) -> tuple[ItemState, ...]:
    types = set(undo_types(step for step in recorded.steps if _was_undone(item, step)))
    if not types:
        return ()
    where = Filter(tenant=item.tenant, group_id=item.group_id, status=("dead",))
    page = await backend.list(where, oldest_first=True)
    return tuple(each for each in page.items if each.parent == item.id and each.type in types)


async def _read_limits(
    core: Core, explained: Explanation, viewer: str | None, orders: Sequence[Order]
) -> tuple[LimitFact, ...] | None:
    item = explained.item
    could_run = item.status == "ready" or (item.status == "scheduled" and item.due_at <= explained.now)
    if not could_run:
        return ()
    limits = limits_of(core, item, orders)
    if not limits:
        return None if limits is None else ()
    found = await core.backend.limits([limit.name for limit, _ in limits])
    uses = {use.name: use for use in seen_limits(found, viewer)}
    fleet = Fleet(explained.workers, explained.now)
    workers = fleet.serving(type=item.type, queue=item.queue, tenant=item.tenant) or fleet.taking
    return tuple(
        LimitFact(
            limit if order is not None else _in_force(limit, uses.get(limit.name), workers),
            uses.get(limit.name),
            order,
        )
        for limit, order in limits
    )


def _in_force(limit: Limit, use: LimitUse | None, workers: Sequence[WorkerState]) -> Limit:
    """A limit of the code here, with what the workers allow that could run the item: their code may be older,
    or newer."""
    known = use.limit if use is not None and use.limit is not None else used_limit(workers, {}, limit.name)
    return limit if known is None else replace(limit, limit=known)


def _lost_prerequisites(explained: Explanation) -> tuple[Prerequisite, ...]:
    if explained.verdict != "unsatisfiable":
        return ()
    return tuple(each for each in explained.prerequisites if each.status in ("dead", "cancelled"))


async def _read_root(backend: Backend, tenant: str, causes: Sequence[Prerequisite]) -> Prerequisite | None:
    """The first item that ended without counting: what died because of it cannot run before it does."""
    root, state = None, None
    for _ in range(MOST_DEEP):
        if not causes or causes[0] == root:
            return root
        root = causes[0]
        if root.id.startswith(GROUP_MARK):
            return root
        (state,) = await backend.get([root.id], tenant=tenant)
        causes = () if state is None else await _read_causes(backend, state)
    named = await named_causes(backend, [state] if state is not None else [])  # the chain is longer
    return next((Prerequisite(each.id, each.status, each.type) for each in named.values()), root)


async def _read_causes(backend: Backend, item: ItemState) -> tuple[Prerequisite, ...]:
    """Which prerequisites of an item that died `unsatisfiable` made it so."""
    if item.reason != "unsatisfiable" or not item.after:
        return ()
    named = item.after[:PREREQUISITES]
    items = await backend.get([name for name in named if not name.startswith(GROUP_MARK)], tenant=item.tenant)
    causes = _lost(items)
    groups = [name[1:] for name in named if name.startswith(GROUP_MARK)]
    if groups:
        found = await backend.group(groups, tenant=item.tenant)
        failed = [each for each in found if each is not None and each.failed]
        causes += [Prerequisite(GROUP_MARK + each.id, "dead", each.type) for each in failed]
    return tuple(causes)


async def _read_dead_children(
    backend: Backend, item: ItemState, recorded: Recorded
) -> tuple[Prerequisite, ...]:
    """The child that an item died of: `ctx.run` raises its error in each attempt, which names it."""
    error = item.error if item.status == "dead" else None
    joins = [join_of(step.signal) for step in recorded.steps if step.kind == "children"]
    if error is None or not joins:
        return ()
    found = await backend.get(joins, tenant=item.tenant)
    named = [name for join in found if join is not None for name in join.after if name in error]
    return tuple(_lost(await backend.get(named, tenant=item.tenant))) if named else ()


def _lost(states: Sequence[ItemState | None]) -> list[Prerequisite]:
    lost = [each for each in states if each is not None and each.status in ("dead", "cancelled")]
    return [Prerequisite(each.id, each.status, each.type) for each in lost]


async def _read_group(backend: Backend, id: str, tenant: str | None) -> GroupFacts | None:
    """A group, with some of its open members, and its first death. None: there is none of this id."""
    (group,) = await backend.group([id], tenant=tenant)
    if group is None:
        return None
    members: tuple[ItemState, ...] = ()
    if group.open:
        for statuses in MOVING, BLOCKED:
            where = Filter(tenant=group.tenant, group_id=id, status=statuses)
            members += (await backend.list(where, limit=MEMBERS, oldest_first=True)).items
            if members:
                break
    return GroupFacts(
        id=id,
        tenant=group.tenant,
        open=group.open,
        members=members,
        failed=group.failed,
        cause=cause_in(group) if group.failed else None,
        ended_at=group.ended_at,
        now=await backend.now(),
    )


# -- queues and schedules ------------------------------------------------------------------------------


async def why_queue(core: Core, name: str, tenant: str | None, overview: Overview | None = None) -> Why:
    """Why the items of a queue wait. overview: one of the same tenant that was just read."""
    if overview is None:
        overview = await read_overview(core.backend, tenant)
    counts = tuple(count for count in overview.counts if count.queue == name)
    ready = {count.type for count in counts if count.status == "ready"}
    unserved = tuple(each for each in overview.unserved if each.type in ready)[:MOST_TYPES]
    facts = QueueFacts(
        name=name,
        tenant=tenant,
        now=overview.now,
        counts=counts,
        age=next((age for age in overview.ages if age.queue == name), None),
        paused=tuple(
            each
            for each in overview.paused
            if each.queue == name or (each.queue, each.type, each.tenant) == (None, None, tenant)
        ),
        unserved=unserved,
        ready_since=await _ready_since(core, name, tenant, unserved, overview.workers),
        workers=seen_workers(overview.workers, tenant),
        others=has_others(overview.workers, tenant, overview.now),
        queues=tuple(sorted({*(each.queue for each in overview.counts), *paused_queues(overview.paused)})),
        declared=_declared_queues(core),
    )
    reasons = _reasons_for(facts, tenant)
    if ready and not any(each.kind in HELD_UP for each in reasons):
        reasons += await _oldest_of(core, name, tenant, reasons, overview.orders)
    return Why(id=name, status=_queue_status(facts, reasons), reasons=tuple(reasons))


def _declared_queues(core: Core) -> tuple[str, ...]:
    named = (type.options.get("queue") for type in core.registry.types.values())
    return tuple({queue for queue in named if isinstance(queue, str)})


def _queue_status(facts: QueueFacts, reasons: Sequence[Reason]) -> Literal["unknown", "paused", "active"]:
    if reasons[0].kind == "unknown":
        return "unknown"
    return "paused" if facts.paused else "active"


async def _ready_since(
    core: Core, queue: str, tenant: str | None, types: Sequence[UnservedType], workers: Sequence[WorkerState]
) -> dict[str, float]:
    """Since when the oldest ready item of each of these types could run, if it dies without a worker."""
    if all(each.info is None or each.info.unknown_type_grace is None for each in workers):
        return {}
    found = await asyncio.gather(*(_oldest(core, queue, tenant, each.type) for each in types))
    return {item.type: item.due_at for item in found if item is not None}


async def _oldest(core: Core, queue: str, tenant: str | None, type: str | None = None) -> ItemState | None:
    """The oldest ready item of a queue."""
    where = Filter(tenant=tenant, queue=queue, type=type, status=("ready",))
    page = await core.backend.list(where, limit=1, oldest_first=True)
    return page.items[0] if page.items else None


async def _oldest_of(
    core: Core, queue: str, tenant: str | None, known: Sequence[Reason], orders: Sequence[Order]
) -> list[Reason]:
    """The reasons of the oldest ready item of a queue."""
    item = await _oldest(core, queue, tenant)
    if item is None:
        return []
    facts = await _read(core, item.id, item.tenant, viewer=tenant, orders=orders)
    said = {(each.kind, each.refs) for each in known}
    return [
        each
        for each in [*_about(item.id, facts, tenant), *await _follow(core, facts, viewer=tenant)]
        if (each.kind, each.refs) not in said
    ]


def why_schedule(facts: ScheduleFacts) -> Why:
    """Why a schedule has not fired."""
    return Why(id=facts.name, status=facts.state, reasons=tuple(reasons_of(facts)))
