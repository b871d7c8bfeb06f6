"""Remove: groups that an operator deletes, and items whose time is over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from treadle.errors import ReferencedError
from treadle.item import Changed

from . import gates
from .look import show
from .moves import forget_deadline, leave_pile, withdraw
from .rows import Group, Row
from .store import Store

# ----------------------------------------------------------------------------------------------------- delete


def delete(store: Store, group_ids: Sequence[str], tenant: str | None, *, cascade: bool) -> Changed:
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
    before = tuple(show(row) for row in rows)
    remove_all(store, rows)
    return Changed(before)


def _members(found: Row | Group) -> Iterable[Row]:
    return (found,) if isinstance(found, Row) else found.members


def _add_prerequisites(store: Store, rows: dict[Row, None]) -> None:
    """Add the groups of all that these rows wait or waited for, and so on."""
    stack = list(rows)
    while stack:
        row = stack.pop()
        for id in row.item.after:
            other = store.find(row.kind.tenant, id)
            if other is not None and other not in rows:
                members = _members(other if other.group is None else other.group)
                rows.update(dict.fromkeys(members))
                stack += members


def remove_all(store: Store, rows: Iterable[Row]) -> None:
    """Remove rows, whatever state they are in. Nobody outside waits for them."""
    for row in rows:
        if row.ended_at is None:
            withdraw(store, row)
            forget_deadline(store, row)
            if row.gate is not None:
                gates.forget(store, row)
    for row in rows:
        leave_pile(row)
        store.delete(row)


# ------------------------------------------------------------------------------------------------------ prune


def prune(store: Store, limit: int, now: float) -> int:
    removed = 0
    while removed < limit and (row := store.fading.pop_until(now)) is not None:
        if _over(store, row, now):
            store.delete(row)
            removed += 1
    store.permits.prune(now, limit)
    _forget_types(store)
    return removed


def _over(store: Store, row: Row, now: float) -> bool:
    """Whether its time is over. If not, it comes again when it may be: with its group, or its last waiter."""
    if row.group is not None and not _gone_by(row, row.group, now):
        return False
    if row.ref in store.waiters:
        row.faded = True
        return False
    return True


def _gone_by(row: Row, group: Group, now: float) -> bool:
    """Whether its time has gone by since its group ended for the last time: it may have opened again since
    the row was put where it was found."""
    return group.ended_at is not None and row.keep is not None and group.ended_at + row.keep <= now


def _forget_types(store: Store) -> None:
    """What is remembered of types that nothing is stored of."""
    for type in [type for type in store.forgotten if type not in store.types]:
        if type is not None or not store.types:
            del store.forgotten[type]
    for type in [type for type in store.searches if type not in store.types]:
        del store.searches[type]
