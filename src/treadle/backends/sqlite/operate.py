"""What operators do: cancel, complete, requeue, trigger, delete, pause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from treadle.errors import AlreadyEnded, NotFound, NotTriggerable, ReferencedError
from treadle.item import Changed, Filter, ItemState

from .codes import CANCELLED, READY, SCHEDULED, STATUS, SUCCESS
from .finish import Finish, Live, live
from .groups import Groups
from .listing import numbers_where
from .read import root
from .remove import remove
from .rows import numbers, states
from .statements import Statements
from .tx import NULL, Row, Tx, array

_SQL = Statements("operate")


def _shown(tx: Tx, nos: Iterable[int]) -> tuple[ItemState, ...]:
    return tuple(states(tx, nos).values())


# -- ending --------------------------------------------------------------------------------------------


def cancel(tx: Tx, ids: Sequence[str], tenant: str | None) -> Changed:
    found = live(tx, _with_descendants(tx, numbers(tx, ids, tenant).values()))
    before = _shown(tx, found)
    finish = Finish(tx)
    finish.groups.load(item.group for item in found.values() if item.group is not None)
    for item in found.values():
        finish.end(item, CANCELLED)
    return Changed(before, finish.effects())


def _with_descendants(tx: Tx, nos: Iterable[int]) -> list[int]:
    found = dict.fromkeys(nos)
    fresh = list(found)
    while fresh:
        fresh = [no for (no,) in tx.rows(_SQL["children"], array(fresh)) if no not in found]
        found.update(dict.fromkeys(fresh))
    return list(found)


def complete(tx: Tx, id: str, result: bytes | None, tenant: str | None) -> Changed:
    no = numbers(tx, [id], tenant).get(id)
    if no is None:
        raise NotFound(id)
    item = live(tx, [no]).get(no)
    if item is None:
        raise AlreadyEnded(id, STATUS[tx.value(_SQL["outcome"], no)])
    before = _shown(tx, [no])
    finish = Finish(tx)
    _complete(finish, item, result)
    return Changed(before, finish.effects())


def _complete(finish: Finish, item: Live, result: bytes | None) -> None:
    if item.group is None:
        finish.end_alone(item, SUCCESS, None, result, None, None, gave=1)
    else:
        finish.groups.of(item.group).contribute(result, final=False)
        finish.end(item, SUCCESS, result=result)


# -- again ---------------------------------------------------------------------------------------------


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
    again = redrives is not None
    jobs = [_requeued(row, tx.now, first + place, again, backoff) for place, row in enumerate(rows)]
    tx.run_rows(_SQL["requeue"], jobs)
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


def _requeued(row: Row, now: float, seq: int, again: bool, backoff: float) -> tuple[Any, ...]:
    """(no, status, seq, due, since, redrives)"""
    no, times = row[0], row[1]
    due = now + backoff * 2.0**times if again else now
    if due > now:
        return no, SCHEDULED, 0, due, NULL, times + 1
    return no, READY, seq, now, now, times + 1 if again else 0


def _reopen(tx: Tx, rows: Sequence[Row]) -> None:
    groups = Groups(tx)
    for _, _, keep, keep_dead, no in rows:
        if no is not None:
            group = groups.of(no)
            group.failed -= 1
            group.add(1, keep if keep_dead is None else min(keep, keep_dead))
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
    fresh = members
    while cascade and fresh:
        waited = {no for (no,) in tx.rows(_SQL["waited_groups"], array(fresh))} - groups
        groups |= waited
        fresh = _members(tx, waited)
        members += fresh
    _check_references(tx, members)
    before = _shown(tx, sorted(members))
    remove(tx, members)
    return Changed(before)


def _members(tx: Tx, groups: Iterable[int]) -> list[int]:
    wanted = array(groups)
    return [no for name in ("existing", "members") for (no,) in tx.rows(_SQL[name], wanted)]


def _check_references(tx: Tx, members: Sequence[int]) -> None:
    """Edges are there as long as whoever waits is open."""
    inside = set(members)
    rows = tx.rows(_SQL["references"], array(members))
    outside = [(id, waiter) for id, waiter, dst in rows if dst not in inside]
    if outside:
        raise ReferencedError(outside)


# -- pausing -------------------------------------------------------------------------------------------


def pause(tx: Tx, queue: str, tenant: str | None, *, paused: bool) -> None:
    tx.run(_SQL["pause" if paused else "resume"], queue, tenant or "")


def paused(tx: Tx) -> list[tuple[str, str | None]]:
    return [(queue, tenant or None) for queue, tenant in tx.rows(_SQL["paused"])]
