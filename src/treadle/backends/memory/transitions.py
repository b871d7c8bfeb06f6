"""Transitions: how a row gets from one state to another, except its end.

wait -> make_ready, or scheduled      lease -> unlease, free -> wait_again      doom      withdraw
"""

from __future__ import annotations

from collections.abc import Container

from msgspec.structs import replace

from treadle.item import KILLING, Attempt, Lease, Loss, Status, Verdict
from treadle.store.portable import PortableLease
from treadle.store.rules.settlement import (
    KEPT_ATTEMPTS,
    WaitingAgain,
    after_loss,
    loss_of,
    lost_attempt,
    token_step,
)

from .fairness import ParkedItems
from .rows import DeadlineWatch, MemoryWorker, Row
from .tables import MemoryTables


def set_status(row: Row, status: Status) -> None:
    counts = row.kind.counts
    counts[row.status] -= 1
    counts[status] += 1
    row.status = status


def wait(store: MemoryTables, row: Row, now: float) -> None:
    """Make it scheduled or ready: it waits for nothing but its time."""
    if row.due_at > now:
        set_status(row, "scheduled")
        store.scheduled.add(row)
    else:
        make_ready(store, row, now)


def make_ready(store: MemoryTables, row: Row, now: float) -> None:
    """Put it into its line: at its place, or at the end if it has none."""
    set_status(row, "ready")
    row.ready_at = now
    if not row.place:
        store.place += 1
        row.place = store.place
    if row.held_lane is not None:
        store.strict_lanes.ready[row] = None
    row.kind.line.add(row)


def park(store: MemoryTables, row: Row) -> None:
    """Move it, with its place, to the items that only a worker with its type looks at."""
    type = row.kind.type
    parked = store.parked.get(type)
    if parked is None:
        parked = store.parked[type] = ParkedItems(store.services, store.paused, store.parked, type)
    parked.park(row)


def leave_container(row: Row) -> None:
    if row.container is not None:
        row.container.remove(row)
        row.container = None


def withdraw(store: MemoryTables, row: Row) -> None:
    """Remove it from where it waits, or from the leases of its worker."""
    leave_container(row)
    if row.token:
        unlease(row)
    elif row.verdict is not None:
        store.doomed.remove(row)


# -------------------------------------------------------------------------------------------------- deadlines


def watch_deadline(store: MemoryTables, row: Row, deadline: float) -> None:
    row.deadline = deadline
    row.deadline_watch = DeadlineWatch(row)
    store.deadlines.push(deadline, row.number, row.deadline_watch)


def unwatch_deadline(store: MemoryTables, row: Row) -> None:
    if row.deadline_watch is not None:
        store.deadlines.remove(row.deadline_watch)
        row.deadline_watch = None


def expire(store: MemoryTables, watch: DeadlineWatch) -> None:
    """Its deadline has come. It is doomed: now, or when it is no longer running."""
    row = watch.row
    row.deadline_watch = None
    if row.token:
        row.overdue = True
    else:
        doom(store, row, "expired")


def doom(store: MemoryTables, row: Row, verdict: Verdict) -> None:
    """It can only end, and waits for a claim to hand it out. It keeps its status."""
    leave_container(row)
    unwatch_deadline(store, row)
    row.verdict = verdict
    store.doomed.add(row)


def undoom(store: MemoryTables, row: Row) -> None:
    """Its condition can be met again. A lease with its verdict is lost."""
    withdraw(store, row)
    row.verdict = row.claimed_by = None
    if row.deadline is not None:
        watch_deadline(store, row, row.deadline)


# ----------------------------------------------------------------------------------------------------- leases


def lease(
    store: MemoryTables, row: Row, worker: MemoryWorker, now: float, buffered: Container[str] = ()
) -> Lease:
    """Lease it to a worker: to be run, or to be ended with its verdict. It must be in no container.

    The attempt begins with the lease, unless the item's type is `buffered` or it was lost before.
    """
    item, kind = row.item, row.kind
    store.token = token = store.token + token_step(1, store.random_bits)
    row.token = token
    row.worker = worker
    row.claimed_by = worker.id
    begun = True
    if row.verdict is None:
        row.begun = begun = not row.losses and kind.type not in buffered
        if begun:
            row.attempt += 1
        row.claimed_at = now
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
        row.attempt if begun else row.attempt + 1,
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
        row.verdict,
        row.number,
        row.failures,
        row.losses,
        begun,
        row.ready_at,
        row.deferrals,
        row.has_steps,
        row.suspended,
    )
    row.suspended = False
    worker.held[token] = lease
    return lease


def adopt_lease(store: MemoryTables, row: Row, worker: MemoryWorker, known: PortableLease) -> None:
    """Lease it as it was leased in another store. It must be ready, and in no container."""
    attempt = row.attempt
    given = lease(store, row, worker, row.claimed_at or 0.0)
    del worker.held[given.token]
    row.token, row.begun, row.attempt, row.started_at = known.token, known.begun, attempt, known.started_at
    worker.held[known.token] = replace(
        given,
        token=known.token,
        attempt=attempt if known.begun else attempt + 1,
        begun=known.begun,
        resumes=known.resumes,
    )


def owns(lease: Lease, row: Row) -> bool:
    return row.token != 0 and row.token == lease.token


def why_lost(row: Row | None, lease: Lease) -> Loss | None:
    """Why a lease does not own its row. None: its token has settled it."""
    if row is None:
        return "not_found"
    ended = None if row.ended_at is None else row.status
    why = loss_of(lease.token, row.settled_by, ended, by_operator=row.claimed_by is None)
    # If it was removed, another item may have its id now. If its tenant came back, it has another number.
    return "not_found" if why is not None and row.number != lease.ref else why


def begin(row: Row) -> None:
    """Count its attempt, if that has not begun yet."""
    if not row.begun and row.worker is not None:
        row.begun = True
        row.attempt += 1
        held = row.worker.held
        held[row.token] = replace(held[row.token], begun=True)


def unlease(row: Row) -> None:
    assert row.worker is not None
    del row.worker.held[row.token]
    row.token = 0
    row.worker = None


def free(store: MemoryTables, row: Row, now: float) -> None:
    """Its worker is dead."""
    assert row.worker is not None
    worker, release = row.worker.id, row.worker.release
    unlease(row)
    row.claimed_by = None
    if row.verdict is not None:
        store.doomed.add(row)
        return
    if row.begun:
        row.started_at = row.claimed_at
        add_to_history(row, lost_attempt(row.attempt, now, worker, release))
    wait_again(store, row, after_loss(now, row.counters, row.number, due=row.due_at, deadline=None), now)


def wait_again(store: MemoryTables, row: Row, again: WaitingAgain, now: float) -> None:
    """Its attempt is over, and did not end it. The rules do not get the deadline: only claims notice that it
    has passed, and set `overdue`."""
    if again.losses >= KILLING:
        store.killing[row] = None
    elif row.losses >= KILLING:
        del store.killing[row]
    row.attempt, row.failures, row.losses, row.due_at = again.attempt, again.failures, again.losses, again.due
    if not again.keeps_place:
        row.place = 0
    verdict = again.verdict or ("expired" if row.overdue else None)
    if verdict is None:
        ready_at = row.ready_at
        wait(store, row, now)
        if again.stays_ready:
            row.ready_at = ready_at
    else:
        set_status(row, again.status)
        doom(store, row, verdict)


def add_to_history(row: Row, attempt: Attempt) -> None:
    if row.history is None:
        row.history = []
    row.history.append(attempt)
    del row.history[:-KEPT_ATTEMPTS]
