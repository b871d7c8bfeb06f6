"""Settle: apply each settlement whose token still owns its item, all of it or none of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, assert_never

from msgspec.structs import replace

from treadle.item import Item, Lease, Loss, Outcome, Ref, Rejected, Settled, Settlement
from treadle.rules import KEPT_ATTEMPTS, due_at, failed_attempt

from .endings import end, tell
from .following import Following
from .groups import contribute, group_of, value_of
from .moves import doom_overdue, remember, unlease, wait
from .quick import APPLIED, succeed_plain
from .rows import Row
from .store import Store
from .submit import Plan, admit, make_plan

Ending: TypeAlias = Literal["success", "dead", "cancelled"]

AGAIN = Outcome(verb="applied", again=True)
NOTHING_NEW = Plan()


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
    contribution = settlement.contribution
    if contribution is not None and contribution.version is not None:
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
    if lease.token in row.settled:
        return None
    if row.ended_at is not None and row.by is None:
        return "cancelled" if row.status == "cancelled" else "completed"
    return "taken"


def _sign(row: Row) -> None:
    """Remember that this token has settled it, should its answer be lost."""
    row.settled = (*row.settled[1 - KEPT_ATTEMPTS :], row.token) if row.settled else (row.token,)


# ------------------------------------------------------------------------------------------------------- ends


def _succeed(call: Call, row: Row, settlement: Settlement) -> Outcome:
    contribution = settlement.contribution
    plan = _plan_children(call, row, settlement)
    if isinstance(plan, Rejected):
        return Outcome(verb="rejected", rejected=plan)
    if contribution is not None and contribution.version is not None:
        moved = _moved(call, row, contribution.version)
        if moved is not None:
            return moved
    _sign(row)
    row.result = settlement.result
    value = None if contribution is None else contribute(call.store, row, contribution)
    _end(call, row, "success", plan)
    existing = _existing(plan, settlement)
    if value is not None:
        return Outcome(verb="applied", version=value.version, value=value.value, existing=existing)
    return Outcome(verb="applied", existing=existing) if existing else APPLIED


def _die(call: Call, row: Row, settlement: Settlement) -> Outcome:
    plan = _plan_children(call, row, settlement)
    if isinstance(plan, Rejected):
        return Outcome(verb="rejected", rejected=plan)
    _sign(row)
    _remember_failure(call, row, settlement)
    row.reason = settlement.reason or row.doom or "aborted"
    _end(call, row, "dead", plan)
    existing = _existing(plan, settlement)
    return Outcome(verb="applied", existing=existing) if existing else APPLIED


def _moved(call: Call, row: Row, version: int) -> Outcome | None:
    """A fold that was computed from another value than the group's; None if it is the group's."""
    value = value_of(row)
    if version == value.version and (row.kind.tenant, row.group_id) not in call.refused:
        return None
    return Outcome(verb="moved", version=value.version, value=value.value, final=value.final)


def _end(call: Call, row: Row, status: Ending, plan: Plan = NOTHING_NEW) -> None:
    store, now = call.store, call.now
    group = group_of(store, row) if plan.new else None
    end(store, row, status, now)
    for item in plan.new.values():
        admit(store, item, now, group)
    tell(store, row, now, call.following)


def _remember_failure(call: Call, row: Row, settlement: Settlement) -> None:
    if settlement.failure is not None:
        remember(row, failed_attempt(settlement.failure, row.attempt, call.now, row.by or ""))


# --------------------------------------------------------------------------------------------------- children


def _plan_children(call: Call, row: Row, settlement: Settlement) -> Plan | Rejected:
    if not settlement.children:
        return NOTHING_NEW
    return make_plan(call.store, [_child(row, item) for item in settlement.children], call.now)


def _child(row: Row, item: Item) -> Item:
    parent = row.item.id if item.parent is None else item.parent
    if item.tenant == row.kind.tenant and item.parent == parent:
        return item
    return replace(item, tenant=row.kind.tenant, parent=parent)


def _existing(plan: Plan, settlement: Settlement) -> dict[str, str] | None:
    found = {
        child.id: ref[1]
        for child, (ref, existing) in zip(settlement.children, plan.answers, strict=True)
        if existing
    }
    return found or None


# -------------------------------------------------------------------------------------------------- returning


def _return(call: Call, row: Row, settlement: Settlement) -> None:
    """Not an end: it is run again, sooner or later. What is doomed stays doomed."""
    store, now = call.store, call.now
    _sign(row)
    if row.doom is not None:
        unlease(row)
        store.doomed.add(row)
        return
    if settlement.kind == "retry":
        _remember_failure(call, row, settlement)
    else:
        row.attempt -= 1
    unlease(row)
    row.losses = 0
    if settlement.kind != "release":
        row.place = 0
    if settlement.kind != "release" or settlement.delay or settlement.run_at is not None:
        row.due_at = due_at(settlement, now)
    wait(store, row, now)
    doom_overdue(store, row)
