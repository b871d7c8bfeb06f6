"""Steps: what running items record, their mailboxes and streams, and how they are suspended."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

from treadle.item import (
    KILLING,
    MOST_UNREAD,
    Chunk,
    Loss,
    Record,
    Recorded,
    Settlement,
    Signal,
    Signalled,
    StepRecord,
)
from treadle.store.rules.settlement import KEPT_ATTEMPTS
from treadle.store.rules.steps import answered, asked_for, stored_step, suspended_until, takes_signal
from treadle.store.rules.times import is_held, keep_hold

from .rows import Mail, Row, RowSteps
from .tables import MemoryTables
from .transitions import doom, leave_container, owns, set_status, wait, why_lost


def record(store: MemoryTables, records: Sequence[Record], now: float) -> list[Loss | None]:
    answers: list[Loss | None] = []
    write_logs(store, records)
    for one in records:
        lease = one.lease
        row = store.find(lease.tenant, lease.id)
        if row is None or not owns(lease, row):
            answers.append(why_lost(row, lease) or "taken")
            continue
        _write(store, row, one, now)
        answers.append(None)
    return answers


def _write(store: MemoryTables, row: Row, record: Record, now: float) -> None:
    if not record.steps and not record.chunks and record.progress is None:
        return
    found = _steps_of(row)
    if record.steps:
        row.attempt, row.failures = 1, 0
        _end_losses(store, row)
        _add(row, record.steps, now)
    if record.progress is not None:
        found.progress, found.progress_at = record.progress, now
    for number, value in enumerate(record.chunks, record.first_chunk):
        if number > found.last_chunk:
            found.chunks.append(Chunk(number, value, now))


def write_logs(store: MemoryTables, written: Sequence[Record | Settlement]) -> None:
    """Write the logs of these, if their tokens own their items."""
    for one in written:
        row = None if one.log is None else store.find(one.lease.tenant, one.lease.id)
        if one.log is None or row is None or not owns(one.lease, row):
            continue
        others = {token: log for token, log in (row.logs or {}).items() if token != one.lease.token}
        row.logs = {**dict([*others.items()][1 - KEPT_ATTEMPTS :]), one.lease.token: one.log}


def _steps_of(row: Row) -> RowSteps:
    if row.steps is None:
        row.steps = RowSteps()
    return row.steps


def _end_losses(store: MemoryTables, row: Row) -> None:
    if row.losses >= KILLING:
        del store.killing[row]
    row.losses = 0


def _add(row: Row, steps: Sequence[StepRecord], now: float) -> list[StepRecord]:
    known = _steps_of(row).steps
    stored: list[StepRecord] = []
    for step in steps:
        before = known.get(step.name)
        if before is not None and before.kind == "forgotten":
            del known[step.name]
        known[step.name] = stored_step(step, before, now, row.attempt)
        stored.append(known[step.name])
    return stored


def suspend(store: MemoryTables, row: Row, settlement: Settlement, now: float) -> None:
    """The row, which has no lease any more, waits for what the settlement names."""
    found = _steps_of(row)
    waits = _add(row, settlement.steps, now)
    found.steps = {name: step for name, step in found.steps.items() if asked_for(step, waits)}
    for wait_ in waits:
        mail = next((mail for mail in found.mail if not mail.taken and mail.name == wait_.signal), None)
        if mail is not None and takes_signal(wait_, mail.name, now):
            _deliver(found, wait_, mail)
    row.attempt, row.failures, row.place, row.suspended = 0, 0, 0, True
    _end_losses(store, row)
    row.due_at = suspended_until((found.steps[wait_.name] for wait_ in waits), now)
    if row.overdue:
        set_status(row, "scheduled")
        doom(store, row, "expired")
    else:
        wait(store, row, now)


def _deliver(found: RowSteps, wait: StepRecord, mail: Mail) -> None:
    mail.taken = True
    found.steps[wait.name] = answered(wait, mail.value)


def signal(store: MemoryTables, signals: Sequence[Signal], tenant: str | None, now: float) -> list[Signalled]:
    return [_signal_one(store, one, tenant, now) for one in signals]


def _signal_one(store: MemoryTables, signal: Signal, tenant: str | None, now: float) -> Signalled:
    row = store.find(tenant, signal.id)
    if row is None:
        return Signalled("not_found")
    if row.ended_at is not None:
        return Signalled("ended", row.status)
    found = _steps_of(row)
    if signal.key is not None and any(
        (mail.name, mail.key) == (signal.name, signal.key) for mail in found.mail
    ):
        return Signalled("existing", row.status)
    waits = (step for step in found.steps.values() if takes_signal(step, signal.name, now))
    awaiting = next(waits, None) if row.suspended else None
    if awaiting is None and found.unread >= MOST_UNREAD:
        return Signalled("full", row.status)
    mail = Mail(signal.name, signal.value, signal.key)
    found.mail.append(mail)
    if awaiting is None:
        return Signalled("stored", row.status)
    _deliver(found, awaiting, mail)
    if row.status != "scheduled" or row.verdict is not None:
        return Signalled("stored", row.status)
    leave_container(row)
    held, row.due_at = is_held(row.due_at), keep_hold(row.due_at, now)
    wait(store, row, now)
    return Signalled("stored", row.status, None if held else (row.kind.type, row.kind.queue))


def sleeps(row: Row) -> list[StepRecord]:
    """The sleeps of a suspended row that are not over."""
    found = () if row.steps is None else row.steps.steps.values()
    return [step for step in found if step.kind == "sleep" and not step.over]


def wake(row: Row) -> None:
    """Its sleeps are over."""
    for step in sleeps(row):
        _steps_of(row).steps[step.name] = answered(step, None)


def recorded(row: Row) -> Recorded:
    found = row.steps
    if found is None:
        return Recorded()
    return Recorded(
        steps=tuple(found.steps.values()),
        mailbox=Counter(mail.name for mail in found.mail if not mail.taken),
        progress=found.progress,
        progress_at=found.progress_at,
        chunks=found.last_chunk,
    )


def stream(row: Row | None, since: int, limit: int) -> list[Chunk]:
    if row is None or row.steps is None:
        return []
    first = bisect_right(row.steps.chunks, since, key=lambda chunk: chunk.number)
    return row.steps.chunks[first : first + limit]
