"""Operate: cancel, complete, trigger, delete, pause and prune."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from treadle.errors import AlreadyEnded, NotFound, NotTriggerable, ReferencedError
from treadle.item import GROUP_MARK, Changed, Contribution, Ref
from treadle.store.rules.settlement import token_step

from .audits import prune_audits
from .dependencies import forget_waiting, is_needed, members, stop_waiting
from .endings import CollectedEffects, end_all
from .groups import contribute
from .read import item_state
from .rows import MemoryGroup, Row
from .schedules import prune_removals
from .stats import prune_stats
from .tables import MemoryTables
from .transitions import leave_container, make_ready, unwatch_deadline, withdraw


def cancel(
    store: MemoryTables, ids: Sequence[str], tenant: str | None, now: float, *, only_open: bool
) -> Changed:
    named = [row for id in ids if (row := store.find(tenant, id)) is not None]
    if only_open:
        named = [row for row in named if row.ended_at is None]
    rows = [row for row in descendants(store, named) if row.ended_at is None]
    before = tuple(item_state(row) for row in rows)
    effects = CollectedEffects()
    for row in rows:
        row.claimed_by = None
    end_all(store, rows, "cancelled", now, effects)
    return Changed(before, effects.result())


def descendants(store: MemoryTables, rows: Iterable[Row]) -> Iterator[Row]:
    """These rows and all their descendants, each once. What is in a group descends from the row that closes
    it too."""
    seen = dict.fromkeys(rows)
    stack = [*reversed(seen)]
    while stack:
        row = stack.pop()
        yield row
        closed = store.closed_group(row)
        for child in (*(row.children or ()), *members(closed)):
            if child not in seen:
                seen[child] = None
                stack.append(child)


def complete(store: MemoryTables, id: str, result: bytes | None, tenant: str | None, now: float) -> Changed:
    row = store.find(tenant, id)
    if row is None:
        raise NotFound(id)
    if row.ended_at is not None:
        raise AlreadyEnded(id, row.status)
    before = item_state(row)
    effects = CollectedEffects()
    row.claimed_by = None
    row.result = result
    if row.item.contributes:
        store.token += token_step(1, store.random_bits)
        contribute(store, row, Contribution(), store.token)
    end_all(store, [row], "success", now, effects)
    return Changed((before,), effects.result())


def trigger(store: MemoryTables, ids: Sequence[str], tenant: str | None, now: float) -> Changed:
    rows = [_scheduled(store, id, tenant) for id in dict.fromkeys(ids)]
    before = tuple(item_state(row) for row in rows)
    for row in rows:
        row.due_at = now
        if row.verdict is None:
            leave_container(row)
            make_ready(store, row, now)
    return Changed(before)


def _scheduled(store: MemoryTables, id: str, tenant: str | None) -> Row:
    row = store.find(tenant, id)
    if row is None:
        raise NotFound(id)
    if row.status != "scheduled":
        raise NotTriggerable(id, row.status)
    return row


def delete(store: MemoryTables, group_ids: Sequence[str], tenant: str | None, *, cascade: bool) -> Changed:
    rows: dict[Row, None] = {}
    for id in group_ids:
        found = store.find_group(tenant, id)
        if found is not None:
            rows.update(dict.fromkeys(group_rows(found)))
    if cascade:
        _add_prerequisites(store, rows)
    references = [
        (name.removeprefix(GROUP_MARK), waiter.item.id)
        for tenant, name in _names(rows)
        for waiter in store.waiters.get((tenant, name), ())
        if waiter not in rows
    ]
    if references:
        raise ReferencedError(references)
    before = tuple(item_state(row) for row in rows)
    _remove_all(store, rows)
    return Changed(before)


def group_rows(found: Row | MemoryGroup) -> Iterator[Row]:
    """The members of a group, and of the groups in it."""
    stack = [found]
    while stack:
        group = stack.pop()
        yield from members(group)
        if isinstance(group, MemoryGroup):
            stack += group.nested


def _names(rows: Iterable[Row]) -> dict[Ref, None]:
    """The names by which other items wait for these rows, or for their groups."""
    names: dict[Ref, None] = {}
    for row in rows:
        tenant = row.kind.tenant
        names[row.ref] = names[tenant, GROUP_MARK + row.group_id] = None
        if row.item.closes_group:
            names[tenant, GROUP_MARK + row.item.id] = None
    return names


def _add_prerequisites(store: MemoryTables, rows: dict[Row, None]) -> None:
    """Add the groups of all prerequisites of these rows, and of their prerequisites in turn."""
    stack = list(rows)
    while stack:
        row = stack.pop()
        for name in row.item.after:
            found = [other for other in _group_named(store, row.kind.tenant, name) if other not in rows]
            rows.update(dict.fromkeys(found))
            stack += found


def _group_named(store: MemoryTables, tenant: str, name: str) -> Iterable[Row]:
    """The rows of the group with this name, or of the group that the item with this name is in."""
    if name.startswith(GROUP_MARK):
        group = store.find_group(tenant, name[1:])
    else:
        row = store.find(tenant, name)
        group = row if row is None or row.group is None else row.group
    return () if group is None else group_rows(group)


def _remove_all(store: MemoryTables, rows: Iterable[Row]) -> None:
    """Remove rows in any state. No other row may wait for them."""
    for row in rows:
        if row.ended_at is None:
            withdraw(store, row)
            unwatch_deadline(store, row)
            if row.dependencies is not None:
                stop_waiting(store, row)
    for row in rows:
        leave_container(row)
        _delete(store, row)


def _delete(store: MemoryTables, row: Row) -> None:
    forget_waiting(store, row)
    store.delete(row)


def pause(store: MemoryTables, queue: str, tenant: str | None, *, paused: bool) -> bool:
    """Whether something was changed."""
    if paused == ((queue, tenant) in store.paused):
        return False
    if paused:
        store.paused.add((queue, tenant))
    else:
        store.paused.discard((queue, tenant))
    for items in (store.ready, *store.parked.values()):
        items.pause(queue, tenant, paused)
    return True


def prune(store: MemoryTables, limit: int, now: float) -> int:
    removed = 0
    while removed < limit and (row := store.retention.pop_until(now)) is not None:
        if may_prune(store, row, now):
            _delete(store, row)
            removed += 1
    store.limits.prune(now, limit)
    prune_stats(store, now)
    prune_audits(store, limit, now)
    prune_removals(store, now)
    _forget_types(store)
    return removed


def may_prune(store: MemoryTables, row: Row, now: float) -> bool:
    """Whether a row is to be pruned now. If not, it comes up again when its group ends, or when no item waits
    for it any more."""
    if row.group is not None and not kept_long_enough(row, row.group, now):
        return False
    if is_needed(store, row):
        row.prune_pending = True
        return False
    return True


def kept_long_enough(row: Row, group: MemoryGroup, now: float) -> bool:
    """Whether its group, and all around it, ended long enough ago. The group may have opened again since the
    row was added to the retention."""
    since = group.kept_since
    return since is not None and row.keep is not None and since + row.keep <= now


def _forget_types(store: MemoryTables) -> None:
    """Forget what is known of types of which no item is stored."""
    for type in [type for type in store.unknown_since if type not in store.types]:
        if type is not None or not store.types:
            del store.unknown_since[type]
    for type in [type for type in store.unknown_searches if type not in store.types]:
        del store.unknown_searches[type]
