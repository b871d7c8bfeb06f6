"""Operator verbs: cancel, complete, requeue, trigger, delete, pause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from treadle.errors import AlreadyEnded, NotFound, NotTriggerable, ReferencedError
from treadle.item import Changed, Contribution, Filter, ItemState
from treadle.rules.settlement import contributed, redrive, shortest_keep

from .endings import EndingBatch, OpenItem, open_items
from .groups import SqliteGroups
from .read import numbers_where, root
from .retention import remove
from .rows import numbers, states
from .statements import NULL, Row, Tx, array, statements
from .status_codes import CANCELLED, READY, SCHEDULED, STATUS, SUCCESS

_SQL = statements("operate")


def _shown(tx: Tx, nos: Iterable[int]) -> tuple[ItemState, ...]:
    return tuple(states(tx, nos).values())


# -- ending --------------------------------------------------------------------------------------------


def cancel(tx: Tx, ids: Sequence[str], tenant: str | None) -> Changed:
    found = open_items(tx, _with_descendants(tx, numbers(tx, ids, tenant).values()))
    before = _shown(tx, found)
    endings = EndingBatch(tx)
    endings.groups.load(item.group for item in found.values() if item.group is not None)
    for item in found.values():
        endings.end(item, CANCELLED)
    return Changed(before, endings.effects())


def _with_descendants(tx: Tx, nos: Iterable[int]) -> list[int]:
    found = dict.fromkeys(nos)
    new = list(found)
    while new:
        new = [no for (no,) in tx.rows(_SQL["children"], array(new)) if no not in found]
        found.update(dict.fromkeys(new))
    return list(found)


def complete(tx: Tx, id: str, result: bytes | None, tenant: str | None) -> Changed:
    no = numbers(tx, [id], tenant).get(id)
    if no is None:
        raise NotFound(id)
    item = open_items(tx, [no]).get(no)
    if item is None:
        raise AlreadyEnded(id, STATUS[tx.value(_SQL["outcome"], no)])
    before = _shown(tx, [no])
    endings = EndingBatch(tx)
    _complete(endings, item, result)
    return Changed(before, endings.effects())


def _complete(endings: EndingBatch, item: OpenItem, result: bytes | None) -> None:
    if item.group is None:
        endings.end(item, SUCCESS, result=result, contributed=item.contributes)
        return
    group = endings.groups.get(item.group)
    if item.contributes and not group.final:
        group.set_value(contributed(Contribution(), result, group.version))
    endings.end(item, SUCCESS, result=result)


# -- running again -------------------------------------------------------------------------------------


def requeue(
    tx: Tx,
    where: Sequence[str] | Filter,
    tenant: str | None,
    limit: int,
    redrives: int | None,
    backoff: float,
) -> Changed:
    if isinstance(where, Filter):
        nos = _dead_where(tx, where, tenant, limit, redrives)
    else:
        nos = list(numbers(tx, where, tenant).values())
    rows = tx.rows(_SQL["dead"], array(nos))
    if redrives is not None:
        rows = [row for row in rows if row[1] < redrives]
    if not rows:
        return Changed(())
    before = _shown(tx, [row[0] for row in rows])
    first = tx.numbers(seq=len(rows)).seq
    open_rows = [_requeued(row, tx.now, first + place, redrives, backoff) for place, row in enumerate(rows)]
    tx.run_rows(_SQL["requeue"], open_rows)
    tx.run(_SQL["delete_done"], array(row[0] for row in rows))
    _reopen(tx, rows)
    return Changed(before)


def _dead_where(tx: Tx, where: Filter, tenant: str | None, limit: int, redrives: int | None) -> list[int]:
    if where.status and "dead" not in where.status:
        return []
    if tenant is not None and where.tenant not in (None, tenant):
        return []
    narrowed = replace(where, status=("dead",), tenant=where.tenant if tenant is None else tenant)
    return numbers_where(tx, narrowed, limit, redrives=redrives)


def _requeued(row: Row, now: float, seq: int, most: int | None, backoff: float) -> tuple[Any, ...]:
    """(no, status, seq, due, ready_since, redrives)"""
    redrives, delay = redrive(row[1], most, backoff)
    if delay > 0:
        return row[0], SCHEDULED, 0, now + delay, NULL, redrives
    return row[0], READY, seq, now, now, redrives


def _reopen(tx: Tx, rows: Sequence[Row]) -> None:
    groups = SqliteGroups(tx)
    for _, _, keep, keep_dead, no in rows:
        if no is not None:
            group = groups.get(no)
            group.failed -= 1
            group.add(1, shortest_keep(keep, keep_dead))
    groups.write()


def trigger(tx: Tx, ids: Sequence[str], tenant: str | None) -> Changed:
    by_id = numbers(tx, ids, tenant)
    before = states(tx, by_id.values())
    for id in ids:
        if id not in by_id:
            raise NotFound(id)
        status = before[by_id[id]].status
        if status != "scheduled":
            raise NotTriggerable(id, status)
    nos = list(dict.fromkeys(by_id[id] for id in ids))
    first = tx.numbers(seq=len(nos)).seq
    tx.run(_SQL["trigger"], tx.now, tx.now, first, array(nos))
    return Changed(tuple(before.values()))


# -- removing ------------------------------------------------------------------------------------------


def delete(tx: Tx, group_ids: Sequence[str], tenant: str | None, *, cascade: bool) -> Changed:
    groups = {no for no in (root(tx, id, tenant) for id in group_ids) if no is not None}
    members = _members(tx, groups)
    new = members
    while cascade and new:
        more = {no for (no,) in tx.rows(_SQL["prerequisite_groups"], array(new))} - groups
        groups |= more
        new = _members(tx, more)
        members += new
    _check_references(tx, members)
    before = _shown(tx, sorted(members))
    remove(tx, members)
    return Changed(before)


def _members(tx: Tx, groups: Iterable[int]) -> list[int]:
    wanted = array(groups)
    return [no for name in ("roots", "members") for (no,) in tx.rows(_SQL[name], wanted)]


def _check_references(tx: Tx, members: Sequence[int]) -> None:
    """Refuse to delete items that open items outside depend on. Ended items have no dependencies."""
    deleted = set(members)
    rows = tx.rows(_SQL["references"], array(members))
    references = [(id, dependent_id) for id, dependent_id, dependent in rows if dependent not in deleted]
    if references:
        raise ReferencedError(references)


# -- pausing -------------------------------------------------------------------------------------------


def pause(tx: Tx, queue: str, tenant: str | None, *, paused: bool) -> None:
    tx.run(_SQL["pause" if paused else "resume"], queue, tenant or "")


def paused(tx: Tx) -> list[tuple[str, str | None]]:
    return [(queue, tenant or None) for queue, tenant in tx.rows(_SQL["paused"])]
