"""Bugs of groups that fail, nest and are repaired, each planted in one function of the memory backend."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.mutants.kit import Patch, mutant
from tests.mutants.store import plant
from treadle.backends.memory import (
    dependencies,
    endings,
    groups,
    operate,
    retention,
    rows,
    settle,
    submit,
    transitions,
)
from treadle.item import GROUP_MARK
from treadle.store.rules import repair, settlement

# ----------------------------------------------------------------------------------------------------- groups


@mutant("every death fails its group")
def tolerance_ignored(patch: Patch) -> None:
    plant(patch, endings, dependencies.is_tolerated, lambda store, row: False)


@mutant("an ended item no longer tolerates a death")
def ended_tolerance_forgotten(patch: Patch) -> None:
    real = dependencies.stop_waiting

    def stop_waiting(store: Any, row: Any) -> None:
        real(store, row)
        store.tolerant.clear()

    plant(patch, endings, real, stop_waiting)


@mutant("an item that adds nothing to its group's value contributes")
def compensation_contributes(patch: Patch) -> None:
    def contribution(settlement: Any, *, contributes: bool) -> Any:
        return settlement.contribution

    plant(patch, settle, settlement.applied_contribution, contribution)


@mutant("a group counts as ended when its first member has ended")
def group_counted_early(patch: Patch) -> None:
    real = endings.member_ended

    def member_ended(store: Any, row: Any, now: float, collected: Any) -> None:
        real(store, row, now, collected)
        if row.group is not None and row.group.open:
            status = settlement.group_status(row.group.failed, row.group.cancellations)
            endings.group_ended(store, (row.group.tenant, row.group.id), status, now, collected)

    plant(patch, endings, real, member_ended)


@mutant("a group that failed counts as a success for what waits for it")
def failed_group_counts(patch: Patch) -> None:
    plant(patch, endings, settlement.group_status, lambda failed, cancelled: "success")


@mutant("a nested group does not hold the group around it open")
def nested_does_not_hold(patch: Patch) -> None:
    real = groups.nest

    def nest(store: Any, outer: Any, closer: Any) -> Any:
        group = real(store, outer, closer)
        group.ended_at = 0.0
        return group

    plant(patch, submit, real, nest)


@mutant("children of a nested group join the group around it")
def nested_not_joined(patch: Patch) -> None:
    real = submit.store_children

    def store_children(store: Any, items: Any, now: float, group: Any, effects: Any) -> None:
        real(store, [replace(item, group_id=None) for item in items], now, group, effects)

    plant(patch, settle, real, store_children)


@mutant("a cycle through a group is not seen")
def group_cycle_unseen(patch: Patch) -> None:
    real = dependencies.waits_for

    def waits_for(store: Any, ref: Any) -> Any:
        return [] if ref[1].startswith(GROUP_MARK) else real(store, ref)

    plant(patch, submit, real, waits_for)


@mutant("a nested group is pruned before the group around it has ended")
def nested_pruned_early(patch: Patch) -> None:
    patch(rows.MemoryGroup, "kept_since", property(lambda self: self.ended_at))


@mutant("a nested group outlives the group around it")
def nested_not_deleted(patch: Patch) -> None:
    plant(patch, operate, operate.group_rows, lambda found: iter(dependencies.members(found)))


@mutant("a group that ends does not let the groups in it be pruned")
def nested_never_pruned(patch: Patch) -> None:
    real = retention.Retention.add_group

    def add_group(self: Any, group: Any) -> None:
        inner, group.nested = group.nested, {}
        real(self, group)
        group.nested = inner

    plant(patch, retention.Retention, real, add_group)


# ----------------------------------------------------------------------------------------------------- repair


@mutant("a requeued item forgets what it waits for")
def requeue_forgets_after(patch: Patch) -> None:
    def wait_for_after(store: Any, row: Any, now: float) -> None:
        transitions.wait(store, row, now)

    plant(patch, operate, operate.wait_for_after, wait_for_after)


@mutant("what died because of a requeued item stays dead")
def dependents_not_revived(patch: Patch) -> None:
    real = repair.plan_repair

    def plan_repair(asked: Any, lookups: Any) -> Any:
        return real(asked, lookups._replace(dependents=lambda name: ()))

    plant(patch, operate, real, plan_repair)


@mutant("a requeue brings back items that can only die again")
def stuck_items_revived(patch: Patch) -> None:
    real = repair.plan_repair

    def plan_repair(asked: Any, lookups: Any) -> Any:
        return real(asked, lookups._replace(ended=lambda row, name: None))

    plant(patch, operate, real, plan_repair)


@mutant("what is doomed because of a requeued item dies all the same")
def doomed_stay_doomed(patch: Patch) -> None:
    plant(patch, operate, transitions.undoom, lambda store, row: None)


@mutant("blocked items do not wait again for a requeued item")
def blocked_do_not_wait_again(patch: Patch) -> None:
    def count_as_open(store: Any, name: Any, ended: Any, opened: Any, *, alone: bool) -> None:
        return None

    plant(patch, operate, operate.count_as_open, count_as_open)


@mutant("a requeue does not take the death back that failed the group")
def death_not_taken_back(patch: Patch) -> None:
    real = groups.reopen

    def reopen(store: Any, row: Any) -> None:
        failed = row.failed_group
        real(store, row)
        if row.group is not None:
            row.group.failed += failed

    plant(patch, operate, real, reopen)


@mutant("what a repair needs is pruned")
def repair_needs_pruned(patch: Patch) -> None:
    def is_needed(store: Any, row: Any) -> bool:
        return row.ref in store.waiters

    plant(patch, operate, dependencies.is_needed, is_needed)
