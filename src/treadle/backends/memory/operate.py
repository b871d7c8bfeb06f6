"""Operate: cancel, complete, trigger, hold, delete, prune, requeue and update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec import UNSET, Struct
from msgspec.structs import replace

from treadle.errors import AlreadyEnded, NotFound, NotHoldable, NotTriggerable, NotUpdatable, ReferencedError
from treadle.item import (
    GROUP_MARK,
    Changed,
    Contribution,
    Filter,
    Item,
    ItemUpdate,
    Ref,
    Status,
    StepRecord,
)
from treadle.store.rules.listing import narrowed_filter
from treadle.store.rules.repair import Condition, RepairLookups, gone_prerequisite, plan_repair
from treadle.store.rules.settlement import redrive, token_step
from treadle.store.rules.steps import requeued_steps
from treadle.store.rules.submission import changed_item, changers, counts
from treadle.store.rules.times import changed_due_at, deadline_at, hold_due, is_held, keep_hold, unheld_due

from .dependencies import forget_waiting, is_needed, members, start_waiting, status_if_ended, stop_waiting
from .endings import CollectedEffects, end_all
from .groups import contribute, reopen
from .read import item_state, oldest_matching
from .records import prune_audits, prune_removals, prune_stats
from .rows import MemoryGroup, Row
from .steps import sleeps, wake
from .tables import MemoryTables
from .transitions import (
    leave_container,
    make_ready,
    set_status,
    undoom,
    unwatch_deadline,
    wait,
    watch_deadline,
    withdraw,
)


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
        wake(row)
        if row.verdict is None:
            leave_container(row)
            make_ready(store, row, now)
    return Changed(before)


def _scheduled(store: MemoryTables, id: str, tenant: str | None) -> Row:
    row = store.find(tenant, id)
    if row is None:
        raise NotFound(id)
    held = row.status == "scheduled" and is_held(row.due_at)
    if row.status != "scheduled" or held or (row.suspended and not sleeps(row)):
        raise NotTriggerable(id, row.status, held)
    return row


def hold(store: MemoryTables, ids: Sequence[str], held: bool, tenant: str | None, now: float) -> Changed:
    found = [_holdable(store, id, held, tenant) for id in dict.fromkeys(ids)]
    rows = [row for row in found if _waits(row) and is_held(row.due_at) != held]
    before = tuple(item_state(row) for row in rows)
    for row in rows:
        leave_container(row)
        row.due_at = hold_due(row.due_at) if held else unheld_due(row.due_at)
        row.place = 0
        wait(store, row, now)
    return Changed(before)


def _holdable(store: MemoryTables, id: str, held: bool, tenant: str | None) -> Row:
    row = store.find(tenant, id)
    if row is None:
        raise NotFound(id)
    if held and not _waits(row):
        raise NotHoldable(id, row.status)
    return row


def _waits(row: Row) -> bool:
    return row.status in ("ready", "scheduled") and row.verdict is None


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
    remove_all(store, rows)
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


def remove_all(store: MemoryTables, rows: Iterable[Row]) -> None:
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


def prune(store: MemoryTables, limit: int, now: float) -> int:
    removed = 0
    while removed < limit and (row := store.retention.pop_until(now)) is not None:
        if may_prune(store, row, now):
            _delete(store, row)
            removed += 1
    store.claimed_keys.prune(now, limit)
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


# -- requeue: open ended items, and those that died because of them ----------------------------------


class RequeueOptions(Struct):
    """How a requeue treats the items that it finds: see `Backend.requeue`."""

    limit: int
    redrives: int | None
    backoff: float
    alone: bool
    cancelled: bool
    from_step: str | None = None


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
            _forget_steps(row, options.from_step)
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
    if options.from_step is not None:
        found = (row for row in found if _after_requeue(row, options.from_step) is not None)
    most = options.redrives
    if most is not None:
        found = (row for row in found if row.redrives < most)
    return islice(found, max(0, options.limit)) if isinstance(where, Filter) else found


def _forget_steps(row: Row, from_step: str | None) -> None:
    if row.steps is not None:
        row.steps.steps = {step.name: step for step in _after_requeue(row, from_step) or ()}


def _after_requeue(row: Row, from_step: str | None) -> Sequence[StepRecord] | None:
    steps = () if row.steps is None else (*row.steps.steps.values(),)
    return requeued_steps(steps, dead=row.status == "dead", from_step=from_step)


def _lookups(store: MemoryTables, *, alone: bool) -> RepairLookups[Row]:
    def dependents(name: Ref) -> Iterable[Row]:
        return () if alone else store.unmet.get(name, ())

    def ended(row: Row, name: str) -> Status | None:
        return _ended(store, row, name)

    return RepairLookups(_condition, ended, _names_of, dependents)


def _condition(row: Row) -> Condition:
    item = row.item
    return Condition(row.kind.tenant, item.after, item.need, item.counting)


def _names_of(row: Row) -> tuple[Ref, Ref]:
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
    row.suspended = False
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


# -- update: change items that have not started ------------------------------------------------------


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
        due = row.due_at if changes.run_at is UNSET else keep_hold(row.due_at, changes.run_at)
        if item != row.item or due != row.due_at:
            ready_at = row.ready_at if row.status == "ready" and due == row.due_at else None
            move(store, row, item, due, now)
            row.ready_at = row.ready_at if ready_at is None else ready_at
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
            due = keep_hold(row.due_at, changed_due_at(new, row.queued_at, now))
            move(store, row, changed_item(row.item, new), due, now)
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
