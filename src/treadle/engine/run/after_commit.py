"""After the commit: free the lease, count, emit events, answer waiters, send wake-ups.

Nothing is announced before the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from treadle.engine.core import Core
from treadle.engine.wait.wakeups import Line
from treadle.events import (
    Cancelled,
    Dead,
    Deferred,
    Expired,
    Failed,
    LeaseLost,
    Succeeded,
    Suspended,
    from_lease,
)
from treadle.item import Effects, Ended, EndedGroup, GroupState, ItemState, Loss, Ref, Wake, WakeResult
from treadle.metrics.series import EndedAttempt, TypeMetrics
from treadle.retry import retry_call

from .decide import Await, Die, Drop, GiveBack, PendingSettlement, RunAgain, Succeed, unbegun
from .held import HeldLease, HeldLeases
from .outcome_log import OutcomeLog
from .settle import BACKOFF

Successes: TypeAlias = dict[tuple[TypeMetrics, str], list[EndedAttempt]]
"""The attempts of a batch that succeeded, by the metrics of their type and by queue."""
SMALL: Final = 500
"""A result of no more bytes goes into the wake-up that tells of it."""
ENDINGS: Final = (Succeed, Die, Drop)
"""The decisions that end an item."""

MOST_CONFIRMED: Final = 1000
"""Groups that are remembered as announced."""


class AfterCommit:
    """on_free: called when leases were freed, so that there is room to claim."""

    def __init__(self, core: Core, held: HeldLeases, on_free: Callable[[], None]) -> None:
        self._core = core
        self._clock = core.settings.clock
        self._held = held
        self.on_free = on_free
        self.log = OutcomeLog(core.settings)
        self._confirmed: dict[tuple[Ref, float | None], None] = {}
        """Groups that settlements without an answer have ended, and when: the last `MOST_CONFIRMED`."""

    def settled(self, batch: Sequence[PendingSettlement], effects: Effects, at: float) -> None:
        """The store has answered these for good. `at`: when it did them, by its clock; 0 if unknown."""
        unconfirmed = [pending for pending in batch if pending.outcome is not None and pending.outcome.again]
        if unconfirmed:
            self._core.tasks.start(self._conclude_unconfirmed(unconfirmed, at), "settle")
            batch = [each for each in batch if each not in unconfirmed or each.maybe_applied is None]
        self._conclude(batch, effects, at)
        if unconfirmed:
            self._core.wakeups.ready()  # the first, lost answer named the items that were released

    def lost(self, held: HeldLease, why: Loss) -> None:
        """Another worker owns the item now, or it has ended. Drop the lease."""
        if self._held.drop(held.lease) is None:
            return
        held.over = True
        self._count_lost(held, why)
        self.on_free()

    def _conclude(self, batch: Sequence[PendingSettlement], effects: Effects, at: float) -> None:
        """Everything that follows from what is in the store now."""
        core = self._core
        ended: list[Ref] = []
        groups = [(group.tenant, group.id) for group in effects.ended_groups]
        claimable: set[Line] = {(item.type, item.queue) for item in effects.released}
        now, strict = (self._clock.monotonic(), self._clock.now()), core.strict_types
        successes: Successes = {}
        for pending in batch:
            try:
                self._conclude_one(pending, ended, now, at, successes)
            except Exception as error:  # noqa: BLE001  it is settled; go on with the others
                core.hooks.report(error, "settle", f"could not announce the outcome of {pending.lease.id}")
            if pending.children or not isinstance(pending.decision, Succeed):
                claimable.update(_claimable(pending))
            if strict and pending.lease.type in strict:
                claimable.add((pending.lease.type, ""))  # its lane may be free, in any queue
        for (metrics, queue), attempts in successes.items():
            metrics.succeeded_together(attempts, queue, now[1])
        if effects.released or core.hooks.on_event is not None or core.waiters.groups.futures:
            core.announcer.effects(_with_own_deaths(batch, effects), at, self._answer_group)
        if core.unwatched_groups is not None:
            for group in effects.ended_groups:
                core.unwatched_groups.ended(group)
        results = _results(batch, effects) if core.wakeups.takes_results else None
        more = bool(effects.doomed or claimable)
        core.wakeups.ended(ended, groups, results=results, more=more)
        if more:
            core.wakeups.ready(None if effects.doomed else claimable)
        self.on_free()

    def _conclude_one(
        self,
        pending: PendingSettlement,
        ended: list[Ref],
        now: tuple[float, float],
        at: float,
        successes: Successes,
    ) -> None:
        """One attempt is over. A success that ran here is added to `successes`, anything else is counted."""
        lease, outcome, core = pending.lease, pending.outcome, self._core
        held = self._held.drop(lease)
        if outcome is not None and outcome.verb == "stale":
            if held is not None:
                self._count_lost(held, outcome.loss or "taken")
            return
        succeeded = isinstance(pending.decision, Succeed)
        if succeeded and held is not None and pending.started:
            ran = now[0] - pending.started
            attempt = (ran, lease.claimed_at - lease.queued_at + ran, lease.attempt)
            successes.setdefault((held.bound.metrics, lease.queue), []).append(attempt)
        else:
            self._count(pending, held, now)
        hooks = core.hooks
        if (hooks.on_event is not None or hooks.by_type) and hooks.listening(lease.type):
            self._emit(pending, held, at)
        if succeeded or isinstance(pending.decision, ENDINGS):
            ref = (lease.tenant, lease.id)
            ended.append(ref)
            if ref in core.waiters.items.futures:
                self._answer_item(pending, ref)
        if pending.children:
            existing = None if outcome is None else outcome.existing
            core.announcer.queued(pending.children, at, existing, lease)

    def _count_lost(self, held: HeldLease, why: Loss) -> None:
        held.bound.metrics.lost(held.started > 0, why)
        self.log.lost(held, why)
        if self._core.hooks.listening(held.lease.type):
            now = self._clock.monotonic()
            # An operator has ended it: this is its last event. Otherwise it runs elsewhere, and more follow.
            at = held.event_time(now) if why == "taken" else held.store_time(now)
            self._core.hooks.emit(from_lease(LeaseLost, held.lease, at, reason=why))

    def _count(self, pending: PendingSettlement, held: HeldLease | None, now: tuple[float, float]) -> None:
        """Count the outcome, and log it if it is no success. `now`: monotonic and wall-clock time, read once
        for the whole batch."""
        lease, ran_here = pending.lease, held is not None
        core = self._core
        metrics = core.metrics.of(core.registry.name_of(lease.type)) if held is None else held.bound.metrics
        ran = now[0] - pending.started if pending.started else None
        total = lease.claimed_at - lease.queued_at + (ran or 0.0)
        match pending.decision:
            case Succeed():
                metrics.succeeded_in(ran, total, lease.attempt, queue=lease.queue, held=ran_here, at=now[1])
            case Die(reason=reason) as decision:
                metrics.died(ran, total, lease.attempt, reason=reason, queue=lease.queue, held=ran_here)
                begun = bool(pending.started or pending.held_since)
                self.log.died(lease, decision, held, pending.span, begun=begun)
            case RunAgain(kind=kind) as decision:
                metrics.again(kind, ran, queue=lease.queue, held=ran_here)
                self.log.failed(lease, decision, held, pending.span)
            case Drop():
                metrics.dropped_one(pending.started > 0, queue=lease.queue, held=ran_here)
            case GiveBack():
                metrics.released(pending.started > 0, held=ran_here)
            case Await():
                metrics.suspended_one(ran, queue=lease.queue, held=ran_here)

    def _emit(self, pending: PendingSettlement, held: HeldLease | None, settled_at: float) -> None:
        lease, emit = pending.lease, self._core.hooks.emit
        at = max(settled_at, lease.claimed_at)
        if held is not None and (pending.started or not settled_at):
            # Not before its start, which this worker has estimated.
            at = max(at, held.event_time(pending.started if settled_at else self._clock.monotonic()))
        match pending.decision:
            case Succeed(plan=plan):
                emit(from_lease(Succeeded, lease, at, result=plan.value))
            case RunAgain(kind="retry", error=error):
                emit(from_lease(Failed, lease, at, error=error or _unknown_error(), will_retry=True))
            case RunAgain(delay=delay, run_at=run_at):
                emit(from_lease(Deferred, lease, at, run_at=at + delay if run_at is None else run_at))
            case Die(reason=reason, error=error, failure=failure):
                if reason == "expired":
                    emit(from_lease(Expired, lease, at, deadline=lease.deadline or at))
                elif error is not None:
                    emit(from_lease(Failed, lease, at, error=error, will_retry=False))
                emit(from_lease(Dead, lease, at, reason=reason, error=error, text=str(failure)))
            case Drop(failure=failure):
                emit(from_lease(Cancelled, unbegun(lease), at, error=str(failure)))
            case Await(waits=waits) as decision:
                signal = next((step.signal for step, *_ in waits if step.kind == "signal"), None)
                emit(from_lease(Suspended, lease, at, until=decision.until(at), signal=signal))
            case GiveBack():
                pass

    def _answer_item(self, pending: PendingSettlement, ref: Ref) -> None:
        """Answer the waiters of this process without asking the store."""
        lease = pending.lease
        state = ItemState(
            id=lease.id, type=lease.type, status="success", tenant=lease.tenant, group_id=lease.group_id
        )
        state.attempt, state.result = lease.attempt, pending.result
        if isinstance(pending.decision, Die | Drop):
            failure = pending.decision.failure
            state.status, state.error, state.error_type = "dead", str(failure), failure.type
        if isinstance(pending.decision, Die):
            state.reason = pending.decision.reason
        elif isinstance(pending.decision, Drop):
            state.status = "cancelled"
        self._core.waiters.answer_item(ref, state)

    def _answer_group(self, group: EndedGroup) -> None:
        """The same for a group with a value. If deaths failed it, or it has no value, the store is asked."""
        ref = (group.tenant, group.id)
        if ref not in self._core.waiters.groups.futures:
            return
        if group.value is None or group.failed != 0:
            self._core.waiters.receive(Wake(groups=(ref,)))
            return
        state = GroupState(id=group.id, tenant=group.tenant, type=group.type, open=0)
        state.value, state.contributed = group.value, True
        self._core.waiters.answer_group(ref, state)

    async def _conclude_unconfirmed(self, batch: Sequence[PendingSettlement], at: float) -> None:
        """Conclude settlements that a call whose answer was lost has applied. Meanwhile waiters here poll.

        Repeated, such a settlement is answered `applied` with `again`. It does not say which group it ended,
        so the store is asked for the group. If it ended at the same instant as the item, the settlement ended
        it: a settlement writes one instant for everything that it ends.
        """
        core = self._core
        items = [_item(pending) for pending in batch]
        groups = list(dict.fromkeys(_group(pending) for pending in batch))
        ended = await retry_call(
            lambda: core.backend.ended(items, groups),
            BACKOFF,
            on=lambda error: core.hooks.report(error, "settle", "could not ask what was settled"),
            clock=self._clock,
            random=core.settings.random.random,
        )
        doubtful = [_applied(pending, ended) for pending in batch if pending.maybe_applied is not None]
        news = tuple(group for group in ended_groups(batch, ended) if self._is_news(group, ended))
        self._conclude(doubtful, Effects(ended_groups=news), at)

    def _is_news(self, group: EndedGroup, ended: Ended) -> bool:
        """Whether this end of the group is announced for the first time. The settlements of one call end
        their items at one instant, and may be repeated in several calls."""
        ref = (group.tenant, group.id)
        end = (ref, ended.groups[ref].ended_at)
        if end in self._confirmed:
            return False
        self._confirmed[end] = None
        if len(self._confirmed) > MOST_CONFIRMED:
            del self._confirmed[next(iter(self._confirmed))]
        return True


def _with_own_deaths(batch: Sequence[PendingSettlement], effects: Effects) -> Effects:
    """The same effects, where the death of a root is known to have failed its group: it has no other members
    that could have ended later. An item that tolerates it elsewhere is not known here."""
    if all(group.failed is not None for group in effects.ended_groups):
        return effects
    died = {
        _item(pending)
        for pending in batch
        if isinstance(pending.decision, Die) and pending.lease.id == pending.lease.group_id
    }
    groups = [
        replace(group, failed=1) if group.failed is None and (group.tenant, group.id) in died else group
        for group in effects.ended_groups
    ]
    return replace(effects, ended_groups=tuple(groups))


def _results(batch: Sequence[PendingSettlement], effects: Effects) -> dict[Ref, WakeResult]:
    """The results of the items that succeeded, as far as they are small."""
    values = {(each.tenant, each.id): each.value for each in effects.ended_groups if each.failed == 0}
    results: dict[Ref, WakeResult] = {}
    for pending in batch:
        lease, result, outcome = pending.lease, pending.result, pending.outcome
        if isinstance(pending.decision, Succeed) and (outcome is None or outcome.verb == "applied"):
            if result is not None and len(result) > SMALL:
                continue
            ref = (lease.tenant, lease.id)
            ends_group = result is not None and values.get(ref) == result
            results[ref] = WakeResult(lease.type, lease.queued_at, result, ends_group)
    return results


def _claimable(pending: PendingSettlement) -> list[Line]:
    """The types and queues that may have something to claim after this settlement."""
    outcome, decision = pending.outcome, pending.decision
    if outcome is not None and outcome.verb == "stale":
        return []
    lines = [(child.type, child.queue) for child in pending.children]
    limited = isinstance(decision, GiveBack) and decision.limited
    # A suspended item that is not ready at once, and has no time, is told of by the signal that wakes it.
    waits = isinstance(decision, Await) and decision.until(0.0) is None and not (outcome and outcome.ready)
    if not isinstance(decision, ENDINGS) and not limited and not waits:
        lines.append((pending.lease.type, pending.lease.queue))
    return lines


def _unknown_error() -> Exception:
    return RuntimeError("the error of this attempt is not known here")


def _applied(pending: PendingSettlement, ended: Ended) -> PendingSettlement:
    """Of the two settlements that may have been applied, the one that was."""
    state = ended.items.get(_item(pending))
    assert pending.maybe_applied is not None
    return pending.maybe_applied if state is not None and state.status == "success" else pending


def ended_groups(batch: Sequence[PendingSettlement], ended: Ended) -> tuple[EndedGroup, ...]:
    """The groups that ended together with one of these items. A settlement that runs its item again ends no
    group: if the item has ended since, the later settlement announces that."""
    together: set[Ref] = set()
    for pending in batch:
        if not isinstance(pending.decision, ENDINGS):
            continue
        item, group = ended.items.get(_item(pending)), ended.groups.get(_group(pending))
        if item is not None and group is not None and item.ended_at == group.ended_at:
            together.add(_group(pending))
    return tuple(
        EndedGroup(
            group.id,
            group.tenant,
            group.value if isinstance(group.value, bytes) else None,
            group.type,
            group.failed,
        )
        for ref, group in ended.groups.items()
        if ref in together
    )


def _item(pending: PendingSettlement) -> Ref:
    return (pending.lease.tenant, pending.lease.id)


def _group(pending: PendingSettlement) -> Ref:
    return (pending.lease.tenant, pending.lease.group_id)
