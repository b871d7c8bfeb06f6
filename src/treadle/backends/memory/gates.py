"""Gates: who waits for whom, and what an end means for those who wait."""

from __future__ import annotations

from treadle.item import ReleasedItem, Status
from treadle.rules import Dependencies, count_dependencies

from .following import Following
from .moves import doom, wait
from .rows import Row
from .store import Store, discard


def ended(store: Store, tenant: str, id: str) -> Status | None:
    """The status of an item that has ended."""
    row = store.find(tenant, id)
    return None if row is None or row.ended_at is None else row.status


def close(store: Store, row: Row) -> Dependencies:
    """A new row waits for others. The answer says whether it still has to."""
    tenant = row.kind.tenant
    row.gate = count_dependencies(row.item, lambda name: ended(store, tenant, name))
    for id in row.item.after:
        store.waiters.setdefault((row.kind.tenant, id), {})[row] = None
    return row.gate


def prerequisite_ended(store: Store, row: Row, now: float, following: Following) -> None:
    """Count this end, once, wherever it is waited for."""
    for waiter in store.waiters.get(row.ref, ()):
        found = waiter.gate
        if (
            found is not None
            and found.count(row.item.id, waiter.item.counting, row.status)
            and waiter.status == "blocked"
            and waiter.doom is None
        ):
            _decide(store, waiter, found, now, following)


def _decide(store: Store, row: Row, found: Dependencies, now: float, following: Following) -> None:
    match found.state:
        case "released":
            following.released.append(_released(row))
            wait(store, row, now)
        case "doomed":
            following.doomed += 1
            doom(store, row, "unsatisfiable")
        case "waiting":
            pass


def _released(row: Row) -> ReleasedItem:
    kind, item = row.kind, row.item
    return ReleasedItem(item.id, kind.tenant, kind.type, row.group_id, kind.queue, item.parent, item.after)


def forget(store: Store, row: Row) -> None:
    """It is open no longer: nobody is waited for by it."""
    row.gate = None
    for id in row.item.after:
        ref = row.kind.tenant, id
        if discard(store.waiters, ref, row):
            _unwaited(store, store.find(*ref))


def _unwaited(store: Store, row: Row | None) -> None:
    # It would have been pruned before, had nobody waited for it.
    if row is not None and row.faded:
        row.faded = False
        store.fading.add(row, 0.0)
