"""Read: items, groups, lists and counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from treadle.item import (
    MOST_COUNTED,
    Attempt,
    Count,
    Ended,
    Filter,
    GroupFilter,
    GroupState,
    GroupSummary,
    ItemState,
    Page,
    Ref,
)
from treadle.store.rules.listing import DISORDER, OUTCOMES, GroupsPlan, WalkEnd, plan_groups, plan_list
from treadle.store.rules.times import is_held, shown_due

from .columns import REASONS, SUCCESS, decoded, names, status_of
from .connection import PostgresVerbs, Record
from .lists import LAST_NUMBER, ListQuery
from .statements import statement, statements, text

_sql = statements("read")
_lists = statements("list")
OPEN_COUNTS: Final = statement("read", "counts", ended=text("read", "only_dead"))
ALL_COUNTS: Final = statement("read", "counts", ended=text("read", "every_outcome"))

BEFORE_ITEM: Final = 3
"""Number of columns before those of the item in a row of `ended`."""
READ_SECONDS: Final = 2.0
"""How long a read for operators may take."""


class PostgresRead(PostgresVerbs):
    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        if not ids:
            return []
        found = {row["id"]: state_of(row) for row in await self._calls.rows(_sql("get"), list(ids), tenant)}
        return [found.get(id) for id in ids]

    async def group(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[GroupState | None]:
        if not ids:
            return []
        rows = await self._calls.rows(_sql("group"), list(ids), tenant)
        found = {group.id: group for group in _groups_of(rows)}
        return [found.get(id) for id in ids]

    async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
        if not items and not groups:
            return Ended({}, {})
        rows = await self._calls.rows(_sql("ended"), *_ref_columns(items), *_ref_columns(groups))
        first = rows[0]
        missing: list[Ref] = [items[place - 1] for place in first["missing_items"] or ()]
        missing += [groups[place - 1] for place in first["missing_groups"] or ()]
        states = [state_of(row[BEFORE_ITEM:]) for row in rows if row["no"] is not None]
        ended: Iterable[GroupState] = ()
        if first["groups"]:
            ended = _groups_of(await self._calls.rows(_sql("groups"), first["groups"]))
        return Ended(
            {(state.tenant, state.id): state for state in states},
            # A group that was requeued after the first statement has not ended.
            {(group.tenant, group.id): group for group in ended if group.ended_at is not None},
            frozenset(missing),
        )

    async def list(
        self,
        where: Filter,
        *,
        limit: int = 100,
        cursor: str | None = None,
        oldest_first: bool = False,
        history: bool = False,
        reach: int | None = None,
    ) -> Page:
        plan = plan_list("postgres", where, limit=limit, cursor=cursor, oldest_first=oldest_first)
        query = ListQuery(plan, limit=plan.most + 1)
        end = None
        if reach is not None and not await self._is_small(query, max(1, reach)):
            end = await self._stop_after(query, max(1, reach))
        sql, arguments = query.bind(text("list", "list", numbers=query.text), history=history)
        rows = await self._calls.rows(sql, *arguments, within=None if reach is None else READ_SECONDS)
        rows.sort(key=lambda row: row["no"], reverse=not oldest_first)
        items = [state_of(row) for row in rows[: plan.most]]
        if not history:
            for item in items:
                item.waiting_for = ()
        return plan.page([row["no"] for row in rows], items, end)

    async def _is_small(self, query: ListQuery, reach: int) -> bool:
        """Whether an index finds what has to be looked at, and it is no more than that."""
        counting = query.counting
        if counting is None:
            return False
        sql, arguments = query.bind(counting, most=reach + 1)
        (found,) = await self._calls.rows(sql, *arguments, within=READ_SECONDS)
        return int(found[0]) <= reach

    async def _stop_after(self, query: ListQuery, reach: int) -> WalkEnd | None:
        walk = query.walk
        if walk is None:
            return None
        sql, arguments = query.bind(walk, looked_at=reach - 1)
        return query.stop_at(await self._calls.rows(sql, *arguments, within=READ_SECONDS))

    async def groups(
        self, where: GroupFilter, *, limit: int = 100, cursor: str | None = None, reach: int | None = None
    ) -> Page[GroupSummary]:
        plan = plan_groups("postgres", "groups", where, limit=limit, cursor=cursor, reach=reach)
        return await self._groups_page(plan, "groups")

    async def workflows(
        self, where: GroupFilter, *, limit: int = 100, cursor: str | None = None, reach: int | None = None
    ) -> Page[GroupSummary]:
        plan = plan_groups("postgres", "workflows", where, limit=limit, cursor=cursor, reach=reach)
        return await self._groups_page(plan, "workflows", MOST_COUNTED)

    async def _groups_page(self, plan: GroupsPlan, statement: str, *others: int) -> Page[GroupSummary]:
        where, since, until = plan.where, plan.where.since, plan.where.until
        rows = await self._calls.rows(
            _lists(statement),
            [OUTCOMES.index(outcome) for outcome in plan.outcomes],
            None if since is None else since - DISORDER,
            None if until is None else until + DISORDER,
            LAST_NUMBER if plan.before is None else plan.before,
            plan.most + 1,
            plan.reach,
            where.tenant,
            where.type,
            since,
            until,
            *others,
            within=None if plan.reach is None else READ_SECONDS,
        )
        ends = [WalkEnd(row[0], row[8] or 0.0) for row in rows if row[1] is None]
        found = sorted((row for row in rows if row[1] is not None), key=lambda row: row[0], reverse=True)
        return plan.page([(row[0], _summary_of(row)) for row in found], ends[0] if ends else None)

    async def counts(self, *, tenant: str | None = None, ended: bool = False) -> Sequence[Count]:
        rows = await self._calls.rows(ALL_COUNTS if ended else OPEN_COUNTS, tenant)
        return [
            Count(tenant, queue, type, status_of(status), count)
            for tenant, queue, type, status, count in rows
        ]


def _ref_columns(refs: Sequence[Ref]) -> tuple[str | None, str | None]:
    if not refs:
        return None, None
    return names([tenant for tenant, _ in refs], whole=True), names([id for _, id in refs], whole=True)


# -- rows as states ----------------------------------------------------------------------------------------


def state_of(row: Record | Sequence[Any]) -> ItemState:
    """The item in a row with the columns of `treadle.item_state`. By position: by name, the driver would take
    twice as long. (Fields given by name take twice as long too.)"""
    (
        _, id, tenant, type, queue, lane, priority, attempts, queued, due, deadline, claimed, ended, state,
        reason, attempt, group_id, parent, workflow, workflow_type, after, key, worker, result, input,
        options, error_type, error, waiting_for, failures, losses, *rest,
    ) = row  # fmt: skip
    item = ItemState(id=id, type=type, status=status_of(state), tenant=tenant)
    item.attempt = attempt
    item.attempts = attempts
    item.failures = failures
    item.losses = losses
    item.deferrals = rest[8]
    item.result = result
    if error_type is not None and state != SUCCESS:
        kind, message = decoded(error_type), decoded(error)
        item.error_type = kind
        item.error = f"{kind}: {message}" if message else kind
        item.release = rest[11] or ""
    if reason is not None:
        item.reason = REASONS[reason]
    item.queued_at = queued
    item.due_at = shown_due(due, ended)
    item.claimed_at = claimed
    item.started_at = rest[6]
    item.ended_at = ended
    item.deadline = deadline
    item.priority = priority
    item.lane = lane
    item.queue = queue
    item.group_id = group_id
    item.parent = parent
    item.workflow = workflow
    item.workflow_type = workflow_type
    if after:
        item.after = tuple(after)
    if waiting_for:
        item.waiting_for = tuple(waiting_for)
    item.key = key
    item.worker = worker
    item.input = input
    item.options = options
    item.mark = rest[7] or ""
    item.has_steps = rest[9]
    item.suspended = rest[10]
    item.held = ended is None and is_held(due)
    if rest[0] is not None:
        item.history = _history([*rest[:6], rest[12]])
    return item


def _history(columns: Sequence[Sequence[Any]]) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(
            attempt,
            decoded(type) or "",
            decoded(message) or "",
            decoded(traceback) or "",
            at,
            worker,
            release or "",
        )
        for attempt, type, message, traceback, at, worker, release in zip(*columns, strict=True)
    )


def _summary_of(row: Record | Sequence[Any]) -> GroupSummary:
    """The group, or the workflow, in a row of a list."""
    _, id, tenant, type, code, open, total, failed, queued, ended, capped, *death = row
    return GroupSummary(
        id=id,
        tenant=tenant,
        type=type,
        outcome=OUTCOMES[int(code)],
        open=open,
        total=total,
        failed=failed,
        queued_at=queued,
        ended_at=ended,
        death=None if death[0] is None else state_of(death),
        capped=capped,
    )


def _groups_of(rows: Sequence[Record]) -> list[GroupState]:
    """The groups in rows with the columns of `treadle.group_state`, and then those of a member that failed
    the group or was cancelled, if there is one."""
    found: dict[int, GroupState] = {}
    for row in rows:
        (
            no, id, tenant, type, open, value, contributed, final, version, ended, failed, _, _, outer,
            *member, total,
        ) = row  # fmt: skip
        group = found.get(no)
        if group is None:
            group = found[no] = GroupState(
                id=id,
                tenant=tenant,
                type=type,
                open=open,
                value=value,
                contributed=contributed,
                final=final,
                version=version,
                ended_at=ended,
                total=total,
                failed=failed,
                outer=outer,
            )
        if member[0] is not None:
            state = state_of(member)
            if state.status == "cancelled":
                group.cancelled = state
            else:
                group.deaths += (state,)
    return list(found.values())
