"""Dependencies: which open items wait for which others."""

from __future__ import annotations

from treadle.item import Ref, Status
from treadle.rules.submission import Dependencies, count_dependencies, is_tolerant

from .rows import Row
from .tables import MemoryTables, discard


def status_if_ended(store: MemoryTables, ref: Ref) -> Status | None:
    row = store.find(*ref)
    return None if row is None or row.ended_at is None else row.status


def waits_for(store: MemoryTables, ref: Ref) -> list[Ref]:
    """What a stored item waits for, if it is blocked."""
    row = store.find(*ref)
    if row is None or row.dependencies is None or row.status != "blocked" or row.verdict is not None:
        return []
    return [(ref[0], id) for id in row.dependencies.pending]


def start_waiting(store: MemoryTables, row: Row) -> Dependencies:
    """Register a new row with its prerequisites. Some of them may have ended already."""
    tenant = row.kind.tenant
    found = count_dependencies(row.item, lambda name: status_if_ended(store, (tenant, name)))
    row.dependencies = found
    for id in row.item.after:
        store.waiters.setdefault((tenant, id), {})[row] = None
    return found


def is_tolerated(store: MemoryTables, row: Row) -> bool:
    """Whether an item that names this one in `after` runs, or ran, although this one dies."""
    return row.ref in store.tolerant or any(map(_tolerates, store.waiters.get(row.ref, ())))


def _tolerates(row: Row) -> bool:
    return is_tolerant(row.item.counting, row.item.need, row.item.after)


def stop_waiting(store: MemoryTables, row: Row) -> None:
    """The row has ended, or is removed."""
    row.dependencies = None
    tolerant = _tolerates(row)
    for id in row.item.after:
        ref = row.kind.tenant, id
        if tolerant:
            store.tolerant.setdefault(ref, {})[row] = None
        if discard(store.waiters, ref, row):
            _prune_unawaited(store, store.find(*ref))


def _prune_unawaited(store: MemoryTables, row: Row | None) -> None:
    # It would have been pruned before, had no item waited for it.
    if row is not None and row.prune_pending:
        row.prune_pending = False
        store.retention.add(row, 0.0)
