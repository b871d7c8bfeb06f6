"""Bugs of a backend. Each changes one place of the memory backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from tests.mutants.kit import Patch, mutant
from treadle.backends.memory import (
    backend,
    claim,
    due,
    endings,
    gates,
    groups,
    moves,
    operate,
    permits,
    remove,
    schedules,
    settle,
    submit,
    workers,
)
from treadle.item import Contribution, Rejected
from treadle.rules import settlement, submission

# ---------------------------------------------------------------------------------------------------- fencing


@mutant("settle does not check the token")
def no_fencing(patch: Patch) -> None:
    patch(settle, "owns", lambda lease, row: bool(row.token))


@mutant("a token is given out twice")
def token_reuse(patch: Patch) -> None:
    def lease(store: Any, row: Any, worker: Any, now: float) -> Any:
        if store.token and store.token % 7 == 0:
            store.token -= 1
        return moves.lease(store, row, worker, now)

    patch(claim, "lease", lease)


@mutant("a repeated settlement with its own token is refused as stale")
def again_is_stale(patch: Patch) -> None:
    real = settle.loss_of
    patch(settle, "loss_of", lambda row, lease: real(row, lease) or "taken")


@mutant("children are stored before the token is checked")
def children_before_the_fence(patch: Patch) -> None:
    real = settle._settle_one

    def settle_one(call: Any, settlement: Any) -> Any:
        outcome = real(call, settlement)
        if outcome.verb == "stale" and settlement.children:
            plan = submit.make_plan(call.store, settlement.children, call.now)
            for item in () if isinstance(plan, Rejected) else plan.new.values():
                submit.admit(call.store, item, call.now)
        return outcome

    patch(settle, "_settle_one", settle_one)


@mutant("an item is ready again before its worker's lease lapses")
def freed_early(patch: Patch) -> None:
    patch(claim, "bury_lapsed", lambda store, now: workers.bury_lapsed(store, now + 2.5))


@mutant("the items of a dead worker stay leased")
def not_freed(patch: Patch) -> None:
    patch(workers, "free", lambda store, row, now: moves.unlease(row))


@mutant("a heartbeat does not report lost leases")
def silent_beat(patch: Patch) -> None:
    patch(workers, "_lost", lambda store, held: {})


@mutant("unknown leases are not found")
def no_orphans(patch: Patch) -> None:
    patch(workers, "unknown_leases", lambda store, worker, known: [])


# --------------------------------------------------------------------------------------------------- attempts


@mutant("a claim does not count the attempt")
def attempt_not_counted(patch: Patch) -> None:
    def lease(store: Any, row: Any, worker: Any, now: float) -> Any:
        found = moves.lease(store, row, worker, now)
        row.attempt -= row.doom is None
        return found

    patch(claim, "lease", lease)


def _after_return(patch: Patch, kind: str, spoil: Callable[[Any], None]) -> None:
    real = settle._return

    def returned(call: Any, row: Any, settlement: Any) -> None:
        real(call, row, settlement)
        if settlement.kind == kind and row.doom is None:
            spoil(row)

    patch(settle, "_return", returned)


@mutant("a deferral counts its attempt")
def deferral_burns(patch: Patch) -> None:
    def spoil(row: Any) -> None:
        row.attempt += 1

    _after_return(patch, "defer", spoil)


@mutant("a release counts its attempt")
def release_burns(patch: Patch) -> None:
    def spoil(row: Any) -> None:
        row.attempt += 1

    _after_return(patch, "release", spoil)


@mutant("spent attempts are not checked when a worker dies")
def no_budget(patch: Patch) -> None:
    patch(settlement, "budget_spent", lambda attempt, attempts: False)


@mutant("an item whose workers keep dying has no backoff")
def no_backoff(patch: Patch) -> None:
    patch(settlement, "loss_delay", lambda losses: 0.0)


@mutant("requeue keeps the old attempts")
def requeue_keeps_attempts(patch: Patch) -> None:
    real = operate._revive

    def revive(store: Any, row: Any, due_at: float, now: float) -> None:
        attempt = row.attempt
        real(store, row, due_at, now)
        row.attempt = attempt

    patch(operate, "_revive", revive)


# ------------------------------------------------------------------------------------ groups and dependencies


def _after_end(patch: Patch, spoil: Callable[[Any, Any, int], None]) -> None:
    real = endings.member_ended

    def member_ended(store: Any, row: Any, now: float, following: Any) -> None:
        before = len(following.closed)
        real(store, row, now, following)
        spoil(row, following, before)

    patch(endings, "member_ended", member_ended)


@mutant("a group's counter goes down twice")
def counted_twice(patch: Patch) -> None:
    def spoil(row: Any, following: Any, before: int) -> None:
        if row.group is not None and row.group.open > 1:
            row.group.open -= 1

    _after_end(patch, spoil)


@mutant("a group is closed twice")
def closed_twice(patch: Patch) -> None:
    def spoil(row: Any, following: Any, before: int) -> None:
        following.closed += following.closed[before:]

    _after_end(patch, spoil)


@mutant("a group that ends is not announced")
def not_closed(patch: Patch) -> None:
    def spoil(row: Any, following: Any, before: int) -> None:
        if row.group is not None:
            del following.closed[before:]

    _after_end(patch, spoil)


@mutant("requeue does not open the group again")
def not_reopened(patch: Patch) -> None:
    patch(operate, "reopen", lambda store, row: None)


def _gate(patch: Patch, rule: Callable[[int, int, int], str]) -> None:
    patch(submission, "dependency_state", rule)


@mutant("an item is released one dependency too early")
def released_early(patch: Patch) -> None:
    _gate(patch, lambda need, met, left: "released" if met >= max(need - 1, 0) else "waiting")


@mutant("an item whose dependencies cannot be met is not doomed")
def never_doomed(patch: Patch) -> None:
    _gate(patch, lambda need, met, left: "released" if met >= need else "waiting")


@mutant("a released item is not announced")
def silent_release(patch: Patch) -> None:
    real = gates._decide

    def decide(store: Any, row: Any, found: Any, now: float, following: Any) -> None:
        before = len(following.released)
        real(store, row, found, now, following)
        del following.released[before:]

    patch(gates, "_decide", decide)


@mutant("a dead dependency counts as a success")
def failure_counts(patch: Patch) -> None:
    patch(submission, "counts", lambda counting, status: True)


@mutant("the version of an append is not checked")
def version_ignored(patch: Patch) -> None:
    patch(settle, "_moved", lambda call, row, contribution: None)


@mutant("a final value is not final")
def not_final(patch: Patch) -> None:
    def contribute(store: Any, row: Any, contribution: Contribution) -> Any:
        return groups.contribute(store, row, replace(contribution, final=False))

    patch(settle, "contribute", contribute)


@mutant("cancel does not cancel descendants")
def orphaned_children(patch: Patch) -> None:
    patch(operate, "_descendants", lambda rows: iter(dict.fromkeys(rows)))


# ---------------------------------------------------------------------------------------------- time and keys


@mutant("one due item is not made ready")
def promotion_skips(patch: Patch) -> None:
    real = due.Due.take

    def take(self: Any, now: float, most: int) -> Any:
        rows = list(real(self, now, most))
        return iter(rows[1:] if len(rows) > 1 else rows)

    patch(due.Due, "take", take)


@mutant("a scheduled item is handed out before it is due")
def claimed_before_due(patch: Patch) -> None:
    def wait_again(store: Any, row: Any, again: Any, now: float) -> None:
        moves.wait_again(store, row, again, now)
        if row.status == "scheduled":
            moves.leave_pile(row)
            moves.make_ready(store, row, now)

    patch(settle, "wait_again", wait_again)


@mutant("an item whose deadline passes while it waits does not expire")
def no_expiry(patch: Patch) -> None:
    def expire(store: Any, expiry: Any) -> None:
        expiry.row.expiry = None

    patch(claim, "expire", expire)


@mutant("the scope of a key is not checked")
def key_scope_ignored(patch: Patch) -> None:
    patch(submission, "key_answers", lambda scope, group_open, age: True)


@mutant("items are pruned too early")
def pruned_early(patch: Patch) -> None:
    real = remove.prune
    patch(remove, "prune", lambda store, limit, now: real(store, limit, now + 86000))


@mutant("items are pruned while other items wait for them")
def pruned_while_waited_for(patch: Patch) -> None:
    def over(store: Any, row: Any, now: float) -> bool:
        return row.group is None or remove._gone_by(row, row.group, now)

    patch(remove, "_over", over)


@mutant("a claimed key is given to a second claimer")
def key_for_all(patch: Patch) -> None:
    patch(permits.Permits, "claim", lambda self, key, owner, ttl, now: True)


@mutant("an occurrence fires twice")
def fires_again(patch: Patch) -> None:
    def fire(store: Any, fire: Any, now: float) -> Any:
        if fire.name not in store.schedules:
            return None
        return submit.submit_together(store, fire.items, now)

    patch(schedules, "fire", fire)


@mutant("a paused queue is served")
def pause_ignored(patch: Patch) -> None:
    patch(operate, "pause", lambda store, queue, tenant, paused: None)


# ---------------------------------------------------------------------------------------------------- tenants


@mutant("get returns items of another tenant")
def get_leaks(patch: Patch) -> None:
    real = backend.MemoryBackend.get

    async def get(self: Any, ids: Any, *, tenant: str | None = None) -> Any:
        return await real(self, ids, tenant=None)

    patch(backend.MemoryBackend, "get", get)


@mutant("cancel cancels items of another tenant")
def cancel_leaks(patch: Patch) -> None:
    real = operate.cancel
    patch(operate, "cancel", lambda store, ids, tenant, now: real(store, ids, None, now))


@mutant("claim hands out items of another tenant")
def claim_leaks(patch: Patch) -> None:
    real = claim.claim
    patch(claim, "claim", lambda store, demand, now: real(store, replace(demand, tenants=None), now))


@mutant("one tenant is served before all others")
def unfair(patch: Patch) -> None:
    real = claim.HandOut._serve

    def serve(self: Any, line: Any, most: int) -> Any:
        return real(self, line, self._left)

    patch(claim.HandOut, "_serve", serve)
