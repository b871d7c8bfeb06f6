"""Operate: cancel, complete, requeue, trigger, delete, pause and prune."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec.structs import replace

from treadle.errors import AlreadyEnded, NotFound, NotTriggerable, ReferencedError
from treadle.item import Changed, Contribution, Filter
from treadle.rules.settlement import redrive

from .dependencies import stop_waiting
from .effects import CollectedEffects, end_all
from .groups import contribute, reopen
from .read import item_state, matching
from .rows import MemoryGroup, Row
from .tables import MemoryTables
from .transitions import leave_container, make_ready, unwatch_deadline, wait, withdraw


def cancel(store: MemoryTables, ids: Sequence[str], tenant: str | None, now: float) -> Changed:
    named = [row for id in ids if (row := store.find(tenant, id)) is not None]
    rows = [row for row in descendants(named) if row.ended_at is None]
    before = tuple(item_state(row) for row in rows)
    effects = CollectedEffects()
    for row in rows:
        row.claimed_by = None
    end_all(store, rows, "cancelled", now, effects)
    return Changed(before, effects.result())


def descendants(rows: Iterable[Row]) -> Iterator[Row]:
    """These rows and all their descendants, each once."""
    seen = dict.fromkeys(rows)
    stack = [*reversed(seen)]
    while stack:
        row = stack.pop()
        yield row
        for child in row.children or ():
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
    contribute(store, row, Contribution())
    end_all(store, [row], "success", now, effects)
    return Changed((before,), effects.result())


def requeue(
    store: MemoryTables,
    where: Sequence[str] | Filter,
    tenant: str | None,
    limit: int,
    redrives: int | None,
    backoff: float,
    now: float,
) -> Changed:
    found = _dead(store, where, tenant)
    if redrives is not None:
        found = (row for row in found if row.redrives < redrives)
    rows = list(islice(found, max(0, limit)) if isinstance(where, Filter) else found)
    before = tuple(item_state(row) for row in rows)
    for row in rows:
        row.redrives, delay = redrive(row.redrives, redrives, backoff)
        revive(store, row, now + delay, now)
    return Changed(before)


def _dead(store: MemoryTables, where: Sequence[str] | Filter, tenant: str | None) -> Iterator[Row]:
    """The dead rows with these ids, in that order; or those that a filter finds, the oldest first."""
    if not isinstance(where, Filter):
        rows = dict.fromkeys(store.find(tenant, id) for id in where)
        return (row for row in rows if row is not None and row.status == "dead")
    if where.status and "dead" not in where.status:
        return iter(())
    found = matching(store, replace(where, status=("dead",)))
    return (row for row in found if tenant in (None, row.kind.tenant))


def revive(store: MemoryTables, row: Row, due_at: float, now: float) -> None:
    """Open a dead row again, as if it had never been claimed. It keeps its history."""
    leave_container(row)
    del store.dead[row]
    reopen(store, row)
    row.prune_pending = False
    row.attempt = row.failures = row.losses = row.place = 0
    row.reason = row.claimed_by = row.deadline = row.started_at = row.ended_at = None
    row.claimed_at = None
    row.due_at = due_at
    wait(store, row, now)


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
            rows.update(dict.fromkeys(_members(found)))
    if cascade:
        _add_prerequisites(store, rows)
    references = [
        (row.item.id, waiter.item.id)
        for row in rows
        for waiter in store.waiters.get(row.ref, ())
        if waiter not in rows
    ]
    if references:
        raise ReferencedError(references)
    before = tuple(item_state(row) for row in rows)
    _remove_all(store, rows)
    return Changed(before)


def _members(found: Row | MemoryGroup) -> Iterable[Row]:
    return (found,) if isinstance(found, Row) else found.members


def _add_prerequisites(store: MemoryTables, rows: dict[Row, None]) -> None:
    """Add the groups of all prerequisites of these rows, and of their prerequisites in turn."""
    stack = list(rows)
    while stack:
        row = stack.pop()
        for id in row.item.after:
            other = store.find(row.kind.tenant, id)
            if other is not None and other not in rows:
                members = _members(other if other.group is None else other.group)
                rows.update(dict.fromkeys(members))
                stack += members


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
        store.delete(row)


def pause(store: MemoryTables, queue: str, tenant: str | None, *, paused: bool) -> None:
    if paused == ((queue, tenant) in store.paused):
        return
    if paused:
        store.paused.add((queue, tenant))
    else:
        store.paused.discard((queue, tenant))
    for items in (store.ready, *store.parked.values()):
        items.pause(queue, tenant, paused)


def prune(store: MemoryTables, limit: int, now: float) -> int:
    removed = 0
    while removed < limit and (row := store.retention.pop_until(now)) is not None:
        if may_prune(store, row, now):
            store.delete(row)
            removed += 1
    store.limits.prune(now, limit)
    _forget_types(store)
    return removed


def may_prune(store: MemoryTables, row: Row, now: float) -> bool:
    """Whether a row is to be pruned now. If not, it comes up again when its group ends, or when no item waits
    for it any more."""
    if row.group is not None and not kept_long_enough(row, row.group, now):
        return False
    if row.ref in store.waiters:
        row.prune_pending = True
        return False
    return True


def kept_long_enough(row: Row, group: MemoryGroup, now: float) -> bool:
    """Whether its group has ended long enough ago. The group may have opened again since the row was added to
    the retention."""
    return group.ended_at is not None and row.keep is not None and group.ended_at + row.keep <= now


def _forget_types(store: MemoryTables) -> None:
    """Forget what is known of types of which no item is stored."""
    for type in [type for type in store.unknown_since if type not in store.types]:
        if type is not None or not store.types:
            del store.unknown_since[type]
    for type in [type for type in store.unknown_searches if type not in store.types]:
        del store.unknown_searches[type]
