"""Schedules: recurring work. Each occurrence fires once."""

from __future__ import annotations

from msgspec.structs import replace

from treadle.item import Fire, Rejected, Schedule, Submitted
from treadle.records import KEPT_RUNS, ScheduleRun
from treadle.store.rules.times import fired, put_schedule

from .submit import submit_together
from .tables import MemoryTables


def put(store: MemoryTables, schedule: Schedule, now: float, *, again: bool) -> Schedule:
    known = store.schedules.get(schedule.name)
    removed = schedule.name in store.removed_schedules
    stored = put_schedule(known, schedule, now, again=again, removed=removed)
    if stored is None:
        return known or replace(schedule, next_at=None)
    store.schedules[schedule.name] = stored
    store.removed_schedules.pop(schedule.name, None)
    return stored


def pause(store: MemoryTables, name: str, *, paused: bool) -> bool:
    known = store.schedules.get(name)
    if known is None:
        return False
    store.schedules[name] = replace(known, paused=paused)
    return True


def fire(store: MemoryTables, fire: Fire, now: float) -> tuple[Submitted, ...] | Rejected | None:
    moved_on = fired(store.schedules.get(fire.name), fire)
    if moved_on is None:
        return None
    store.claimed_keys.check_here(item.tenant for item in fire.items)
    answer = submit_together(store, fire.items, now)
    if not isinstance(answer, Rejected):
        store.schedules[fire.name] = moved_on
        _record_run(store, fire, answer, now)
    return answer


def drop(store: MemoryTables, name: str, now: float) -> bool:
    store.schedule_runs.pop(name, None)
    store.removed_schedules[name] = now
    return store.schedules.pop(name, None) is not None


def _record_run(store: MemoryTables, fire: Fire, answer: tuple[Submitted, ...], now: float) -> None:
    runs = store.schedule_runs.setdefault(fire.name, {})
    id, tenant = (answer[0].id, fire.items[0].tenant) if answer else (None, None)
    runs[fire.at] = ScheduleRun(
        name=fire.name, at=fire.at, fired_at=now, id=id, tenant=tenant, error=fire.error
    )
    if len(runs) > KEPT_RUNS:
        del runs[min(runs)]


def read_runs(store: MemoryTables, count: int) -> list[ScheduleRun]:
    found: list[ScheduleRun] = []
    for name in sorted(store.schedules):
        runs = store.schedule_runs.get(name, {})
        for at in sorted(runs, reverse=True)[:count]:
            run = runs[at]
            row = None if run.id is None else store.find(run.tenant, run.id)
            found.append(run if row is None else replace(run, status=row.status))
    return found
