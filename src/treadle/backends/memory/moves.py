"""Moves: how a row gets from one place to another.

wait -> make_ready, or what is due later      lease -> unlease, free      doom      withdraw
"""

from __future__ import annotations

from treadle.item import Attempt, Lease, Status, Verdict
from treadle.rules import KEPT_ATTEMPTS, WaitingAgain, after_loss, lost_attempt

from .lines import Parked
from .rows import Expiry, Row, Worker
from .store import Store


def set_status(row: Row, status: Status) -> None:
    counts = row.kind.counts
    counts[row.status] -= 1
    counts[status] += 1
    row.status = status


def wait(store: Store, row: Row, now: float) -> None:
    """From now on only time stands between it and its line."""
    if row.due_at > now:
        set_status(row, "scheduled")
        store.due.add(row)
    else:
        make_ready(store, row, now)


def make_ready(store: Store, row: Row, now: float) -> None:
    """Put it in its line: in the place it has, else at the end."""
    set_status(row, "ready")
    row.ready_at = now
    if not row.place:
        store.place += 1
        row.place = store.place
    row.kind.line.join(row)


def park(store: Store, row: Row) -> None:
    """Let it step aside, at its place, for whoever knows its type."""
    type = row.kind.type
    parked = store.parked.get(type)
    if parked is None:
        parked = store.parked[type] = Parked(store.turns, store.paused, store.parked, type)
    parked.park(row)


def watch_deadline(store: Store, row: Row, deadline: float) -> None:
    row.deadline = deadline
    row.expiry = Expiry(row)
    store.deadlines.push(deadline, row.number, row.expiry)


def forget_deadline(store: Store, row: Row) -> None:
    if row.expiry is not None:
        store.deadlines.remove(row.expiry)
        row.expiry = None


def expire(store: Store, expiry: Expiry) -> None:
    """Its deadline has come: it is doomed, now or when it is no longer running."""
    row = expiry.row
    row.expiry = None
    if row.token:
        row.overdue = True
    else:
        doom(store, row, "expired")


def doom(store: Store, row: Row, verdict: Verdict) -> None:
    """It can only end: it waits for nothing but a claim. It keeps its status."""
    leave_pile(row)
    forget_deadline(store, row)
    row.doom = verdict
    store.doomed.add(row)


def leave_pile(row: Row) -> None:
    if row.pile is not None:
        row.pile.remove(row)
        row.pile = None


def withdraw(store: Store, row: Row) -> None:
    """Take it out of wherever it waits, or out of the hands of its worker."""
    leave_pile(row)
    if row.token:
        unlease(row)
    elif row.doom is not None:
        store.doomed.remove(row)


# ----------------------------------------------------------------------------------------------------- leases


def lease(store: Store, row: Row, worker: Worker, now: float) -> Lease:
    """Hand it to a worker: to be run, or with its verdict. It waits nowhere."""
    item, kind = row.item, row.kind
    store.token = token = store.token + 1
    row.token = token
    row.worker = worker
    row.by = worker.id
    if row.doom is None:
        row.attempt += 1
        row.started_at = now
        row.status = "running"
        counts = kind.counts
        counts["ready"] -= 1
        counts["running"] += 1
    # In the order of the fields: by keyword this would take four times as long.
    lease = Lease(
        item.id,
        kind.tenant,
        token,
        kind.type,
        item.input,
        row.attempt,
        item.id if row.group is None else row.group.id,
        kind.queue,
        kind.lane,
        item.priority,
        item.attempts,
        item.parent,
        item.workflow,
        item.workflow_type,
        item.after,
        item.options,
        row.queued_at,
        row.due_at,
        now,
        row.deadline,
        row.doom,
        row.number,
    )
    worker.held[token] = lease
    return lease


def unlease(row: Row) -> None:
    assert row.worker is not None
    del row.worker.held[row.token]
    row.token = 0
    row.worker = None


def free(store: Store, row: Row, now: float) -> None:
    """Its worker is dead."""
    assert row.worker is not None
    worker = row.worker.id
    unlease(row)
    row.by = None
    if row.doom is not None:
        store.doomed.add(row)
        return
    remember(row, lost_attempt(row.attempt, now, worker))
    again = after_loss(
        now,
        attempt=row.attempt,
        attempts=row.item.attempts,
        losses=row.losses,
        due=row.due_at,
        deadline=row.deadline,
    )
    wait_again(store, row, again, now)


def wait_again(store: Store, row: Row, again: WaitingAgain, now: float) -> None:
    """Its attempt is over and did not end it."""
    row.attempt, row.losses, row.due_at = again.attempt, again.losses, again.due
    if not again.keeps_place:
        row.place = 0
    verdict = again.verdict or ("expired" if row.overdue else None)
    if verdict is None:
        wait(store, row, now)
    else:
        set_status(row, again.status)
        doom(store, row, verdict)


def remember(row: Row, attempt: Attempt) -> None:
    if row.history is None:
        row.history = []
    row.history.append(attempt)
    del row.history[:-KEPT_ATTEMPTS]
