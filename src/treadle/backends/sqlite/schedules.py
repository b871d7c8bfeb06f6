"""Schedules: stored declarations, and their occurrences, each of which fires once."""

from __future__ import annotations

from msgspec.structs import replace

from treadle.item import Fire, Rejected, Schedule, Submission, Submitted
from treadle.records import KEPT_RUNS, ScheduleRun
from treadle.store.rules.times import fired
from treadle.store.rules.times import put_schedule as schedule_to_store

from .rows import STATUS
from .statements import Row, Tx, statements
from .submit import submit

_SQL = statements("schedules")


def put_schedule(tx: Tx, schedule: Schedule, again: bool) -> Schedule:
    known = _find(tx, schedule.name)
    removed = again and tx.row(_SQL["removal"], schedule.name) is not None
    stored = schedule_to_store(known, schedule, tx.now, again=again, removed=removed)
    if stored is None:
        return known or replace(schedule, next_at=None)
    if known is None:
        tx.run(_SQL["forget_removal"], stored.name)
    head = (stored.name, stored.next_at, stored.spec)
    tx.run(_SQL["set_schedule"], *head, int(stored.paused), stored.last_at, stored.seen_at)
    return stored


def schedules(tx: Tx) -> list[Schedule]:
    return [_schedule(row) for row in tx.rows(_SQL["schedules"])]


def drop_schedule(tx: Tx, name: str) -> bool:
    tx.run(_SQL["drop_runs"], name)
    tx.run(_SQL["note_removal"], name, tx.now)
    return tx.run(_SQL["drop_schedule"], name) > 0


def pause_schedule(tx: Tx, name: str, paused: bool) -> bool:
    return tx.run(_SQL["pause_schedule"], int(paused), name) > 0


def fire(tx: Tx, fire: Fire) -> tuple[Submitted, ...] | Rejected | None:
    after = fired(_find(tx, fire.name), fire)
    if after is None:
        return None
    answer = submit(tx, [Submission(fire.items)])[0]
    if not isinstance(answer, Rejected):
        tx.run(_SQL["set_fired"], after.next_at, after.last_at, fire.name)
        id, tenant = (answer[0].id, fire.items[0].tenant) if answer else (None, None)
        tx.run(_SQL["add_run"], fire.name, fire.at, tx.now, id, tenant, fire.error or None)
        tx.run(_SQL["drop_old_runs"], fire.name, KEPT_RUNS)
    return answer


def schedule_runs(tx: Tx, count: int) -> list[ScheduleRun]:
    return [
        ScheduleRun(
            name=name,
            at=at,
            fired_at=fired_at,
            id=id,
            tenant=tenant,
            status=None if status is None else STATUS[status],
            error=error or "",
        )
        for name, at, fired_at, id, tenant, status, error in tx.rows(_SQL["runs"], count)
    ]


def _find(tx: Tx, name: str) -> Schedule | None:
    row = tx.row(_SQL["schedule"], name)
    return None if row is None else _schedule(row)


def _schedule(row: Row) -> Schedule:
    name, next_at, spec, paused, last_at, seen_at = row
    return Schedule(
        name=name, next_at=next_at, spec=spec, paused=bool(paused), last_at=last_at, seen_at=seen_at
    )
