"""Endings: how a row ends, and what its end causes elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from treadle.item import GROUP_MARK, KILLING, Effects, EndedGroup, Ref, ReleasedItem, Status
from treadle.store.rules.settlement import can_fail_group, group_status
from treadle.store.rules.submission import Dependencies

from .dependencies import is_tolerated, stop_waiting
from .retention import RetentionBundle
from .rows import MemoryGroup, Row
from .tables import MemoryTables
from .transitions import doom, set_status, unwatch_deadline, wait, withdraw

NO_EFFECTS = Effects()


class CollectedEffects(Struct):
    """The effects of one verb, as they add up."""

    released: list[ReleasedItem] = []
    ended_groups: list[EndedGroup] = []
    doomed: int = 0
    bundle: RetentionBundle | None = None
    """For the plain items that end in this call."""

    def result(self) -> Effects:
        if not self.released and not self.ended_groups and not self.doomed:
            return NO_EFFECTS
        return Effects(tuple(self.released), tuple(self.ended_groups), self.doomed)


def end(store: MemoryTables, row: Row, status: Status, now: float) -> None:
    """End a row. The caller must call `count_end` before the verb is over."""
    withdraw(store, row)
    if row.deadline_watch is not None:
        unwatch_deadline(store, row)
    if row.dependencies is not None:
        stop_waiting(store, row)
    row.unreleased = row.status == "blocked"
    if row.held_lane is not None:
        store.strict_lanes.free(row)
    set_status(row, status)
    row.ended_at = now
    row.verdict = None
    row.overdue = row.suspended = False
    if row.losses >= KILLING:
        del store.killing[row]
    if status == "dead":
        store.dead[row] = None


def count_end(store: MemoryTables, row: Row, now: float, effects: CollectedEffects) -> None:
    """Count the end of a row: for the items that wait for it, and for its group."""
    if row.status == "dead":
        row.failed_group = can_fail_group(
            row.item.type, contributes=row.item.contributes
        ) and not is_tolerated(store, row)
    if store.waiters:
        prerequisite_ended(store, row.ref, row.status, now, effects)
    member_ended(store, row, now, effects)


def end_all(
    store: MemoryTables, rows: Sequence[Row], status: Status, now: float, effects: CollectedEffects
) -> None:
    """End several rows at once. Those that wait for each other are neither released nor doomed."""
    for row in rows:
        if row.status == "running" and row.begun:
            row.started_at = row.claimed_at
        end(store, row, status, now)
    for row in rows:
        count_end(store, row, now, effects)


def prerequisite_ended(
    store: MemoryTables, ref: Ref, ended: Status, now: float, effects: CollectedEffects
) -> None:
    """Count the end of an item, or of a group, for the items that wait for it."""
    for waiter in store.waiters.get(ref, ()):
        found = waiter.dependencies
        if (
            found is not None
            and found.count(ref[1], waiter.item.counting, ended)
            and waiter.status == "blocked"
            and waiter.verdict is None
        ):
            release_or_doom(store, waiter, found, now, effects)


def release_or_doom(
    store: MemoryTables, row: Row, found: Dependencies, now: float, effects: CollectedEffects
) -> None:
    match found.state:
        case "released":
            effects.released.append(_released(row))
            wait(store, row, now)
        case "doomed":
            effects.doomed += 1
            doom(store, row, "unsatisfiable")
        case "waiting":
            pass


def _released(row: Row) -> ReleasedItem:
    kind, item = row.kind, row.item
    return ReleasedItem(item.id, kind.tenant, kind.type, row.group_id, kind.queue, item.parent, item.after)


def member_ended(store: MemoryTables, row: Row, now: float, effects: CollectedEffects) -> None:
    """Count the end of a member. The last one ends the group."""
    group, kind = row.group, row.kind
    if group is None:
        value = row.result if row.contributed else None
        failed = int(row.failed_group)
        effects.ended_groups.append(EndedGroup(row.item.id, kind.tenant, value, kind.type, failed))
        store.retention.add_member(row, now)
        status = group_status(failed, row.status == "cancelled")
        group_ended(store, (kind.tenant, row.item.id), status, now, effects)
        return
    group.open -= 1
    if row.failed_group:
        group.failed += 1
        group.deaths[row] = None
    elif row.status == "cancelled":
        group.cancelled[row] = None
        group.cancellations += 1
    if not group.open:
        end_group(store, group, now, effects)


def end_group(store: MemoryTables, group: MemoryGroup, now: float, effects: CollectedEffects) -> None:
    """End a group that has no open members."""
    group.ended_at = now
    ended = EndedGroup(group.id, group.tenant, group.value, group.type, group.failed)
    effects.ended_groups.append(ended)
    store.retention.add_group(group)
    status = group_status(group.failed, group.cancellations)
    group_ended(store, (group.tenant, group.id), status, now, effects)


def group_ended(
    store: MemoryTables, group: Ref, ended: Status, now: float, effects: CollectedEffects
) -> None:
    """Count the end of a group for the items that wait for it."""
    if store.waiters:
        tenant, id = group
        prerequisite_ended(store, (tenant, GROUP_MARK + id), ended, now, effects)
