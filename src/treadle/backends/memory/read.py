"""Read: items, groups, lists and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from treadle.item import (
    KILLING,
    MOST_COUNTED,
    TERMINAL,
    Count,
    Ended,
    Filter,
    GroupFilter,
    GroupOutcome,
    GroupState,
    GroupSummary,
    ItemState,
    Page,
    Ref,
    Status,
)
from treadle.store.rules.listing import ListPlan, WalkEnd, outcome_of, plan_groups, plan_list
from treadle.store.rules.settlement import SHOWN_DEATHS
from treadle.store.rules.times import is_held, shown_due

from .groups import value_of
from .rows import MemoryGroup, Row
from .tables import MemoryTables

# ------------------------------------------------------------------------------------------------------ items


def item_state(row: Row) -> ItemState:
    """An item without its history. (Fields given by name take twice as long.)"""
    item, kind = row.item, row.kind
    state = ItemState(id=item.id, type=kind.type, status=row.status, tenant=kind.tenant)
    state.reason = row.reason
    state.attempt = row.attempt
    state.attempts = item.attempts
    state.failures = row.failures
    state.losses = row.losses
    state.deferrals = row.deferrals
    state.result = row.result
    if row.history and row.status != "success":
        last = row.history[-1]
        state.error = f"{last.error_type}: {last.message}" if last.message else last.error_type
        state.error_type = last.error_type
        state.release = last.release
    state.queued_at = row.queued_at
    state.due_at = shown_due(row.due_at, row.ended_at)
    state.claimed_at = row.claimed_at
    state.started_at = row.claimed_at if row.status == "running" else row.started_at
    state.ended_at = row.ended_at
    state.deadline = row.deadline
    state.priority = item.priority
    state.lane = kind.lane
    state.queue = kind.queue
    state.group_id = row.group_id
    state.parent = item.parent
    state.workflow = item.workflow
    state.workflow_type = item.workflow_type
    state.after = item.after
    state.key = item.key
    state.worker = row.claimed_by if row.status == "running" or row.ended_at is not None else None
    state.input = item.input
    state.options = item.options
    state.mark = row.mark
    state.has_steps = row.has_steps
    state.suspended = row.suspended
    state.held = row.ended_at is None and is_held(row.due_at)
    return state


def full_state(store: MemoryTables, row: Row) -> ItemState:
    """An item with its history, and the ids it waits for that do not exist yet."""
    state = item_state(row)
    if row.history:
        state.history = tuple(row.history)
    if row.dependencies and (pending := row.dependencies.pending):
        tenant, after = row.kind.tenant, row.item.after
        state.waiting_for = tuple(id for id in after if id in pending and not store.exists((tenant, id)))
    return state


# ----------------------------------------------------------------------------------------------------- groups


def group_state(found: Row | MemoryGroup) -> GroupState:
    """A group. The row of a root that is alone is all there is of its group."""
    if isinstance(found, Row):
        id, tenant, type, open = (
            found.item.id,
            found.kind.tenant,
            found.kind.type,
            int(found.ended_at is None),
        )
        version, value, final = value_of(found)
        failed, outer, total = int(found.failed_group), None, 1
        deaths: tuple[Row, ...] = (found,) if failed else ()
        cancelled = found if found.status == "cancelled" else None
    else:
        id, tenant, type, open = found.id, found.tenant, found.type, found.open
        version, value, final = found.version, found.value, found.final
        failed, total, deaths = found.failed, found.total, tuple(islice(found.deaths, SHOWN_DEATHS))
        outer = None if found.outer is None else found.outer.id
        cancelled = None if open else next(iter(found.cancelled), None)
    return GroupState(
        id=id,
        tenant=tenant,
        type=type,
        open=open,
        value=value,
        contributed=found.contributed,
        final=final,
        version=version,
        ended_at=found.ended_at,
        total=total,
        failed=failed,
        deaths=tuple(item_state(row) for row in deaths),
        cancelled=None if cancelled is None else item_state(cancelled),
        outer=outer,
    )


def ended(store: MemoryTables, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
    rows = {ref: store.find(*ref) for ref in items}
    found = {ref: store.find_group(*ref) for ref in groups}
    missing = [ref for ref, row in (*rows.items(), *found.items()) if row is None]
    return Ended(
        {ref: item_state(row) for ref, row in rows.items() if row is not None and row.ended_at is not None},
        {
            ref: group_state(group)
            for ref, group in found.items()
            if group is not None and group.ended_at is not None
        },
        frozenset(missing),
    )


# ------------------------------------------------------------------------------------------------------ lists


def list_items(
    store: MemoryTables,
    where: Filter,
    limit: int,
    cursor: str | None,
    *,
    oldest_first: bool,
    history: bool,
    reach: int | None = None,
) -> Page:
    plan = plan_list("memory", where, limit=limit, cursor=cursor, oldest_first=oldest_first)
    candidates = _candidates(store, plan)
    looked_at = list(islice(candidates, max(1, reach))) if reach is not None else candidates
    found = list(islice((row for row in looked_at if _matches(row, where)), plan.most + 1))
    rows = found[: plan.most]
    states = [full_state(store, row) if history else item_state(row) for row in rows]
    end = None
    if isinstance(looked_at, list) and next(candidates, None) is not None:
        end = WalkEnd(looked_at[-1].number, looked_at[-1].queued_at)
    return plan.page([row.number for row in found], states, end)


def oldest_matching(store: MemoryTables, where: Filter) -> Iterator[Row]:
    """The rows that a filter finds, the oldest first."""
    candidates = _candidates(store, plan_list("memory", where, limit=1, oldest_first=True))
    return (row for row in candidates if _matches(row, where))


def _candidates(store: MemoryTables, plan: ListPlan) -> Iterator[Row]:
    """The rows that have to be looked at, in order."""
    after, before = plan.bounds.after, plan.bounds.before
    rows = _narrowest_table(store, plan)
    if rows is None:
        log = store.rows(before if after is None else after, oldest_first=plan.oldest_first)
        return (row for row in log if row.ended_at is None) if plan.only_open else log
    between = (
        row
        for row in rows
        if (after is None or row.number > after) and (before is None or row.number < before)
    )
    return iter(sorted(between, key=lambda row: row.number, reverse=not plan.oldest_first))


def _narrowest_table(store: MemoryTables, plan: ListPlan) -> Iterable[Row] | None:
    """The narrowest table that holds all rows that match. None: only the log does."""
    where = plan.where
    for source in plan.sources:
        match source:
            case "group" if where.group_id is not None:
                return _members(store, where.tenant, where.group_id)
            case "workflow" if where.workflow is not None and where.tenant is not None:
                return store.workflows.get((where.tenant, where.workflow), ())
            case "killing":
                return store.killing
            case "dead":
                return store.dead
            case _:
                pass
    return None if plan.sources else ()


def _members(store: MemoryTables, tenant: str | None, id: str) -> list[Row]:
    """The members of the groups with this id, in one tenant or in all."""
    rows = [row for group in store.groups.get(id, {}).values() for row in group.members]
    roots = store.items.get(id)
    rows += [roots] if isinstance(roots, Row) else [] if roots is None else roots.values()
    return [row for row in dict.fromkeys(rows) if tenant in (None, row.kind.tenant)]


def _matches(row: Row, where: Filter) -> bool:
    kind, item = row.kind, row.item
    return (
        where.tenant in (None, kind.tenant)
        and (not where.status or row.status in where.status)
        and where.type in (None, kind.type)
        and where.queue in (None, kind.queue)
        and where.workflow in (None, item.workflow)
        and where.group_id in (None, row.group_id)
        and where.key in (None, item.key)
        and where.reason in (None, row.reason)
        and (where.mark is None or (row.status == "dead" and row.mark == where.mark))
        and (where.release is None or item_state(row).release == where.release)
        and (not where.failed_group or row.failed_group)
        and (not where.killing or (row.losses >= KILLING and row.ended_at is None))
        and (not where.held or (is_held(row.due_at) and row.ended_at is None and row.verdict is None))
        and (where.since is None or row.queued_at >= where.since)
        and (where.until is None or row.queued_at < where.until)
    )


# --------------------------------------------------------------------------- lists of groups and workflows


def list_groups(
    store: MemoryTables, where: GroupFilter, limit: int, cursor: str | None, reach: int | None
) -> Page[GroupSummary]:
    plan = plan_groups("memory", "groups", where, limit=limit, cursor=cursor, reach=reach)
    candidates = [
        group
        for groups in store.groups.values()
        for group in groups.values()
        if group.outer is None
        and group.total > 1
        and (plan.before is None or group.number < plan.before)
        and _outcome(group) in plan.outcomes
    ]
    candidates.sort(key=lambda group: group.number, reverse=True)
    takes = (
        group
        for group in candidates[: plan.reach]
        if plan.takes(group.tenant, group.type, _begun(store, group))
    )
    found = [(group.number, _group_summary(store, group)) for group in islice(takes, plan.most + 1)]
    end = None
    if plan.reach is not None and len(candidates) > plan.reach:
        last = candidates[plan.reach - 1]
        end = WalkEnd(last.number, _begun(store, last) or 0.0)
    return plan.page(found, end)


def _outcome(group: MemoryGroup) -> GroupOutcome:
    counts = group.open, group.failed, group.cancellations
    return outcome_of(*counts, contributed=group.contributed, final=group.final)


def _begun(store: MemoryTables, group: MemoryGroup) -> float | None:
    """When the root was submitted. None: it was removed. Another item may have its id."""
    root = store.find(group.tenant, group.id)
    return root.queued_at if root is not None and root.number == group.number else None


def _group_summary(store: MemoryTables, group: MemoryGroup) -> GroupSummary:
    death = next(iter(group.deaths), None)
    return GroupSummary(
        id=group.id,
        tenant=group.tenant,
        type=group.type,
        outcome=_outcome(group),
        open=group.open,
        total=group.total,
        failed=group.failed,
        queued_at=_begun(store, group),
        ended_at=group.ended_at,
        death=None if death is None else item_state(death),
    )


def list_workflows(
    store: MemoryTables, where: GroupFilter, limit: int, cursor: str | None, reach: int | None
) -> Page[GroupSummary]:
    plan = plan_groups("memory", "workflows", where, limit=limit, cursor=cursor, reach=reach)
    roots = [
        (root, name, rows)
        for (_, name), rows in store.workflows.items()
        if (root := next((row for row in reversed(rows) if row.group_id == row.item.id), None)) is not None
        and (plan.before is None or root.number < plan.before)
    ]
    roots.sort(key=lambda each: each[0].number, reverse=True)
    found: list[tuple[int, GroupSummary]] = []
    for root, name, rows in roots[: plan.reach]:
        if len(found) > plan.most:
            break
        if plan.takes(root.kind.tenant, root.kind.type, root.queued_at):
            summary = _workflow_summary(root, name, rows)
            if summary.outcome in plan.outcomes:
                found.append((root.number, summary))
    end = None
    if plan.reach is not None and len(roots) > plan.reach:
        last = roots[plan.reach - 1][0]
        end = WalkEnd(last.number, last.queued_at)
    return plan.page(found, end)


def _workflow_summary(root: Row, name: str, rows: dict[Row, None]) -> GroupSummary:
    counted = list(islice(reversed(rows), MOST_COUNTED))
    open = sum(row.ended_at is None for row in counted)
    deaths = [row for row in counted if row.failed_group]
    cancelled = sum(row.status == "cancelled" for row in counted)
    death = min(deaths, key=lambda row: (row.ended_at or 0.0, row.number), default=None)
    return GroupSummary(
        id=name,
        tenant=root.kind.tenant,
        type=root.kind.type,
        outcome=outcome_of(open, len(deaths), cancelled),
        open=open,
        total=len(counted),
        failed=len(deaths),
        queued_at=counted[-1].queued_at,
        ended_at=None if open else max(row.ended_at or 0.0 for row in counted),
        death=None if death is None else item_state(death),
        capped=len(rows) > MOST_COUNTED,
    )


def counts(store: MemoryTables, tenant: str | None, *, ended: bool) -> list[Count]:
    total: Counter[tuple[str, str, str, Status]] = Counter()
    for kind in store.kinds.values():
        if tenant in (None, kind.tenant):
            for status, count in kind.counts.items():
                if count and (ended or status == "dead" or status not in TERMINAL):
                    total[kind.tenant, kind.queue, kind.type, status] += count
    return [Count(*key, count) for key, count in total.items()]
