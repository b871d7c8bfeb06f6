"""Steps: what running items record, their mailboxes and streams, and how they are suspended."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from treadle.item import MOST_UNREAD, Chunk, Record, Recorded, Settlement, Signal, Signalled, StepRecord
from treadle.store.rules.records import NotedChange
from treadle.store.rules.settlement import KEPT_ATTEMPTS
from treadle.store.rules.steps import answered, requeued_steps, stored_step, suspended_until, takes_signal
from treadle.store.rules.times import hold_due, is_held

from .records import record as record_change
from .rows import READY, SCHEDULED, STATUS, SUSPENDED, numbers
from .statements import NULL, Row, Tx, array, blob, statements

_SQL = statements("steps")

_REMOVALS = ("remove_steps", "remove_mail", "remove_chunks", "remove_progress")


# -- recording -----------------------------------------------------------------------------------------


def write(tx: Tx, records: Sequence[tuple[int, Record]]) -> None:
    """Write what items, by their numbers, have done. The tokens of these records own them."""
    with_steps = {no for no, record in records if record.steps}
    others = {no for no, record in records if record.chunks or record.progress is not None}
    if with_steps:
        tx.run(_SQL["made_progress"], array(with_steps))
        _put(tx, [(no, 1, step) for no, record in records for step in record.steps])
    if others:
        tx.run(_SQL["has_records"], array(others))
    if any(record.log is not None for _, record in records):
        write_logs(tx, [record for _, record in records])
    for no, record in records:
        if record.progress is not None:
            tx.run(_SQL["put_progress"], no, tx.now, record.progress)
        numbered = enumerate(record.chunks, record.first_chunk)
        tx.run_rows(_SQL["put_chunk"], [(no, number, tx.now, blob(chunk)) for number, chunk in numbered])


def write_logs(tx: Tx, written: Sequence[Record | Settlement]) -> None:
    """Write the logs of these, if their tokens own their items."""
    logs = [(one.lease.ref, one.lease.token, blob(one.log)) for one in written if one.log is not None]
    tx.run_rows(_SQL["put_logs"], logs, tx.now)
    tx.run(_SQL["trim_logs"], array({no for no, _, _ in logs}), KEPT_ATTEMPTS)


def _put(tx: Tx, steps: Sequence[tuple[int, int, StepRecord]]) -> list[StepRecord]:
    """Write steps of items: (no, attempt, step). Returns them as they are stored."""
    stored = [stored_step(step, None, tx.now, attempt) for _, attempt, step in steps]
    rows = [(no, *_columns(step)) for (no, _, _), step in zip(steps, stored, strict=True)]
    tx.run_rows(_SQL["put_step"], rows)
    return stored


def _columns(step: StepRecord) -> tuple[Any, ...]:
    return (
        step.name,
        step.kind,
        NULL if step.value is None else blob(step.value),
        step.took,
        NULL if step.undo is None else blob(step.undo),
        step.signal,
        int(step.over),
        NULL if step.until is None else step.until,
        step.at,
        step.attempt,
        step.times,
    )


def suspend(tx: Tx, no: int, attempt: int, settlement: Settlement, tokens: str) -> bool:
    """Suspend an item whose token owns it. True: a wait was over at once, and it is ready."""
    waits = _put(tx, [(no, attempt, step) for step in settlement.steps])
    tx.run(_SQL["forget_waits"], no, array(wait.name for wait in waits))
    waits = [_delivered(tx, no, wait) for wait in waits]
    due = suspended_until(waits, tx.now)
    is_ready = due <= tx.now
    status, since = (READY, tx.now) if is_ready else (SCHEDULED, None)
    seq = tx.numbers(seq=1).seq if is_ready else 0
    began = None if settlement.ran is None else tx.now - settlement.ran
    tx.run(_SQL["suspend"], status, due, since, seq, began, tokens, no)
    return is_ready


def _delivered(tx: Tx, no: int, wait: StepRecord) -> StepRecord:
    """A wait, with the signal that was there for it."""
    if not wait.signal or not takes_signal(wait, wait.signal, tx.now):
        return wait
    found = tx.row(_SQL["unread_mail"], no, wait.signal)
    if found is None:
        return wait
    seq, value = found
    tx.run(_SQL["take_mail"], seq)
    tx.run(_SQL["answer_wait"], value, no, wait.name)
    return answered(wait, value)


# -- signals -------------------------------------------------------------------------------------------


def signal(
    tx: Tx, signals: Sequence[Signal], tenant: str | None, change: NotedChange | None
) -> list[Signalled]:
    nos = numbers(tx, [one.id for one in signals], tenant)
    answers = [_signal_one(tx, one, nos.get(one.id)) for one in signals]
    stored = sum(answer.verb == "stored" for answer in answers)
    if change is not None and stored:
        record_change(tx, change, stored)
    return answers


def _signal_one(tx: Tx, signal: Signal, no: int | None) -> Signalled:
    if no is None:
        return Signalled("not_found")
    _, code, is_doomed, records, type, queue, due = tx.rows(_SQL["item_of_signal"], no)[0]
    status = STATUS[code]
    if records is None:
        return Signalled("ended", status)
    if signal.key is not None and tx.value(_SQL["has_key"], no, signal.name, signal.key):
        return Signalled("existing", status)
    wait = tx.value(_SQL["waits_for_signal"], no, signal.name, tx.now) if records & SUSPENDED else None
    if wait is None and tx.value(_SQL["count_unread"], no, MOST_UNREAD) >= MOST_UNREAD:
        return Signalled("full", status)
    tx.run(_SQL["put_mail"], no, signal.name, signal.key, int(wait is not None), signal.value)
    tx.run(_SQL["has_records"], array([no]))
    if wait is None:
        return Signalled("stored", status)
    tx.run(_SQL["answer_wait"], signal.value, no, wait)
    if code != SCHEDULED or is_doomed:
        return Signalled("stored", status)
    if is_held(due):
        tx.run(_SQL["wake_held"], hold_due(tx.now), no)
        return Signalled("stored", status)
    tx.run(_SQL["wake"], tx.now, tx.now, tx.numbers(seq=1).seq, no)
    return Signalled("stored", "ready", (type, queue))


# -- what operators do ---------------------------------------------------------------------------------


def sleeping(tx: Tx, nos: Iterable[int]) -> set[int]:
    """Those of these items that sleep."""
    return {no for (no,) in tx.rows(_SQL["sleeping"], array(nos))}


def end_sleeps(tx: Tx, nos: Iterable[int]) -> None:
    tx.run(_SQL["end_sleeps"], array(nos))


def without_step(tx: Tx, nos: Sequence[int], from_step: str) -> set[int]:
    """Those of these items that have no step of this name."""
    found = read_steps(tx, nos)
    return {no for no in nos if requeued_steps(found[no], dead=False, from_step=from_step) is None}


def requeue(tx: Tx, nos: Iterable[int], dead: Iterable[int], from_step: str | None) -> None:
    """These items are requeued: forget what they have to do again. dead: those that were dead."""
    found, was_dead = read_steps(tx, nos), set(dead)
    tx.run(_SQL["remove_steps"], array(found))
    for no, steps in found.items():
        kept = requeued_steps(steps, dead=no in was_dead, from_step=from_step) or ()
        tx.run_rows(_SQL["put_step"], [(no, *_columns(step)) for step in kept])


def remove(tx: Tx, nos: str) -> None:
    """Remove all that these items (a JSON array of numbers) have recorded. Before their own rows."""
    recorded = [no for (no,) in tx.rows(_SQL["with_records"], nos)]
    if recorded:
        for name in _REMOVALS:
            tx.run(_SQL[name], array(recorded))


# -- reading -------------------------------------------------------------------------------------------


def read_steps(tx: Tx, nos: Iterable[int]) -> defaultdict[int, list[StepRecord]]:
    """The steps of these items, in order."""
    found: defaultdict[int, list[StepRecord]] = defaultdict(list)
    for row in tx.rows(_SQL["steps"], array(nos)):
        found[row[0]].append(_step(row))
    return found


def _step(row: Row) -> StepRecord:
    _, name, kind, value, took, undo, signal, over, until, at, attempt, times = row
    return StepRecord(
        name=name,
        kind=kind,
        value=value,
        took=took,
        undo=undo,
        signal=signal,
        over=bool(over),
        until=until,
        at=at,
        attempt=attempt,
        times=times,
    )


def steps(tx: Tx, ids: Sequence[str], tenant: str | None) -> list[Recorded | None]:
    nos = numbers(tx, ids, tenant)
    found = read_steps(tx, nos.values())
    others = {row[0]: row[1:] for row in tx.rows(_SQL["recorded"], array(nos.values()))}
    return [None if id not in nos else _recorded(found[nos[id]], others[nos[id]]) for id in ids]


def _recorded(steps: Sequence[StepRecord], others: Row) -> Recorded:
    progress, at, mailbox, chunks = others
    unread = json.loads(mailbox)
    return Recorded(steps=tuple(steps), mailbox=unread, progress=progress, progress_at=at, chunks=chunks)


def stream(tx: Tx, id: str, tenant: str | None, since: int, limit: int) -> list[Chunk]:
    no = numbers(tx, [id], tenant).get(id)
    if no is None:
        return []
    return [Chunk(number, value, at) for number, value, at in tx.rows(_SQL["stream"], no, since, limit)]


def logs(tx: Tx, id: str, tenant: str | None) -> list[bytes]:
    no = numbers(tx, [id], tenant).get(id)
    return [] if no is None else [value for (value,) in tx.rows(_SQL["logs"], no)]
