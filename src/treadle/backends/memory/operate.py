"""Operate: what operators do to items, whatever state they are in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec.structs import replace

from treadle.errors import AlreadyEnded, NotFound, NotTriggerable
from treadle.item import Changed, Contribution, Filter
from treadle.rules import redrive

from .endings import end_all
from .following import Following
from .groups import contribute, reopen
from .look import matching, show
from .moves import leave_pile, make_ready, wait
from .rows import Row
from .store import Store


def cancel(store: Store, ids: Sequence[str], tenant: str | None, now: float) -> Changed:
    named = [row for id in ids if (row := store.find(tenant, id)) is not None]
    rows = [row for row in _descendants(named) if row.ended_at is None]
    before = tuple(show(row) for row in rows)
    following = Following()
    for row in rows:
        row.by = None
    end_all(store, rows, "cancelled", now, following)
    return Changed(before, following.effects())


def _descendants(rows: Iterable[Row]) -> Iterator[Row]:
    """These rows and all below them, each once."""
    seen = dict.fromkeys(rows)
    stack = [*reversed(seen)]
    while stack:
        row = stack.pop()
        yield row
        for kid in row.kids or ():
            if kid not in seen:
                seen[kid] = None
                stack.append(kid)


def complete(store: Store, id: str, result: bytes | None, tenant: str | None, now: float) -> Changed:
    row = store.find(tenant, id)
    if row is None:
        raise NotFound(id)
    if row.ended_at is not None:
        raise AlreadyEnded(id, row.status)
    before = show(row)
    following = Following()
    row.by = None
    row.result = result
    contribute(store, row, Contribution())
    end_all(store, [row], "success", now, following)
    return Changed((before,), following.effects())


def requeue(
    store: Store,
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
    before = tuple(show(row) for row in rows)
    for row in rows:
        row.redrives, delay = redrive(row.redrives, redrives, backoff)
        _revive(store, row, now + delay, now)
    return Changed(before)


def _dead(store: Store, where: Sequence[str] | Filter, tenant: str | None) -> Iterator[Row]:
    """The dead rows that are meant: as they were named, or the oldest first."""
    if not isinstance(where, Filter):
        rows = dict.fromkeys(store.find(tenant, id) for id in where)
        return (row for row in rows if row is not None and row.status == "dead")
    if where.status and "dead" not in where.status:
        return iter(())
    found = matching(store, replace(where, status=("dead",)))
    return (row for row in found if tenant in (None, row.kind.tenant))


def _revive(store: Store, row: Row, due_at: float, now: float) -> None:
    """Let a dead row live again, as if it had never been claimed. Its history stays."""
    leave_pile(row)
    del store.dead[row]
    reopen(store, row)
    row.faded = False
    row.attempt = row.losses = row.place = 0
    row.reason = row.by = row.deadline = row.started_at = row.ended_at = None
    row.due_at = due_at
    wait(store, row, now)


def trigger(store: Store, ids: Sequence[str], tenant: str | None, now: float) -> Changed:
    rows = [_scheduled(store, id, tenant) for id in dict.fromkeys(ids)]
    before = tuple(show(row) for row in rows)
    for row in rows:
        row.due_at = now
        if row.doom is None:
            leave_pile(row)
            make_ready(store, row, now)
    return Changed(before)


def _scheduled(store: Store, id: str, tenant: str | None) -> Row:
    row = store.find(tenant, id)
    if row is None:
        raise NotFound(id)
    if row.status != "scheduled":
        raise NotTriggerable(id, row.status)
    return row


def pause(store: Store, queue: str, tenant: str | None, *, paused: bool) -> None:
    if paused == ((queue, tenant) in store.paused):
        return
    if paused:
        store.paused.add((queue, tenant))
    else:
        store.paused.discard((queue, tenant))
    for lines in (store.ready, *store.parked.values()):
        lines.pause(queue, tenant, paused)
