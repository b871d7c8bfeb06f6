"""Update: change items that have not started, by an operator or by a submit with the same key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from treadle.errors import NotFound, NotUpdatable
from treadle.item import Changed, Item, ItemUpdate, Ref
from treadle.store.rules.submission import changed_item, changers
from treadle.store.rules.times import changed_due_at, deadline_at

from .read import item_state
from .rows import Row
from .tables import MemoryTables
from .transitions import leave_container, unwatch_deadline, wait, watch_deadline


def update(
    store: MemoryTables, ids: Sequence[str], changes: ItemUpdate, tenant: str | None, now: float
) -> Changed:
    rows = [_unstarted(store, id, tenant) for id in dict.fromkeys(ids)]
    before = tuple(item_state(row) for row in rows)
    for row in rows:
        item = replace(
            row.item,
            priority=row.item.priority if changes.priority is UNSET else changes.priority,
            lane=row.item.lane if changes.lane is UNSET else changes.lane,
            queue=row.item.queue if changes.queue is UNSET else changes.queue,
        )
        due = row.due_at if changes.run_at is UNSET else changes.run_at
        if item != row.item or due != row.due_at:
            move(store, row, item, due, now)
        if changes.deadline is not UNSET:
            set_deadline(store, row, changes.deadline)
    return Changed(before)


def _unstarted(store: MemoryTables, id: str, tenant: str | None) -> Row:
    row = store.find(tenant, id)
    if row is None:
        raise NotFound(id)
    if not row.unstarted:
        raise NotUpdatable(id, row.status)
    return row


def take_over(store: MemoryTables, changes: Iterable[tuple[Ref, Item]], now: float) -> None:
    """Let the items that hold keys take over what new items have."""
    for ref, new in changes:
        row = store.find(*ref)
        if row is not None and row.unstarted:
            move(store, row, changed_item(row.item, new), changed_due_at(new, row.queued_at, now), now)
            set_deadline(store, row, deadline_at(new, now))
            row.changed_by = changers(row.changed_by, new.id)


def move(store: MemoryTables, row: Row, item: Item, due: float, now: float) -> None:
    """Give a row that has not started other data, and its place at the end of its new line. A blocked one
    stays blocked. It holds no lane any more."""
    leave_container(row)
    store.strict_lanes.free(row)
    before, row.item = row.kind, item
    row.kind = store.kind(item)
    if row.kind is not before:
        before.counts[row.status] -= 1
        row.kind.counts[row.status] += 1
        if not any(before.counts.values()):
            store.drop_kind(before)
    row.due_at = due
    row.place = 0
    if row.status != "blocked":
        wait(store, row, now)


def set_deadline(store: MemoryTables, row: Row, deadline: float | None) -> None:
    unwatch_deadline(store, row)
    row.deadline = None
    if deadline is not None:
        watch_deadline(store, row, deadline)
