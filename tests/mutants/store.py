"""Bugs of a backend, each planted in one public function of the memory backend or of the rules it uses."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from msgspec.structs import replace

from tests.mutants.kit import Patch, mutant
from treadle.backends.memory import (
    backend,
    claim,
    claimed_keys,
    endings,
    fairness,
    groups,
    limits,
    operate,
    orders,
    records,
    schedules,
    settle,
    submit,
    tables,
    transitions,
    workers,
)
from treadle.engine.run import settle as engine_settle
from treadle.item import Contribution, Order, Rejected
from treadle.store.rules import limits as rules_of_limits
from treadle.store.rules import records as rules_of_audits
from treadle.store.rules import settlement, submission, times


def plant(patch: Patch, owner: Any, real: Callable[..., Any], bug: Callable[..., Any]) -> None:
    """Replace a function where `owner` looks it up. `real` is a reference, so that a rename is an error."""
    assert getattr(owner, real.__name__) is real, f"{owner.__name__} does not use {real.__name__}"
    patch(owner, real.__name__, bug)


# ---------------------------------------------------------------------------------------------------- fencing


@mutant("settle does not check the token")
def no_fencing(patch: Patch) -> None:
    plant(patch, settle, settle.owns, lambda lease, row: bool(row.token))


@mutant("a token is given out twice")
def token_reuse(patch: Patch) -> None:
    calls = count(1)
    real = settlement.token_step
    plant(patch, transitions, real, lambda many, bits: real(many, bits) if next(calls) % 7 else 0)


@mutant("tokens have no random part", tests="tests/simulation/test_forgetful.py")
def tokens_in_a_row(patch: Patch) -> None:
    plant(patch, transitions, settlement.token_step, lambda many, bits: many)


@mutant("a repeated settlement with its own token is refused as stale")
def again_is_stale(patch: Patch) -> None:
    real = settle.why_lost
    plant(patch, settle, real, lambda row, lease: real(row, lease) or "taken")


@mutant("children are stored before the token is checked")
def children_before_the_fence(patch: Patch) -> None:
    real = settle.settle_one

    def settle_one(call: Any, settlement: Any) -> Any:
        outcome = real(call, settlement)
        if outcome.verb == "stale" and settlement.children:
            plan = submit.make_plan(call.store, settlement.children, call.now)
            for item in () if isinstance(plan, Rejected) else plan.new.values():
                submit.store_item(call.store, item, call.now)
        return outcome

    plant(patch, settle, real, settle_one)


@mutant("an item is ready again before its worker's lease lapses")
def freed_early(patch: Patch) -> None:
    real = workers.remove_lapsed
    plant(patch, claim, real, lambda store, now: real(store, now + 2.5))


@mutant("the items of a dead worker stay leased")
def not_freed(patch: Patch) -> None:
    plant(patch, workers, transitions.free, lambda store, row, now: transitions.unlease(row))


@mutant("a heartbeat does not report lost leases")
def silent_beat(patch: Patch) -> None:
    plant(patch, workers, workers.lost_leases, lambda store, held: {})


@mutant("unknown leases are not found")
def no_unknown_leases(patch: Patch) -> None:
    plant(patch, workers, workers.unknown_leases, lambda store, worker, known: [])


# --------------------------------------------------------------------------------------------------- attempts


@mutant("a heartbeat names no unknown leases")
def no_unknown_tokens(patch: Patch) -> None:
    patch(workers, "MOST_UNKNOWN", 0)


@mutant("permits are kept although the worker has taken others since")
def late_keep_permits(patch: Patch) -> None:
    real = limits.MemoryLimits.keep_permits

    def keep_permits(self: Any, held: Any, counted: int, worker: Any) -> int:
        return real(self, held, sum(worker.permits.values()), worker)

    patch(limits.MemoryLimits, "keep_permits", keep_permits)


@mutant("a claim does not count the attempt")
def attempt_not_counted(patch: Patch) -> None:
    def lease(store: Any, row: Any, worker: Any, now: float, buffered: Any = ()) -> Any:
        found = transitions.lease(store, row, worker, now, buffered)
        row.attempt -= row.verdict is None and row.begun
        return found

    plant(patch, claim, transitions.lease, lease)


def _burn_attempt(patch: Patch, kind: str) -> None:
    real = settle.give_back

    def give_back(call: Any, row: Any, settlement: Any) -> None:
        real(call, row, settlement)
        if settlement.kind == kind and row.verdict is None:
            row.attempt += 1

    plant(patch, settle, real, give_back)


@mutant("a deferral counts its attempt")
def deferral_burns(patch: Patch) -> None:
    _burn_attempt(patch, "defer")


@mutant("a release counts its attempt")
def release_burns(patch: Patch) -> None:
    _burn_attempt(patch, "release")


@mutant("an item whose workers keep dying has no backoff")
def no_backoff(patch: Patch) -> None:
    plant(patch, settlement, settlement.loss_delay, lambda losses, number: 0.0)


@mutant("requeue keeps the old attempts")
def requeue_keeps_attempts(patch: Patch) -> None:
    real = operate.open_again

    def open_again(store: Any, row: Any) -> None:
        attempt = row.attempt
        real(store, row)
        row.attempt = attempt

    plant(patch, operate, real, open_again)


# ------------------------------------------------------------------------------------ groups and dependencies


def _after_end(patch: Patch, spoil: Callable[[Any, Any, int], None]) -> None:
    real = endings.member_ended

    def member_ended(store: Any, row: Any, now: float, effects: Any) -> None:
        before = len(effects.ended_groups)
        real(store, row, now, effects)
        spoil(row, effects, before)

    plant(patch, endings, real, member_ended)


@mutant("a group's counter goes down twice")
def counted_twice(patch: Patch) -> None:
    def spoil(row: Any, effects: Any, before: int) -> None:
        if row.group is not None and row.group.open > 1:
            row.group.open -= 1

    _after_end(patch, spoil)


@mutant("a group ends twice")
def closed_twice(patch: Patch) -> None:
    def spoil(row: Any, effects: Any, before: int) -> None:
        effects.ended_groups += effects.ended_groups[before:]

    _after_end(patch, spoil)


@mutant("a group that ends is not announced")
def not_closed(patch: Patch) -> None:
    def spoil(row: Any, effects: Any, before: int) -> None:
        if row.group is not None:
            del effects.ended_groups[before:]

    _after_end(patch, spoil)


@mutant("requeue does not open the group again")
def not_reopened(patch: Patch) -> None:
    plant(patch, operate, groups.reopen, lambda store, row: None)


@mutant("an item is released one prerequisite too early")
def released_early(patch: Patch) -> None:
    def state(need: int, met: int, left: int) -> str:
        return "released" if met >= max(need - 1, 0) else "waiting"

    plant(patch, submission, submission.dependency_state, state)


@mutant("an item that cannot be released is never doomed")
def never_doomed(patch: Patch) -> None:
    def state(need: int, met: int, left: int) -> str:
        return "released" if met >= need else "waiting"

    plant(patch, submission, submission.dependency_state, state)


@mutant("an item that is released is not announced")
def silent_release(patch: Patch) -> None:
    real = endings.release_or_doom

    def release_or_doom(store: Any, row: Any, found: Any, now: float, effects: Any) -> None:
        before = len(effects.released)
        real(store, row, found, now, effects)
        del effects.released[before:]

    plant(patch, endings, real, release_or_doom)


@mutant("a failure counts as a success for the items that wait")
def failure_counts(patch: Patch) -> None:
    plant(patch, submission, submission.counts, lambda counting, status: True)


@mutant("the version of an append is not checked")
def version_ignored(patch: Patch) -> None:
    plant(patch, settle, settle.refuse_moved, lambda call, row, contribution: None)


@mutant("versions of a group count its contributions, and begin anew with a later group of its id")
def versions_counted(patch: Patch) -> None:
    def next_version(token: int, folded_from: int | None) -> int:
        return (folded_from or 0) + 1

    plant(patch, settlement, settlement.next_version, next_version)
    patch(engine_settle, "next_version", next_version)


@mutant("a final value is not final")
def not_final(patch: Patch) -> None:
    def contribute(store: Any, row: Any, contribution: Contribution, token: int) -> Any:
        return groups.contribute(store, row, replace(contribution, final=False), token)

    plant(patch, settle, groups.contribute, contribute)


@mutant("cancel does not cancel descendants")
def orphaned_children(patch: Patch) -> None:
    plant(patch, operate, operate.descendants, lambda store, rows: iter(dict.fromkeys(rows)))


@mutant("a schedule that the store has lost is taken for one that was cancelled")
def lost_schedule_cancelled(patch: Patch) -> None:
    real = schedules.put

    def put(store: Any, schedule: Any, now: float, *, again: bool) -> Any:
        return replace(schedule, next_at=None) if again else real(store, schedule, now, again=again)

    plant(patch, schedules, real, put)


@mutant("that a schedule was cancelled is not kept")
def cancellation_forgotten(patch: Patch) -> None:
    real = schedules.drop

    def drop(store: Any, name: str, now: float) -> bool:
        dropped = real(store, name, now)
        store.removed_schedules.clear()
        return dropped

    plant(patch, schedules, real, drop)


# ---------------------------------------------------------------------------------------------- time and keys


@mutant("a window that began in the future lasts until then")
def window_of_the_future(patch: Patch) -> None:
    real = rules_of_limits.advance

    def advance(limit: Any, state: Any, now: float) -> Any:
        return state if limit.algorithm == "fixed_window" and now < state.at else real(limit, state, now)

    plant(patch, rules_of_limits, real, advance)


@mutant("a lease that was renewed in the future lasts until then")
def lease_of_the_future(patch: Patch) -> None:
    plant(patch, workers, times.is_far, lambda until, lease, now: False)


@mutant("one due item is not made ready")
def promotion_skips(patch: Patch) -> None:
    real = tables.DueItems.take_due

    def take_due(self: Any, now: float, most: int) -> Any:
        rows = list(real(self, now, most))
        return iter(rows[1:] if len(rows) > 1 else rows)

    plant(patch, tables.DueItems, real, take_due)


@mutant("a scheduled item is handed out before it is due")
def claimed_before_due(patch: Patch) -> None:
    real = transitions.wait_again

    def wait_again(store: Any, row: Any, again: Any, now: float) -> None:
        real(store, row, again, now)
        if row.status == "scheduled" and row.verdict is None:
            transitions.leave_container(row)
            transitions.make_ready(store, row, now)

    plant(patch, settle, real, wait_again)


@mutant("an item whose deadline passes while it waits does not expire")
def no_expiry(patch: Patch) -> None:
    def expire(store: Any, watch: Any) -> None:
        watch.row.deadline_watch = None

    plant(patch, claim, transitions.expire, expire)


@mutant("the scope of a key is not checked")
def key_scope_ignored(patch: Patch) -> None:
    plant(patch, submission, submission.key_answers, lambda scope, group_open, age: True)


@mutant("items are pruned too early")
def pruned_early(patch: Patch) -> None:
    real = operate.prune
    plant(patch, operate, real, lambda store, limit, now: real(store, limit, now + 86000))


@mutant("items are pruned while others wait for them")
def pruned_while_waited_for(patch: Patch) -> None:
    def may_prune(store: Any, row: Any, now: float) -> bool:
        return row.group is None or operate.kept_long_enough(row, row.group, now)

    plant(patch, operate, operate.may_prune, may_prune)


@mutant("a claimed key is given to every owner")
def key_for_all(patch: Patch) -> None:
    plant(
        patch,
        claimed_keys.ClaimedKeys,
        claimed_keys.ClaimedKeys.claim,
        lambda self, key, owner, ttl, now: True,
    )


@mutant("an occurrence fires twice")
def fires_again(patch: Patch) -> None:
    def fire(store: Any, fire: Any, now: float) -> Any:
        if fire.name not in store.schedules:
            return None
        return submit.submit_together(store, fire.items, now)

    plant(patch, schedules, schedules.fire, fire)


@mutant("a paused queue is served")
def pause_ignored(patch: Patch) -> None:
    patch(fairness.ReadyItems, "pause", lambda self, queue, tenant: None)


@mutant("orders are not told to claims")
def orders_untold(patch: Patch) -> None:
    original = orders.put

    def put(store: tables.MemoryTables, order: Order, now: float) -> bool:
        version = store.orders_version
        changed = original(store, order, now)
        store.orders_version = version
        return changed

    plant(patch, orders, orders.put, put)


# ---------------------------------------------------------------------------------------------------- tenants


@mutant("get returns items of another tenant")
def get_leaks(patch: Patch) -> None:
    real = backend.MemoryBackend.get

    async def get(self: Any, ids: Any, *, tenant: str | None = None) -> Any:
        return await real(self, ids, tenant=None)

    plant(patch, backend.MemoryBackend, real, get)


@mutant("cancel cancels items of another tenant")
def cancel_leaks(patch: Patch) -> None:
    real = operate.cancel
    plant(patch, operate, real, lambda store, ids, tenant, now, **how: real(store, ids, None, now, **how))


@mutant("a tenant sees the audit entries of others")
def audits_leak(patch: Patch) -> None:
    real = records.audits

    def read(store: Any, tenant: Any, bulk: Any, limit: int, cursor: Any) -> Any:
        return real(store, None, bulk, limit, cursor)

    plant(patch, records, real, read)


@mutant("a repeated submit is noted again")
def noted_again(patch: Patch) -> None:
    plant(patch, submit, rules_of_audits.changed_by, lambda plan: len(plan.answers))


@mutant("claim hands out items of another tenant")
def claim_leaks(patch: Patch) -> None:
    real = claim.claim
    plant(patch, claim, real, lambda store, demand, now: real(store, replace(demand, tenants=None), now))


@mutant("one tenant is served before all others")
def unfair(patch: Patch) -> None:
    real = claim.HandOut.serve

    def serve(self: Any, line: Any, most: int) -> Any:
        return real(self, line, self.left)

    plant(patch, claim.HandOut, real, serve)


# ----------------------------------------------------------------------------------------------- strict lanes


@mutant("a strict lane is free while its item waits for a retry")
def lane_freed_by_retry(patch: Patch) -> None:
    real = settle.give_back

    def give_back(call: Any, row: Any, settlement: Any) -> None:
        call.store.strict_lanes.free(row)
        real(call, row, settlement)

    plant(patch, settle, real, give_back)


@mutant("a strict lane is free when the worker of its item has died")
def lane_freed_by_loss(patch: Patch) -> None:
    real = transitions.free

    def free(store: Any, row: Any, now: float) -> None:
        store.strict_lanes.free(row)
        real(store, row, now)

    plant(patch, workers, real, free)


@mutant("an item that holds its lane waits its turn")
def holder_waits(patch: Patch) -> None:
    patch(tables.StrictLanes, "ready_for", lambda self, demand, paused: iter(()))


@mutant("a claim hands out two items of a strict lane")
def lane_held_late(patch: Patch) -> None:
    real = tables.StrictLanes.hold

    def hold(self: Any, row: Any) -> None:
        if row.losses or row.failures:
            real(self, row)

    patch(tables.StrictLanes, "hold", hold)


@mutant("a lease is given two permits", tests="tests/engine/test_on_full.py")
def two_permits(patch: Patch) -> None:
    real = limits.MemoryLimits.take_permits

    def take_permits(self: Any, request: Any, worker: Any, now: float) -> Any:
        for limit in request.limits if request.lease is not None else ():
            self.leases.get(limit.name, {}).pop(request.lease.token, None)
        return real(self, request, worker, now)

    patch(limits.MemoryLimits, "take_permits", take_permits)


# ------------------------------------------------------------------------------- items that have not started


@mutant("an item that is replaced by its key keeps its old input")
def old_input_kept(patch: Patch) -> None:
    real = submission.changed_item
    plant(patch, operate, real, lambda item, new: replace(real(item, new), input=item.input))


@mutant("a submit that is repeated changes the earlier item again")
def change_repeated(patch: Patch) -> None:
    plant(patch, submission, submission.takes_over, lambda holder, new: holder.unstarted)


@mutant("a debounced item is put off without limit")
def debounced_for_ever(patch: Patch) -> None:
    real = times.changed_due_at

    def due_at(new: Any, queued_at: float, now: float) -> float:
        return real(replace(new, debounce_max=None), queued_at, now)

    plant(patch, operate, real, due_at)


@mutant("a taken key is no error")
def taken_key_accepted(patch: Patch) -> None:
    real = submission.plan_submission

    def plan(items: Any, *given: Any) -> Any:
        lenient = {"error": "existing"}
        items = [replace(item, key_policy=lenient.get(item.key_policy, item.key_policy)) for item in items]
        return real(items, *given)

    plant(patch, submit, real, plan)


@mutant("an update does not change the deadline")
def deadline_not_updated(patch: Patch) -> None:
    plant(patch, operate, operate.set_deadline, lambda store, row, deadline: None)


@mutant("an updated item keeps its old queue")
def old_queue_kept(patch: Patch) -> None:
    real = operate.move

    def move(store: Any, row: Any, item: Any, due: float, now: float) -> None:
        real(store, row, replace(item, queue=row.item.queue), due, now)

    plant(patch, operate, real, move)


@mutant("an item is said to start when it ends")
def started_at_its_end(patch: Patch) -> None:
    plant(patch, settle, times.began_at, lambda ran, claimed_at, now: now)
