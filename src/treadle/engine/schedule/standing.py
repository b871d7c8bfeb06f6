"""Standing: whether a schedule fires: it is active, failing, overdue, orphaned, paused, or it has ended."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from treadle.item import Schedule
from treadle.store.fleet import Fleet

from .scheduler import is_unseen

LATE: Final = 5.0
"""A schedule that is due for so many seconds is overdue."""
SAID: Final = 15.0
"""A worker marks a schedule as seen first, and says that it has it in a heartbeat so many seconds later at
the latest."""

ScheduleStanding: TypeAlias = Literal["active", "failing", "overdue", "orphaned", "paused", "ended"]
"""`failing`: it fires, and its last run failed. `overdue`: it is due, and nothing has fired it. `orphaned`:
no live worker has its code."""


def standing_of(
    schedule: Schedule, fleet: Fleet | None, now: float, *, here: bool = False, error: str = ""
) -> ScheduleStanding:
    """How a schedule stands. fleet: None if the store cannot list workers. here: a worker of this process has
    its code. error: of its last run."""
    if schedule.next_at is None:
        return "ended"
    if schedule.paused:
        return "paused"
    if is_orphaned(schedule, fleet, now, here=here):
        return "orphaned"
    if now - schedule.next_at > LATE:
        return "overdue"
    return "failing" if error else "active"


def is_orphaned(schedule: Schedule, fleet: Fleet | None, now: float, *, here: bool = False) -> bool:
    """Whether no live worker has the code of a schedule.

    Workers say which schedules they have. One that does not say may have any that was marked as seen lately.
    """
    if here:
        return False
    if fleet is None:
        return is_unseen(schedule, now)
    said = [None if worker.info is None else worker.info.schedules for worker in fleet.taking]
    if not said:
        return True
    if any(names is not None and schedule.name in names for names in said):
        return False
    return is_unseen(schedule, now) if None in said else now - schedule.seen_at > SAID
