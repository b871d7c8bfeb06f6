"""Settle: apply each settlement whose token still owns its item, as a whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, assert_never

from msgspec import Struct, field

from treadle.item import (
    GROUP_MARK,
    OWN_RESULT,
    Contribution,
    EndedGroup,
    Outcome,
    Ref,
    Rejected,
    Settled,
    Settlement,
)
from treadle.store.rules.settlement import (
    KEPT_ATTEMPTS,
    LONE_VERSION,
    applied_contribution,
    contributed,
    contribution_state,
    death_reason,
    failed_attempt,
    is_fold,
    put_back,
    recorded_failure,
)
from treadle.store.rules.submission import SubmitPlan, as_child
from treadle.store.rules.times import began_at

from .endings import CollectedEffects, count_end, end
from .groups import contribute, group_of, value_of
from .operate import take_over
from .rows import MemoryGroup, Row
from .steps import suspend, write_logs
from .submit import make_plan, store_children
from .tables import MemoryTables
from .transitions import add_to_history, owns, unlease, wait_again, why_lost

EndStatus: TypeAlias = Literal["success", "dead", "cancelled"]

APPLIED = Outcome(verb="applied")
AGAIN = Outcome(verb="applied", again=True)
NOTHING_NEW = SubmitPlan()


class MemorySettleCall(Struct):
    """One call of settle: its effects, and the groups whose folds it has refused so far."""

    store: MemoryTables
    now: float
    effects: CollectedEffects = field(default_factory=CollectedEffects)
    refused: set[Ref] = set()


def settle(store: MemoryTables, settlements: Sequence[Settlement], now: float) -> Settled:
    call = MemorySettleCall(store, now)
    effects = call.effects
    if logged := [one for one in settlements if one.log is not None]:
        write_logs(store, logged)
    outcomes = [
        succeed_plain(store, settlement, now, effects) or settle_one(call, settlement)
        for settlement in settlements
    ]
    return Settled(tuple(outcomes), effects.result(), now)


def succeed_plain(
    store: MemoryTables, settlement: Settlement, now: float, effects: CollectedEffects
) -> Outcome | None:
    """End a running item that queues nothing and waited for nothing: a root that is alone, and for which no
    item waits, with its result as the group's value; or a member of a group.

    Does what `settle_one` does, without looking for what most items do not have. None: this settlement needs
    `settle_one`.

    A claim and a settle of roots take half the time together.
    """
    lease, contribution = settlement.lease, settlement.contribution
    row = store.items.get(lease.id)
    if (
        settlement.kind != "success"
        or settlement.children
        or not isinstance(row, Row)
        or row.token != lease.token
        or row.worker is None
        or row.verdict is not None
        or row.dependencies is not None
        or row.deadline is not None
        or row.held_lane is not None
        or row.losses
        or row.settled_by
        or (row.group.final if row.group is not None else store.waiters and _is_awaited(store, row))
        or (contribution is not None and not row.item.contributes)
        or (contribution is not None and contribution != OWN_RESULT and not _is_new_value(contribution, row))
    ):
        return None
    kind, id, result = row.kind, row.item.id, settlement.result
    del row.worker.held[lease.token]
    row.settled_by = (row.token,)
    row.token = 0
    row.worker = None
    counts = kind.counts
    counts["running"] -= 1
    counts["success"] += 1
    row.status = "success"
    row.result = result
    row.ended_at = now
    if settlement.ran is not None:
        row.started_at = began_at(settlement.ran, row.claimed_at, now)
    if row.group is not None:
        return _end_member(store, row, row.group, settlement, now, effects)
    bundle = effects.bundle
    if bundle is None or bundle.keep != row.item.keep:
        effects.bundle = store.retention.new_bundle(now, row)
    else:
        bundle.add(row)
    if contribution is None:
        effects.ended_groups.append(EndedGroup(id, kind.tenant, None, kind.type, 0))
        return APPLIED
    row.contributed = True
    effects.ended_groups.append(EndedGroup(id, kind.tenant, result, kind.type, 0))
    return Outcome(verb="applied", version=LONE_VERSION, value=result)


def _is_new_value(contribution: Contribution, row: Row) -> bool:
    """Whether it is just the new value of the group."""
    return row.group is not None and contribution.version is None and not contribution.final


def _end_member(
    store: MemoryTables,
    row: Row,
    group: MemoryGroup,
    settlement: Settlement,
    now: float,
    effects: CollectedEffects,
) -> Outcome:
    value, contribution = None, settlement.contribution
    if contribution is not None:
        value = contributed(contribution, row.result, settlement.lease.token)
        group.version, group.value, group.final = value
        group.contributed = True
    count_end(store, row, now, effects)
    return APPLIED if value is None else Outcome(verb="applied", version=value.version, value=value.value)


def _is_awaited(store: MemoryTables, row: Row) -> bool:
    tenant, id = row.ref
    return (tenant, id) in store.waiters or (tenant, GROUP_MARK + id) in store.waiters


def settle_one(call: MemorySettleCall, settlement: Settlement) -> Outcome:
    lease = settlement.lease
    row = call.store.find(lease.tenant, lease.id)
    if row is not None and owns(lease, row):
        outcome = _apply(call, row, settlement)
    else:
        loss = why_lost(row, lease)
        outcome = AGAIN if loss is None else Outcome(verb="stale", loss=loss)
    if outcome.verb != "applied" and is_fold(settlement):
        call.refused.add((lease.tenant, lease.group_id))
    return outcome


def _apply(call: MemorySettleCall, row: Row, settlement: Settlement) -> Outcome:
    outcome = _settled(call, row, settlement)
    if outcome.verb == "applied" and settlement.ran is not None:
        row.started_at = began_at(settlement.ran, row.claimed_at, call.now)
    return outcome


def _settled(call: MemorySettleCall, row: Row, settlement: Settlement) -> Outcome:
    match settlement.kind:
        case "success":
            return _succeed(call, row, settlement)
        case "dead":
            return _die(call, row, settlement)
        case "cancelled":
            _record_token(row)
            _record_failure(call, row, settlement)
            _end(call, row, "cancelled")
            return APPLIED
        case "retry" | "defer" | "release":
            give_back(call, row, settlement)
            return APPLIED
        case "suspend":
            return _suspend(call, row, settlement)
        case _:
            assert_never(settlement.kind)


def _record_token(row: Row) -> None:
    """Note that its token has settled it: the same settlement may come again if its answer is lost."""
    row.settled_by = (*row.settled_by[1 - KEPT_ATTEMPTS :], row.token) if row.settled_by else (row.token,)


# ------------------------------------------------------------------------------------------------------- ends


def _succeed(call: MemorySettleCall, row: Row, settlement: Settlement) -> Outcome:
    contribution = applied_contribution(settlement, contributes=row.item.contributes)
    plan = _plan_children(call, row, settlement)
    if isinstance(plan, Rejected):
        return Outcome(verb="rejected", rejected=plan)
    if contribution is not None:
        moved = refuse_moved(call, row, contribution)
        if moved is not None:
            return moved
    _record_token(row)
    row.result = settlement.result
    if plan.new:
        group_of(call.store, row)
    value = None if contribution is None else contribute(call.store, row, contribution, row.token)
    _end(call, row, "success", plan)
    existing = plan.existing or None
    if value is not None:
        return Outcome(verb="applied", version=value.version, value=value.value, existing=existing)
    return Outcome(verb="applied", existing=existing) if existing else APPLIED


def refuse_moved(call: MemorySettleCall, row: Row, contribution: Contribution) -> Outcome | None:
    """The answer to a fold that must be computed anew. None: the contribution need not be."""
    value = value_of(row)
    refused = (row.kind.tenant, row.group_id) in call.refused
    state = contribution_state(contribution, value.version, final=value.final, refused=refused)
    if state != "moved":
        return None
    return Outcome(verb="moved", version=value.version, value=value.value, final=value.final)


def _die(call: MemorySettleCall, row: Row, settlement: Settlement) -> Outcome:
    plan = _plan_children(call, row, settlement)
    if isinstance(plan, Rejected):
        return Outcome(verb="rejected", rejected=plan)
    _record_token(row)
    _record_failure(call, row, settlement)
    row.failures += row.verdict is None and row.begun
    row.reason = death_reason(settlement, row.verdict)
    row.mark = settlement.mark
    _end(call, row, "dead", plan)
    return Outcome(verb="applied", existing=plan.existing) if plan.existing else APPLIED


def _plan_children(call: MemorySettleCall, row: Row, settlement: Settlement) -> SubmitPlan | Rejected:
    if not settlement.children:
        return NOTHING_NEW
    tenant, parent = row.kind.tenant, row.item.id
    children = [as_child(item, tenant, parent) for item in settlement.children]
    return make_plan(call.store, children, call.now, row.group_id)


def _end(call: MemorySettleCall, row: Row, status: EndStatus, plan: SubmitPlan = NOTHING_NEW) -> None:
    store, now = call.store, call.now
    group = group_of(store, row) if plan.new else None
    end(store, row, status, now)
    if group is not None:
        store_children(store, plan.new.values(), now, group, call.effects)
    count_end(store, row, now, call.effects)
    if plan.changes:
        take_over(store, plan.changes.items(), now)


def _suspend(call: MemorySettleCall, row: Row, settlement: Settlement) -> Outcome:
    store, now = call.store, call.now
    plan = _plan_children(call, row, settlement)
    if isinstance(plan, Rejected):
        return Outcome(verb="rejected", rejected=plan)
    _record_token(row)
    unlease(row)
    if plan.new:
        store_children(store, plan.new.values(), now, group_of(store, row), call.effects)
    if plan.changes:
        take_over(store, plan.changes.items(), now)
    suspend(store, row, settlement, now)
    return Outcome(verb="applied", ready=row.status == "ready", existing=plan.existing or None)


# ------------------------------------------------------------------------------------------------- put back


def give_back(call: MemorySettleCall, row: Row, settlement: Settlement) -> None:
    """The row will be claimed again. A doomed row stays doomed."""
    store, now = call.store, call.now
    _record_token(row)
    if row.verdict is not None:
        unlease(row)
        store.doomed.add(row)
        return
    _record_failure(call, row, settlement)
    row.deferrals += settlement.kind == "defer"
    unlease(row)
    wait_again(store, row, put_back(settlement, now, row.counters, due=row.due_at, deadline=None), now)


def _record_failure(call: MemorySettleCall, row: Row, settlement: Settlement) -> None:
    failure = recorded_failure(settlement, row.verdict)
    if failure is not None:
        release = None if row.worker is None else row.worker.release
        attempt = failed_attempt(failure, row.attempt, call.now, row.claimed_by or "", release)
        add_to_history(row, attempt)
