"""Submit: resolve keys, refuse what cannot be stored, store the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from treadle.item import Item, Lease, Ref, Rejected, Submission, Submitted
from treadle.rules import SubmitPlan, deadline_at, dependency_cycle, due_at, plan_submission

from . import gates
from .groups import join
from .moves import doom, lease, leave_pile, wait, watch_deadline
from .quick import store_plain
from .rows import Group, Row
from .store import Store


def submit(
    store: Store, submissions: Sequence[Submission], now: float
) -> list[tuple[Submitted, ...] | Rejected]:
    answers: list[tuple[Submitted, ...] | Rejected] = []
    for submission in submissions:
        items = submission.items
        if len(items) == 1 and store.quick and (stored := store_plain(store, items[0], now)) is not None:
            answers.append((stored,))
        else:
            answers.append(submit_together(store, items, now))
    return answers


def submit_together(store: Store, items: Sequence[Item], now: float) -> tuple[Submitted, ...] | Rejected:
    """Store these items, or none of them."""
    plan = make_plan(store, items, now)
    if isinstance(plan, Rejected):
        return plan
    rows = {ref: admit(store, item, now) for ref, item in plan.new.items()}
    return tuple(
        _existing(store, ref) if existing else _stored(store, rows[ref], now)
        for ref, existing in plan.answers
    )


def _existing(store: Store, ref: Ref) -> Submitted:
    row = store.find(*ref)
    assert row is not None
    return Submitted(row.item.id, existing=True, status=row.status, group_id=row.group_id)


def _stored(store: Store, row: Row, now: float) -> Submitted:
    id = row.item.id
    started = None if row.item.lease_to is None else _start(store, row, now)
    return Submitted(id, False, row.status, started, id)


def _start(store: Store, row: Row, now: float) -> Lease | None:
    """Lease it at once to the worker that it names, if nothing stands in the way."""
    worker = store.workers.get(row.item.lease_to or "")
    overdue = row.deadline is not None and row.deadline <= now
    if worker is None or worker.until <= now or row.status != "ready" or overdue:
        return None
    leave_pile(row)
    return lease(store, row, worker, now)


# ---------------------------------------------------------------------------------------------------- storing


def admit(store: Store, item: Item, now: float, group: Group | None = None) -> Row:
    """Store a new item, which nothing speaks against: blocked, scheduled, ready or doomed."""
    store.number += 1
    due = due_at(item, now) if item.delay or item.run_at is not None else now
    row = Row(item, store.kind(item), store.number, "blocked", now, due)
    store.insert(row)
    if group is not None:
        join(group, row)
    deadline = deadline_at(item, now)
    if deadline is not None:
        watch_deadline(store, row, deadline)
    if item.after:
        _wait_for_others(store, row, now)
    else:
        wait(store, row, now)
    return row


def _wait_for_others(store: Store, row: Row, now: float) -> None:
    found = gates.close(store, row)
    match found.state:
        case "released":
            wait(store, row, now)
        case "doomed":
            doom(store, row, "unsatisfiable")
        case "waiting":
            pass


# --------------------------------------------------------------------------------------------------- planning


def make_plan(store: Store, items: Iterable[Item], now: float) -> SubmitPlan | Rejected:
    """Changes nothing."""
    plan = plan_submission(items, now, store.key_holder, store.exists)
    if isinstance(plan, Rejected):
        return plan
    cycle = dependency_cycle(
        plan.new,
        lambda ref: gates.ended(store, *ref),
        store.waiters.__contains__,
        lambda ref: _waits_for(store, ref),
    )
    return plan if cycle is None else Rejected("cycle", cycle)


def _waits_for(store: Store, ref: Ref) -> list[Ref]:
    row = store.find(*ref)
    if row is None or row.gate is None or row.status != "blocked" or row.doom is not None:
        return []
    return [(ref[0], id) for id in row.gate.pending]
