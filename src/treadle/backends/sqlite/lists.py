"""Lists: items by filter, page by page.

A list walks along the narrowest table that holds all items asked for, in the order of their numbers. With a
`reach`, the number is looked up first at which the walk ends: then it is a constant for all tables that are
read. Where an index finds the items of a group, workflow or key, and they are no more than that, the walk is
along this index.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias

from treadle.item import MOST_COUNTED, Filter, GroupFilter, GroupSummary, ItemState, Page
from treadle.store.rules.listing import (
    DISORDER,
    OUTCOMES,
    GroupsPlan,
    ListPlan,
    Source,
    WalkEnd,
    outcome_of,
    plan_groups,
    plan_list,
)

from .read import first_death, root
from .rows import codes, full_states, states
from .statements import Row, Tx, array, statements

_LIST = statements("list")

_Table: TypeAlias = Literal["all", "open", "leased", "killing", "dead", "success", "cancelled"]
"""What a listing reads: all items, the open ones, those with a lease, those that end workers, or those that
ended in one way."""
_TABLES: dict[Source, _Table] = {
    "group": "all",
    "key": "all",
    "workflow": "all",
    "mark": "dead",
    "killing": "killing",
    "dead": "dead",
    "success": "success",
    "cancelled": "cancelled",
    "running": "leased",
    "open": "open",
    "all": "all",
}
_NEAR = 1000
_INDEXED = ("group_id", "workflow", "key")
"""Fields of a filter that an index of all items has."""
_Part: TypeAlias = tuple[str, tuple[Any, ...]]
"""A part of a statement, and its parameters."""


def list_items(
    tx: Tx,
    where: Filter,
    limit: int,
    cursor: str | None,
    *,
    oldest_first: bool,
    history: bool,
    reach: int | None = None,
) -> Page:
    plan = plan_list("sqlite", where, limit=limit, cursor=cursor, oldest_first=oldest_first)
    found, end = _numbers_within(tx, plan, reach)
    shown = found[: plan.most]
    read = full_states(tx, shown) if history else states(tx, shown)
    return plan.page(found, list(read.values()), end)


def _numbers_within(tx: Tx, plan: ListPlan, reach: int | None) -> tuple[list[int], WalkEnd | None]:
    """The numbers of the first items that a plan finds. With a reach, and if it was too short for a page:
    where the walk ended. To find that end takes time too, so a near one is tried first."""
    limit = plan.most + 1
    query = SqliteListQuery(tx, plan)
    if reach is None:
        return query.numbers(limit), None
    end = query.stop_after(max(1, min(reach, _NEAR)))
    found = query.numbers(limit)
    if end is not None and len(found) < limit and reach > _NEAR:
        end = query.stop_after(reach)
        found = query.numbers(limit)
    return found, end


def oldest_numbers(tx: Tx, where: Filter, limit: int, *, redrives: int | None = None) -> list[int]:
    """The numbers of the oldest items that a filter finds, in order. `redrives`: only those with fewer
    redrives."""
    plan = plan_list("sqlite", where, limit=limit, oldest_first=True)
    return SqliteListQuery(tx, plan, redrives=redrives).numbers(limit)


class SqliteListQuery:
    """A plan as a statement that reads the numbers of its items, in order."""

    def __init__(self, tx: Tx, plan: ListPlan, *, redrives: int | None = None) -> None:
        self._tx = tx
        self._plan = plan
        self._where = plan.where
        self._table: _Table | None = plan.narrowest(_TABLES)
        self._prefix = "ended_" if self._table in ("success", "cancelled") else ""
        self._after, self._before = self._bounds()
        """The numbers between which the items are."""
        self._end: int | None = None
        """The last number that is looked at."""
        self._conditions = [] if self._table is None else list(_conditions(tx, plan, self._table))
        if redrives is not None:
            self._conditions.append((_LIST["redrives"], (redrives,)))

    def numbers(self, limit: int) -> list[int]:
        if self._table is None:
            return []
        parts = [(_LIST[f"from_{self._table}"], ()), *self._conditions, *self._range(), self._order(limit)]
        return [no for (no,) in self._rows(parts)]

    def stop_after(self, reach: int) -> WalkEnd | None:
        """Look at no more items than that. Returns the last of these. None: there are no others."""
        self._end = None
        if self._table is None or not (self._conditions or self._table == "success"):
            return None
        index = self._small_index(reach)
        self._conditions = list(_conditions(self._tx, self._plan, self._table, index))
        if index is not None or self._is_small_table(reach):
            return None
        walk: _Part = (_LIST["walk_mark"], (self._where.mark,))
        if self._where.mark is None or self._table != "dead":
            walk = (_LIST[f"walk_{self._table}"], ())
        text, (limit,) = self._order(2)
        found = self._rows([walk, *self._range(), (f"{text} OFFSET ?", (limit, reach - 1))])
        if len(found) < 2:
            return None
        last: int = found[0][0]
        self._end = last
        return WalkEnd(last, self._tx.value(_LIST["queued_at"], last))

    def _is_small_table(self, reach: int) -> bool:
        return self._table == "leased" and self._tx.value(_LIST["count_leased"], reach + 1) <= reach

    def _small_index(self, reach: int) -> str | None:
        """The field whose index finds all items that have to be looked at, and at most `reach`."""
        for name in _INDEXED:
            value = getattr(self._where, name)
            if value is not None:
                if name == "group_id":
                    value = root(self._tx, value, self._where.tenant)
                if self._tx.value(_LIST[f"count_{name}"], value, reach + 1) <= reach:
                    return name
        return None

    def _bounds(self) -> tuple[int | None, int | None]:
        """SQLite uses one bound on each side: so there is only the narrowest."""
        after, before, since, until = self._plan.bounds
        if since is not None:
            first = _first_since(self._tx, since) - 1
            after = first if after is None else max(after, first)
        if until is not None:
            last = _first_since(self._tx, until)
            before = last if before is None else min(before, last)
        return after, before

    def _range(self) -> Iterator[_Part]:
        after, before = self._after, self._before
        if self._end is not None and self._plan.oldest_first:
            before = self._end + 1
        elif self._end is not None:
            after = self._end - 1
        if after is not None:
            yield _LIST[f"{self._prefix}newer"], (after,)
        if before is not None:
            yield _LIST[f"{self._prefix}older"], (before,)

    def _order(self, limit: int) -> _Part:
        direction = "oldest_first" if self._plan.oldest_first else "newest_first"
        return _LIST[f"{self._prefix}{direction}"], (limit,)

    def _rows(self, parts: list[_Part]) -> list[Row]:
        sql = "\n".join(text for text, _ in parts)
        return self._tx.rows(sql, *(value for _, values in parts for value in values))


def _first_since(tx: Tx, at: float) -> int:
    """The number from which on items were submitted at this time or later, found by halving."""
    low, high = 1, 1 + (tx.value(_LIST["last_number"]) or 0)
    while low < high:
        middle = (low + high) // 2
        no, queued_at = tx.rows(_LIST["next_number"], middle)[0]
        if queued_at >= at:
            high = middle
        else:
            low = no + 1
    return low


def _conditions(tx: Tx, plan: ListPlan, table: _Table, index: str | None = "any") -> Iterator[_Part]:
    """The conditions of a plan, each with its parameters. The narrow tables have columns of their own; what
    they lack is read from the item. `index`: the only one of `_INDEXED` whose index may be used, or any."""
    wide = "all_" if table not in ("open", "leased", "killing", "dead") else ""
    for name, value in plan.conditions.items():
        is_indexed = name not in _INDEXED or index in ("any", name)
        match name:
            case "group_id":
                no = root(tx, value, plan.where.tenant)
                yield (_LIST["group"], (no, no)) if is_indexed else (_LIST["unindexed_group"], (no,))
            case "failed_group":
                yield _LIST["failed_group"], ()
            case "killing":
                if table == "all":
                    yield _LIST["all_killing"], ()
            case "held":
                yield _LIST[f"{wide}held"], ()
            case _:
                part = f"unindexed_{name}" if not is_indexed else f"{wide}{name}"
                yield _LIST[part if part in _LIST else name], (value,)
    if plan.where.status and table in ("all", "open", "leased", "killing"):
        yield _LIST["all_status" if table == "all" else "open_status"], (array(codes(plan.where.status)),)


# -- groups and workflows ------------------------------------------------------------------------------

_LAST: Final = 2**63 - 1
_ROOTS: Final = 200
"""Roots of workflows that one statement reads."""


def list_groups(
    tx: Tx, where: GroupFilter, limit: int, cursor: str | None, reach: int | None
) -> Page[GroupSummary]:
    plan = plan_groups("sqlite", "groups", where, limit=limit, cursor=cursor, reach=reach)
    first, before = _between(tx, plan)
    codes, end = [OUTCOMES.index(each) for each in plan.outcomes], None
    if plan.reach is not None:
        between = before, first, plan.reach + 1
        walked = [no for code in codes for (no,) in tx.rows(_LIST["walk_groups"], code, *between)]
        if len(walked) > plan.reach:
            first = sorted(walked, reverse=True)[plan.reach - 1]
            end = WalkEnd(first, tx.value(_LIST["queued_at"], first) or 0.0)
    checked = where.tenant, where.type, where.since, where.until
    rows: list[tuple[Any, ...]] = [
        (*row, code)
        for code in codes
        for row in tx.rows(_LIST["groups"], code, before, first, plan.most + 1, *checked)
    ]
    rows.sort(reverse=True)
    return plan.page([(row[0], _group_summary(tx, row)) for row in rows[: plan.most + 1]], end)


def _between(tx: Tx, plan: GroupsPlan) -> tuple[int, int]:
    """The first number, and the one after the last."""
    since, until = plan.where.since, plan.where.until
    first = 0 if since is None else _first_since(tx, since - DISORDER)
    last = _LAST if until is None else _first_since(tx, until + DISORDER)
    return first, last if plan.before is None else min(last, plan.before)


def _group_summary(tx: Tx, row: Row) -> GroupSummary:
    no, id, tenant, type, open, total, failed, queued_at, ended_at, code = row
    outcome = OUTCOMES[int(code)]
    return GroupSummary(
        id=id,
        tenant=tenant,
        type=type,
        outcome=outcome,
        open=open,
        total=total,
        failed=failed,
        queued_at=queued_at,
        ended_at=ended_at,
        death=first_death(tx, no) if failed else None,
    )


def list_workflows(
    tx: Tx, where: GroupFilter, limit: int, cursor: str | None, reach: int | None
) -> Page[GroupSummary]:
    plan = plan_groups("sqlite", "workflows", where, limit=limit, cursor=cursor, reach=reach)
    first, before = _between(tx, plan)
    found: list[tuple[int, GroupSummary]] = []
    looked, last = 0, None
    while rows := tx.rows(_LIST["workflow_roots"], before, first, _ROOTS):
        for no, name, tenant, type, queued_at, is_older in rows:
            if len(found) > plan.most or looked == plan.reach:
                return plan.page(found, last)
            looked, last = looked + 1, WalkEnd(no, queued_at)
            if not is_older and plan.takes(tenant, type, queued_at):
                summary = _workflow_summary(tx, name, tenant, type)
                if summary.outcome in plan.outcomes:
                    found.append((no, summary))
        before = rows[-1][0]
    return plan.page(found)


def _workflow_summary(tx: Tx, name: str, tenant: str, type: str) -> GroupSummary:
    (counts,) = tx.rows(_LIST["newest_of_workflow"], name, tenant, MOST_COUNTED)
    total, open, failed, cancelled, first, ended_at = counts
    has_more = total == MOST_COUNTED and tx.value(_LIST["workflow_has_more"], name, tenant, first)
    death: ItemState | None = None
    if failed:
        no: int = tx.value(_LIST["workflow_death"], name, tenant, first)
        death = states(tx, [no])[no]
    return GroupSummary(
        id=name,
        tenant=tenant,
        type=type,
        outcome=outcome_of(open, failed, cancelled),
        open=open,
        total=total,
        failed=failed,
        queued_at=tx.value(_LIST["queued_at"], first),
        ended_at=None if open else ended_at,
        death=death,
        capped=bool(has_more),
    )
