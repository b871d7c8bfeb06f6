"""Gates: who waits for whom, and what an end means for those who wait."""

from __future__ import annotations

from treadle.item import Item, ReleasedItem
from treadle.rules import counts, gate

from .following import Following
from .moves import doom, wait
from .rows import Gate, Row
from .store import Store, discard


def assess(store: Store, item: Item) -> Gate:
    """The gate of an item as it would be if it were submitted now."""
    found = Gate(item.need)
    for id in item.after:
        row = store.find(item.tenant, id)
        if row is None or row.ended_at is None:
            found.pending[id] = found.pending.get(id, 0) + 1
            found.open += 1
        elif counts(item.counting, row.status):
            found.met += 1
    return found


def close(store: Store, row: Row) -> Gate:
    """A new row waits for others. The answer says whether it still has to."""
    row.gate = assess(store, row.item)
    for id in row.item.after:
        store.waiters.setdefault((row.kind.tenant, id), {})[row] = None
    return row.gate


def prerequisite_ended(store: Store, row: Row, now: float, following: Following) -> None:
    """Count this end, once, wherever it is waited for."""
    for waiter in store.waiters.get(row.ref, ()):
        found = waiter.gate
        named = found.pending.pop(row.item.id, 0) if found is not None else 0
        if found is not None and named:
            found.open -= named
            if counts(waiter.item.counting, row.status):
                found.met += named
            if waiter.status == "blocked" and waiter.doom is None:
                _decide(store, waiter, found, now, following)


def _decide(store: Store, row: Row, found: Gate, now: float, following: Following) -> None:
    match gate(found.need, found.met, found.open):
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
