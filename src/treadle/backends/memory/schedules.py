"""Schedules: what recurs, and that each occurrence fires once."""

from __future__ import annotations

from msgspec.structs import replace

from treadle.item import Fire, Rejected, Schedule, Submitted

from .store import Store
from .submit import submit_together


def put(store: Store, schedule: Schedule, now: float) -> Schedule:
    known = store.schedules.get(schedule.name)
    if known is not None and known.spec == schedule.spec:
        schedule = known
    elif schedule.next_at is None:
        return known or schedule
    stored = store.schedules[schedule.name] = replace(schedule, seen_at=now)
    return stored


def pause(store: Store, name: str, *, paused: bool) -> bool:
    known = store.schedules.get(name)
    if known is None:
        return False
    store.schedules[name] = replace(known, paused=paused)
    return True


def fire(store: Store, fire: Fire, now: float) -> tuple[Submitted, ...] | Rejected | None:
    known = store.schedules.get(fire.name)
    if known is None or known.paused or known.next_at != fire.at:
        return None
    answer = submit_together(store, fire.items, now)
    if not isinstance(answer, Rejected):
        store.schedules[fire.name] = replace(known, next_at=fire.next_at, last_at=fire.at)
    return answer
