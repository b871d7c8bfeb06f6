"""Dependencies: which items wait for which others, and for which groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from treadle.item import GROUP_MARK, Ref, Status
from treadle.store.rules.settlement import group_status
from treadle.store.rules.submission import Dependencies, count_dependencies, is_tolerant

from .rows import MemoryGroup, Row
from .tables import MemoryTables, discard


def status_if_ended(store: MemoryTables, ref: Ref) -> Status | None:
    """How an item, or a whole group, has ended."""
    tenant, name = ref
    if name.startswith(GROUP_MARK):
        return _group_status(store.find_group(tenant, name[1:]))
    row = store.find(tenant, name)
    return None if row is None or row.ended_at is None else row.status


def _group_status(found: Row | MemoryGroup | None) -> Status | None:
    if found is None or found.ended_at is None:
        return None
    if isinstance(found, Row):
        return group_status(found.failed_group, found.status == "cancelled")
    return group_status(found.failed, found.cancellations)


def waits_for(store: MemoryTables, ref: Ref) -> list[Ref]:
    """What a stored item waits for, if it is blocked; and which blocked members a group waits for."""
    tenant, name = ref
    if name.startswith(GROUP_MARK):
        return [row.ref for row in members(store.find_group(tenant, name[1:])) if _is_blocked(row)]
    row = store.find(tenant, name)
    if row is None or row.dependencies is None or not _is_blocked(row):
        return []
    return [(tenant, id) for id in row.dependencies.pending]


def _is_blocked(row: Row) -> bool:
    return row.status == "blocked" and row.verdict is None


def members(found: Row | MemoryGroup | None) -> Iterable[Row]:
    if found is None:
        return ()
    return (found,) if isinstance(found, Row) else found.members


def start_waiting(
    store: MemoryTables, row: Row, ended: Callable[[str], Status | None] | None = None
) -> Dependencies:
    """Register an open row with its prerequisites. Some of them may have ended already: `ended` says how."""
    tenant = row.kind.tenant
    found = count_dependencies(row.item, ended or (lambda name: status_if_ended(store, (tenant, name))))
    row.dependencies = found
    for id in row.item.after:
        store.waiters.setdefault((tenant, id), {})[row] = None
    return found


def is_tolerated(store: MemoryTables, row: Row) -> bool:
    """Whether an item that names this one in `after` runs, or ran, although this one dies."""
    return row.ref in store.tolerant or any(map(tolerates, store.waiters.get(row.ref, ())))


def tolerates(row: Row) -> bool:
    return is_tolerant(row.item.counting, row.item.need, row.item.after)


def stop_waiting(store: MemoryTables, row: Row) -> None:
    """The row ends, or is removed. Its reason is set already."""
    row.dependencies = None
    tolerant, unmet = tolerates(row), row.reason == "unsatisfiable"
    for id in row.item.after:
        ref = row.kind.tenant, id
        if tolerant:
            store.tolerant.setdefault(ref, {})[row] = None
        if unmet:
            store.unmet.setdefault(ref, {})[row] = None
        if discard(store.waiters, ref, row):
            _prune_unawaited(store, ref)


def forget_waiting(store: MemoryTables, row: Row) -> None:
    """An ended row is open again, or is removed: it does not count among those that have waited."""
    for id in row.item.after:
        ref = row.kind.tenant, id
        discard(store.tolerant, ref, row)
        if discard(store.unmet, ref, row):
            _prune_unawaited(store, ref)


def is_needed(store: MemoryTables, row: Row) -> bool:
    """Whether an item waits for this one or for its group, or would wait again after a repair."""
    if not store.waiters and not store.unmet:
        return False
    names = row.ref, (row.kind.tenant, GROUP_MARK + row.group_id)
    return any(name in store.waiters or name in store.unmet for name in names)


def _prune_unawaited(store: MemoryTables, ref: Ref) -> None:
    """Prune what would have been pruned before, had no item waited for it."""
    tenant, name = ref
    if name.startswith(GROUP_MARK):
        rows = members(store.find_group(tenant, name[1:]))
    else:
        found = store.find(tenant, name)
        rows = () if found is None else (found,)
    for row in rows:
        if row.prune_pending:
            row.prune_pending = False
            store.retention.add(row, 0.0)
