"""Reads: items, groups, what has ended, counts, and lists by filter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

from treadle.errors import InputError
from treadle.item import OPEN, Count, Ended, Filter, GroupState, ItemState, Page, Ref
from treadle.rules.settlement import SHOWN_DEATHS

from .rows import full_states, numbers, states
from .statements import Tx, array, statements
from .status_codes import STATUS, codes

_SQL = statements("read")
_LIST = statements("list")

LARGEST_PAGE = 1000
Source: TypeAlias = Literal["all", "open", "dead", "success", "cancelled"]
"""What a listing reads: all items, the open ones, or those that ended in one way."""
_DISORDER = 60.0
"""Seconds by which the order of numbers and that of instants may differ."""
_CURSOR = re.compile(r"n([0-9a-f]{1,15})")


def get(tx: Tx, ids: Sequence[str], tenant: str | None) -> list[ItemState | None]:
    by_id = numbers(tx, ids, tenant)
    found = full_states(tx, by_id.values())
    return [found[by_id[id]] if id in by_id else None for id in ids]


def group(tx: Tx, ids: Sequence[str], tenant: str | None) -> list[GroupState | None]:
    roots = {id: root(tx, id, tenant) for id in ids}
    found = {id: _group(tx, no) for id, no in roots.items() if no is not None}
    return [found.get(id) for id in ids]


def ended(tx: Tx, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
    found = _look_up(tx, "ended_items", items)
    shown = full_states(tx, [no for no, has_ended in found.values() if has_ended])
    roots = _look_up(tx, "ended_groups", groups)
    for tenant, id in set(groups) - roots.keys():
        no = tx.value(_SQL["group_without_root"], id, tenant)
        if no is not None:
            roots[tenant, id] = no, True
    states_of = {ref: _group(tx, no) for ref, (no, has_ended) in roots.items() if has_ended}
    return Ended(
        {ref: shown[no] for ref, (no, has_ended) in found.items() if has_ended},
        {ref: state for ref, state in states_of.items() if state.ended_at is not None},
        frozenset((set(items) - found.keys()) | (set(groups) - roots.keys())),
    )


def _look_up(tx: Tx, name: str, refs: Sequence[Ref]) -> dict[Ref, tuple[int, bool]]:
    """The number of each, and whether it has ended."""
    found = tx.rows_of(_SQL[name], refs)
    return {(tenant, id): (no, bool(has_ended)) for tenant, (id, no, has_ended) in found}


def counts(tx: Tx, tenant: str | None, *, with_ended: bool) -> list[Count]:
    found: Counter[tuple[str, str, str, str]] = Counter()
    rows = tx.rows(_SQL["counts_open"], tenant)
    rows += tx.rows(_SQL["counts_ended" if with_ended else "counts_dead"], tenant)
    for owner, queue, type, status, count in rows:
        found[owner, queue, type, STATUS[status]] += count
    return [Count(*key, count) for key, count in sorted(found.items())]  # type: ignore[arg-type]


# -- groups --------------------------------------------------------------------------------------------


def root(tx: Tx, id: str, tenant: str | None) -> int | None:
    """The number of a group. Without a tenant: of the one that was submitted first."""
    no: int | None = (
        tx.value(_SQL["first_root"], id) if tenant is None else tx.value(_SQL["root"], id, tenant)
    )
    return tx.value(_SQL["group_without_root"], id, tenant) if no is None else no


def _group(tx: Tx, no: int) -> GroupState:
    row = tx.row(_SQL["group"], no)
    if row is not None:
        id, tenant, type, open, failed, cancelled, version, final, ended_at, value, outer = row
    else:
        # The item is alone in its group.
        id, tenant, type, open, failed, cancelled, contributed, ended_at, result = tx.rows(
            _SQL["lone_item"], no
        )[0]
        value = result if contributed else None
        version, final = 1 if contributed else 0, contributed == 3
        outer = None
    return GroupState(
        id=id,
        tenant=tenant,
        type=type,
        open=open,
        value=value,
        contributed=version > 0,
        final=bool(final),
        version=version,
        ended_at=ended_at,
        failed=failed,
        deaths=_deaths(tx, no) if failed else (),
        cancelled=_cancelled_member(tx, no) if cancelled and not open else None,
        outer=outer,
    )


def _deaths(tx: Tx, group: int) -> tuple[ItemState, ...]:
    found = states(tx, (no for (no,) in tx.rows(_SQL["deaths"], group, SHOWN_DEATHS)))
    return tuple(found.values())


def _cancelled_member(tx: Tx, group: int) -> ItemState | None:
    no = tx.value(_SQL["cancelled_member"], group, group)
    return None if no is None else states(tx, [no])[no]


# -- lists ---------------------------------------------------------------------------------------------


def list_items(
    tx: Tx, where: Filter, limit: int, cursor: str | None, *, oldest_first: bool, history: bool
) -> Page:
    """One page. The cursor is the number of its last item: items that come and go do not move it."""
    limit = max(1, min(limit, LARGEST_PAGE))
    after = None if cursor is None else _decode_cursor(cursor)
    found = numbers_where(tx, where, limit + 1, after=after, oldest_first=oldest_first)
    shown = found[:limit]
    items = full_states(tx, shown) if history else states(tx, shown)
    return Page(tuple(items.values()), f"n{shown[-1]:x}" if len(found) > limit else None)


def numbers_where(
    tx: Tx,
    where: Filter,
    limit: int,
    *,
    after: int | None = None,
    oldest_first: bool = True,
    redrives: int | None = None,
) -> list[int]:
    """The numbers of the items that a filter finds, in order. `redrives`: only those with fewer redrives."""
    source = _narrowest_source(where)
    if source is None:
        return []
    parts = list(_conditions(tx, where, source))
    if redrives is not None:
        parts.append((_LIST["redrives"], (redrives,)))
    order = "ended_" if source in ("success", "cancelled") else ""
    newer, older = _LIST[f"{order}newer"], _LIST[f"{order}older"]
    if after is not None:
        parts.append((newer if oldest_first else older, (after,)))
    if where.since is not None:
        parts.append((newer, (_first_since(tx, where.since - _DISORDER) - 1,)))
    if where.until is not None:
        parts.append((older, (_first_since(tx, where.until + _DISORDER),)))
    parts.append((_LIST[order + ("oldest_first" if oldest_first else "newest_first")], (limit,)))
    sql = "\n".join([_LIST[f"from_{source}"], *(text for text, _ in parts)])
    return [no for (no,) in tx.rows(sql, *(value for _, values in parts for value in values))]


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


def _decode_cursor(cursor: str) -> int:
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InputError.of(
            "cursor", cursor, "is not a cursor of this list: pass the one that a page returned"
        )
    return int(match[1], 16)


def _narrowest_source(where: Filter) -> Source | None:
    """The table that holds all items asked for. None: there can be none."""
    only_dead = where.mark is not None or where.reason is not None or where.failed_group
    if only_dead and where.status and "dead" not in where.status:
        return None
    if where.workflow is not None or where.group_id is not None or where.key is not None:
        return "all"
    if only_dead:
        return "dead"
    match where.status:
        case ("dead" | "success" | "cancelled" as ended,):
            return ended
        case status:
            return "open" if status and OPEN.issuperset(status) else "all"


def _conditions(tx: Tx, where: Filter, source: Source) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The conditions of a filter, each with its parameters. The narrow tables have columns of their own; what
    they lack is read from the item."""
    wide = source not in ("open", "dead")
    for name in ("tenant", "type", "queue", "workflow", "key", "reason", "since", "until", "mark"):
        value = getattr(where, name)
        if value is not None:
            yield _LIST[f"all_{name}" if wide and f"all_{name}" in _LIST else name], (value,)
    if where.status and source in ("all", "open"):
        yield _LIST[f"{source}_status"], (array(codes(where.status)),)
    if where.failed_group:
        yield _LIST["failed_group"], ()
    if where.group_id is not None:
        no = root(tx, where.group_id, where.tenant)
        yield _LIST["group"], (no, no)
