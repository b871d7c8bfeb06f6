"""Read: items, groups, lists and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from treadle.item import (
    KILLING,
    TERMINAL,
    Count,
    Ended,
    Filter,
    GroupState,
    ItemState,
    Page,
    Ref,
    Status,
)
from treadle.store.rules.listing import ListPlan, WalkEnd, plan_list
from treadle.store.rules.settlement import SHOWN_DEATHS

from .groups import value_of
from .rows import MemoryGroup, Row
from .tables import MemoryTables

# ------------------------------------------------------------------------------------------------------ items


def item_state(row: Row) -> ItemState:
    """An item without its history."""
    item, kind = row.item, row.kind
    last = row.history[-1] if row.history and row.status != "success" else None
    return ItemState(
        id=item.id,
        type=kind.type,
        status=row.status,
        tenant=kind.tenant,
        reason=row.reason,
        attempt=row.attempt,
        attempts=item.attempts,
        failures=row.failures,
        losses=row.losses,
        deferrals=row.deferrals,
        result=row.result,
        error=None
        if last is None
        else (f"{last.error_type}: {last.message}" if last.message else last.error_type),
        error_type=None if last is None else last.error_type,
        queued_at=row.queued_at,
        due_at=row.due_at,
        claimed_at=row.claimed_at,
        started_at=row.claimed_at if row.status == "running" else row.started_at,
        ended_at=row.ended_at,
        deadline=row.deadline,
        priority=item.priority,
        lane=kind.lane,
        queue=kind.queue,
        group_id=row.group_id,
        parent=item.parent,
        workflow=item.workflow,
        workflow_type=item.workflow_type,
        after=item.after,
        key=item.key,
        worker=row.claimed_by if row.status == "running" or row.ended_at is not None else None,
        input=item.input,
        options=item.options,
        mark=row.mark,
        release="" if last is None else last.release,
        has_steps=row.has_steps,
        suspended=row.suspended,
    )


def full_state(store: MemoryTables, row: Row) -> ItemState:
    """An item with its history, and the ids it waits for that do not exist yet."""
    state = item_state(row)
    state.history = tuple(row.history or ())
    tenant, after = row.kind.tenant, row.item.after
    pending = row.dependencies.pending if row.dependencies else ()
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
        failed, outer = int(found.failed_group), None
        deaths: tuple[Row, ...] = (found,) if failed else ()
        cancelled = found if found.status == "cancelled" else None
    else:
        id, tenant, type, open = found.id, found.tenant, found.type, found.open
        version, value, final = found.version, found.value, found.final
        failed, deaths = found.failed, tuple(islice(found.deaths, SHOWN_DEATHS))
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
        and (where.since is None or row.queued_at >= where.since)
        and (where.until is None or row.queued_at < where.until)
    )


def counts(store: MemoryTables, tenant: str | None, *, ended: bool) -> list[Count]:
    total: Counter[tuple[str, str, str, Status]] = Counter()
    for kind in store.kinds.values():
        if tenant in (None, kind.tenant):
            for status, count in kind.counts.items():
                if count and (ended or status == "dead" or status not in TERMINAL):
                    total[kind.tenant, kind.queue, kind.type, status] += count
    return [Count(*key, count) for key, count in total.items()]
