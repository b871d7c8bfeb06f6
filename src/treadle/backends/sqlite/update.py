"""update: change items that have not started, by an operator or by a submit with the same key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import UNSET

from treadle.errors import NotFound, NotUpdatable
from treadle.item import Changed, Item, ItemUpdate, Ref
from treadle.store.rules.submission import changers
from treadle.store.rules.times import changed_due_at, deadline_at

from .rows import BLOCKED, READY, SCHEDULED, decode_ids, numbers, states
from .statements import Tx, array, statements

_SQL = statements("update")


class UnstartedItem(NamedTuple):
    no: int
    status: int
    queued_at: float
    queue: str
    lane: str
    priority: int
    due: float
    deadline: float | None


def update(tx: Tx, ids: Sequence[str], changes: ItemUpdate, tenant: str | None) -> Changed:
    by_id = numbers(tx, ids, tenant)
    before = states(tx, by_id.values())
    found = _unstarted(tx, by_id.values())
    for id in ids:
        if id not in by_id:
            raise NotFound(id)
        if by_id[id] not in found:
            raise NotUpdatable(id, before[by_id[id]].status)
    for no in dict.fromkeys(by_id[id] for id in ids):
        _update(tx, found[no], changes)
    return Changed(tuple(before[no] for no in dict.fromkeys(by_id[id] for id in ids)))


def _unstarted(tx: Tx, nos: Iterable[int]) -> dict[int, UnstartedItem]:
    return {row[0]: UnstartedItem._make(row) for row in tx.rows(_SQL["unstarted"], array(nos))}


def _update(tx: Tx, item: UnstartedItem, changes: ItemUpdate) -> None:
    changed = item._replace(
        queue=item.queue if changes.queue is UNSET else changes.queue,
        lane=item.lane if changes.lane is UNSET else changes.lane,
        priority=item.priority if changes.priority is UNSET else changes.priority,
        due=item.due if changes.run_at is UNSET else changes.run_at,
        deadline=item.deadline if changes.deadline is UNSET else changes.deadline,
    )
    if changed._replace(deadline=item.deadline) == item:
        tx.run(_SQL["set_deadline"], changed.deadline, item.no)
        return
    tx.run(_SQL["update_item"], changed.queue, changed.lane, changed.priority, item.no)
    _move(tx, changed)


def take_over(tx: Tx, changes: Mapping[Ref, Item]) -> None:
    """Let the items that hold keys take over what new items have."""
    for (tenant, id), new in changes.items():
        found = _unstarted(tx, numbers(tx, [id], tenant).values())
        for item in found.values():
            keep = (new.keep, new.keep_dead)
            columns = (new.queue, new.lane, new.priority, new.attempts, *keep, new.options, new.input)
            tx.run(_SQL["take_over"], *columns, item.no)
            _move(
                tx,
                item._replace(
                    queue=new.queue,
                    lane=new.lane,
                    priority=new.priority,
                    due=changed_due_at(new, item.queued_at, tx.now),
                    deadline=deadline_at(new, tx.now),
                ),
            )
            _record_change(tx, (new.key, tenant, new.type), new.id)


def _move(tx: Tx, item: UnstartedItem) -> None:
    """Write where it waits now, at the end of its line. A blocked item stays blocked."""
    status, seq, since = item.status, 0, None
    if status != BLOCKED and item.due > tx.now:
        status = SCHEDULED
    elif status != BLOCKED:
        status, seq, since = READY, tx.numbers(seq=1).seq, tx.now
    place = (item.queue, item.lane, -item.priority)
    tx.run(_SQL["update_open"], status, *place, item.due, item.deadline, seq, since, item.no)


def _record_change(tx: Tx, key: tuple[str | None, str, str], new: str) -> None:
    before: str | None = tx.value(_SQL["changed_by"], *key)
    tx.run(_SQL["set_changed_by"], array(changers(decode_ids(before), new)), *key)
