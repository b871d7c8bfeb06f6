"""Schedules: recurring submissions, as stored. `fire` is in submit.py."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.item import Schedule
from treadle.records import ScheduleRun

from .codes import status_of
from .connection import PostgresVerbs, Record
from .statements import statements
from .watch import READ_SECONDS

_sql = statements("schedules")


class PostgresSchedules(PostgresVerbs):
    async def put_schedule(self, schedule: Schedule) -> Schedule:
        found = await self._calls.rows(
            _sql("put_schedule"),
            schedule.name,
            schedule.next_at,
            schedule.last_at,
            schedule.paused,
            schedule.spec,
        )
        return _schedule_of(found[0]) if found else schedule

    async def schedules(self) -> Sequence[Schedule]:
        return [_schedule_of(row) for row in await self._calls.rows(_sql("schedules"))]

    async def schedule_runs(self, *, count: int = 30) -> Sequence[ScheduleRun]:
        rows = await self._calls.rows(_sql("schedule_runs"), count, within=READ_SECONDS)
        return [
            ScheduleRun(
                name=name,
                at=at,
                fired_at=fired_at,
                id=id,
                tenant=tenant,
                status=None if state is None else status_of(state),
            )
            for name, at, fired_at, id, tenant, state in rows
        ]

    async def drop_schedule(self, name: str) -> bool:
        return bool(await self._calls.rows(_sql("drop_schedule"), name))

    async def pause_schedule(self, name: str, paused: bool) -> bool:
        return bool(await self._calls.rows(_sql("pause_schedule"), paused, name))


def _schedule_of(row: Record) -> Schedule:
    return Schedule(
        name=row["name"],
        next_at=row["next_at"],
        spec=row["spec"],
        paused=row["paused"],
        last_at=row["last_at"],
        seen_at=row["seen_at"],
    )
