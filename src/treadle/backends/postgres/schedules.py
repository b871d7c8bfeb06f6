"""Schedules: recurring submissions, as stored. `fire` is in submit.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.item import Schedule

from .connection import PostgresVerbs, Record
from .statements import statement

PUT_SCHEDULE: Final = statement("schedules", "put_schedule")
SCHEDULES: Final = statement("schedules", "schedules")
DROP_SCHEDULE: Final = statement("schedules", "drop_schedule")
PAUSE_SCHEDULE: Final = statement("schedules", "pause_schedule")


class PostgresSchedules(PostgresVerbs):
    async def put_schedule(self, schedule: Schedule) -> Schedule:
        found = await self._calls.rows(
            PUT_SCHEDULE, schedule.name, schedule.next_at, schedule.last_at, schedule.paused, schedule.spec
        )
        return _schedule_of(found[0]) if found else schedule

    async def schedules(self) -> Sequence[Schedule]:
        return [_schedule_of(row) for row in await self._calls.rows(SCHEDULES)]

    async def drop_schedule(self, name: str) -> bool:
        return bool(await self._calls.rows(DROP_SCHEDULE, name))

    async def pause_schedule(self, name: str, paused: bool) -> bool:
        return bool(await self._calls.rows(PAUSE_SCHEDULE, paused, name))


def _schedule_of(row: Record) -> Schedule:
    return Schedule(
        name=row["name"],
        next_at=row["next_at"],
        spec=row["spec"],
        paused=row["paused"],
        last_at=row["last_at"],
        seen_at=row["seen_at"],
    )
