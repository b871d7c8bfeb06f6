"""Schedules: recurring work. Each occurrence fires once."""

from __future__ import annotations

from msgspec.structs import replace

from treadle.item import Fire, Rejected, Schedule, Submitted
from treadle.rules.times import fired, put_schedule

from .submit import submit_together
from .tables import MemoryTables


def put(store: MemoryTables, schedule: Schedule, now: float) -> Schedule:
    known = store.schedules.get(schedule.name)
    stored = put_schedule(known, schedule, now)
    if stored is None:
        return known or schedule
    store.schedules[schedule.name] = stored
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
    answer = submit_together(store, fire.items, now)
    if not isinstance(answer, Rejected):
        store.schedules[fire.name] = moved_on
    return answer
