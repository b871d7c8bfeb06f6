"""Settle: apply each settlement whose token still owns its item, all of it or none of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, assert_never

from treadle.item import Contribution, Lease, Loss, Outcome, Ref, Rejected, Settled, Settlement
from treadle.rules import (
    KEPT_ATTEMPTS,
    SubmitPlan,
    as_child,
    contribution_state,
    death_reason,
    failed_attempt,
    is_fold,
    put_back,
    recorded_failure,
)
from treadle.rules import loss_of as loss_rule

from .endings import end, tell
from .following import Following
from .groups import contribute, group_of, value_of
from .moves import remember, unlease, wait_again
from .quick import APPLIED, succeed_plain
from .rows import Row
from .store import Store
from .submit import admit, make_plan

Ending: TypeAlias = Literal["success", "dead", "cancelled"]

AGAIN = Outcome(verb="applied", again=True)
NOTHING_NEW = SubmitPlan()


class Call:
    """One call of settle: what followed, and whose folds have been refused so far."""

    __slots__ = ("following", "now", "refused", "store")

    def __init__(self, store: Store, now: float) -> None:
        self.store = store
        self.now = now
        self.following = Following()
        self.refused: set[Ref] = set()
        """Groups. A later fold of theirs may have been computed from one that did not happen."""


def settle(store: Store, settlements: Sequence[Settlement], now: float) -> Settled:
    call = Call(store, now)
    following = call.following
    outcomes = [
        succeed_plain(store, settlement, now, following) or _settle_one(call, settlement)
        for settlement in settlements
    ]
    return Settled(tuple(outcomes), call.following.effects())


def _settle_one(call: Call, settlement: Settlement) -> Outcome:
    lease = settlement.lease
    row = call.store.find(lease.tenant, lease.id)
    if row is not None and owns(lease, row):
        outcome = _apply(call, row, settlement)
    else:
        outcome = _without_lease(row, lease)
    if outcome.verb != "applied":
        _note_refused_fold(call, settlement)
    return outcome


def _apply(call: Call, row: Row, settlement: Settlement) -> Outcome:
    match settlement.kind:
        case "success":
            return _succeed(call, row, settlement)
        case "dead":
            return _die(call, row, settlement)
        case "cancelled":
            _sign(row)
            _end(call, row, "cancelled")
            return APPLIED
        case "retry" | "defer" | "release":
            _return(call, row, settlement)
            return APPLIED
        case _:
            assert_never(settlement.kind)


def _note_refused_fold(call: Call, settlement: Settlement) -> None:
    if is_fold(settlement):
        call.refused.add((settlement.lease.tenant, settlement.lease.group_id))


# ----------------------------------------------------------------------------------------------------- tokens


def _without_lease(row: Row | None, lease: Lease) -> Outcome:
    loss = loss_of(row, lease)
    return AGAIN if loss is None else Outcome(verb="stale", loss=loss)


def owns(lease: Lease, row: Row) -> bool:
    return row.token != 0 and row.token == lease.token


def loss_of(row: Row | None, lease: Lease) -> Loss | None:
    """Why a token does not own its row. None: because it has settled it."""
    if row is None or row.number != lease.ref:
        return "not_found"
    ended = None if row.ended_at is None else row.status
    return loss_rule(lease.token, row.settled, ended, by_operator=row.by is None)


def _sign(row: Row) -> None:
    """Remember that this token has settled it, should its answer be lost."""
    row.settled = (*row.settled[1 - KEPT_ATTEMPTS :], row.token) if row.settled else (row.token,)


# ------------------------------------------------------------------------------------------------------- ends


def _succeed(call: Call, row: Row, settlement: Settlement) -> Outcome:
    contribution = settlement.contribution
    plan = _plan_children(call, row, settlement)
    if isinstance(plan, Rejected):
        return Outcome(verb="rejected", rejected=plan)
    if contribution is not None:
        moved = _moved(call, row, contribution)
        if moved is not None:
            return moved
    _sign(row)
    row.result = settlement.result
    value = None if contribution is None else contribute(call.store, row, contribution)
    _end(call, row, "success", plan)
    existing = plan.existing or None
    if value is not None:
        return Outcome(verb="applied", version=value.version, value=value.value, existing=existing)
    return Outcome(verb="applied", existing=existing) if existing else APPLIED


def _die(call: Call, row: Row, settlement: Settlement) -> Outcome:
    plan = _plan_children(call, row, settlement)
    if isinstance(plan, Rejected):
        return Outcome(verb="rejected", rejected=plan)
    _sign(row)
    _remember_failure(call, row, settlement)
    row.reason = death_reason(settlement, row.doom)
    _end(call, row, "dead", plan)
    existing = plan.existing or None
    return Outcome(verb="applied", existing=existing) if existing else APPLIED


def _moved(call: Call, row: Row, contribution: Contribution) -> Outcome | None:
    """A fold that was computed from another value than the group's; None if it is the group's."""
    value = value_of(row)
    refused = (row.kind.tenant, row.group_id) in call.refused
    state = contribution_state(contribution, value.version, final=value.final, refused=refused)
    if state != "moved":
        return None
    return Outcome(verb="moved", version=value.version, value=value.value, final=value.final)


def _end(call: Call, row: Row, status: Ending, plan: SubmitPlan = NOTHING_NEW) -> None:
    store, now = call.store, call.now
    group = group_of(store, row) if plan.new else None
    end(store, row, status, now)
    for item in plan.new.values():
        admit(store, item, now, group)
    tell(store, row, now, call.following)


def _remember_failure(call: Call, row: Row, settlement: Settlement) -> None:
    failure = recorded_failure(settlement, row.doom)
    if failure is not None:
        remember(row, failed_attempt(failure, row.attempt, call.now, row.by or ""))


# --------------------------------------------------------------------------------------------------- children


def _plan_children(call: Call, row: Row, settlement: Settlement) -> SubmitPlan | Rejected:
    if not settlement.children:
        return NOTHING_NEW
    tenant, parent = row.kind.tenant, row.item.id
    return make_plan(call.store, [as_child(item, tenant, parent) for item in settlement.children], call.now)


# -------------------------------------------------------------------------------------------------- returning


def _return(call: Call, row: Row, settlement: Settlement) -> None:
    """Not an end: it is run again, sooner or later. What is doomed stays doomed."""
    store, now = call.store, call.now
    _sign(row)
    if row.doom is not None:
        unlease(row)
        store.doomed.add(row)
        return
    _remember_failure(call, row, settlement)
    unlease(row)
    again = put_back(settlement, now, attempt=row.attempt, due=row.due_at, deadline=row.deadline)
    wait_again(store, row, again, now)
