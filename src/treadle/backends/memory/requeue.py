"""Requeue: open ended items again, and with them the items that died because of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct

from treadle.item import GROUP_MARK, Changed, Filter, Ref, Status
from treadle.store.rules.listing import narrowed_filter
from treadle.store.rules.repair import Condition, RepairLookups, gone_prerequisite, plan_repair
from treadle.store.rules.settlement import redrive
from treadle.store.rules.submission import counts

from .dependencies import forget_waiting, start_waiting, status_if_ended
from .groups import reopen
from .read import item_state, oldest_matching
from .rows import Row
from .tables import MemoryTables
from .transitions import leave_container, set_status, undoom, wait


class RequeueOptions(Struct):
    """How a requeue treats the items that it finds: see `Backend.requeue`."""

    limit: int
    redrives: int | None
    backoff: float
    alone: bool
    cancelled: bool


def requeue(
    store: MemoryTables,
    where: Sequence[str] | Filter,
    tenant: str | None,
    options: RequeueOptions,
    now: float,
) -> Changed:
    asked = dict.fromkeys(_asked(store, where, tenant, options))
    rows, names = plan_repair(asked, _lookups(store, alone=options.alone))
    before = tuple(item_state(row) for row in rows)
    ends: dict[Ref, Status | None] = {name: status_if_ended(store, name) for name in names}
    for row in rows:
        if row in asked:
            row.redrives, delay = redrive(row.redrives, options.redrives, options.backoff)
            row.due_at = now + delay
        open_again(store, row)
    for row in rows:
        wait_for_after(store, row, now)
    for name, ended in ends.items():
        if ended is not None:
            count_as_open(store, name, ended, {*rows}, alone=options.alone)
    return Changed(before)


def _asked(
    store: MemoryTables, where: Sequence[str] | Filter, tenant: str | None, options: RequeueOptions
) -> Iterator[Row]:
    """The rows with these ids, in that order; or those that a filter finds, the oldest first."""
    statuses: tuple[Status, ...] = ("dead", "cancelled") if options.cancelled else ("dead",)
    if isinstance(where, Filter):
        narrowed = narrowed_filter(where, tenant, statuses)
        found = iter(()) if narrowed is None else oldest_matching(store, narrowed)
    else:
        named = (store.find(tenant, id) for id in where)
        found = (row for row in named if row is not None and row.status in statuses)
    most = options.redrives
    if most is not None:
        found = (row for row in found if row.redrives < most)
    return islice(found, max(0, options.limit)) if isinstance(where, Filter) else found


def _lookups(store: MemoryTables, *, alone: bool) -> RepairLookups[Row]:
    def dependents(name: Ref) -> Iterable[Row]:
        return () if alone else store.unmet.get(name, ())

    def ended(row: Row, name: str) -> Status | None:
        return _ended(store, row, name)

    return RepairLookups(_condition, ended, _names, dependents)


def _condition(row: Row) -> Condition:
    item = row.item
    return Condition(row.kind.tenant, item.after, item.need, item.counting)


def _names(row: Row) -> tuple[Ref, Ref]:
    return row.ref, (row.kind.tenant, GROUP_MARK + row.group_id)


def _ended(store: MemoryTables, row: Row, name: str) -> Status | None:
    ref = row.kind.tenant, name
    if not store.exists(ref):
        return gone_prerequisite(was_released=not row.unreleased)
    return status_if_ended(store, ref)


def open_again(store: MemoryTables, row: Row) -> None:
    """An ended row is as if it had never been claimed. It keeps its history."""
    leave_container(row)
    forget_waiting(store, row)
    store.dead.pop(row, None)
    reopen(store, row)
    row.prune_pending = False
    row.attempt = row.failures = row.losses = row.deferrals = row.place = 0
    row.reason = row.claimed_by = row.deadline = row.started_at = row.claimed_at = row.ended_at = None
    row.mark = ""
    set_status(row, "blocked")


def wait_for_after(store: MemoryTables, row: Row, now: float) -> None:
    """It waits for its prerequisites as they are now, or for its time."""
    if (
        not row.item.after
        or start_waiting(store, row, lambda name: _ended(store, row, name)).state == "released"
    ):
        wait(store, row, now)


def count_as_open(store: MemoryTables, name: Ref, ended: Status, opened: set[Row], *, alone: bool) -> None:
    """Items that are still blocked wait again for what ended without counting, and is open again."""
    for row in store.waiters.get(name, ()):
        found = row.dependencies
        if row in opened or row.status != "blocked" or found is None or counts(row.item.counting, ended):
            continue
        found.reopen(name[1], row.item.after.count(name[1]))
        if row.verdict == "unsatisfiable" and found.state == "waiting" and not alone:
            undoom(store, row)
