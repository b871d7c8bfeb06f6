"""Schedules: recurring submissions, as stored. `fire` is in submit.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from treadle.item import AuditNote, Schedule
from treadle.records import ScheduleRun
from treadle.store.rules.records import noted_change

from .columns import status_of
from .connection import PostgresVerbs, Record
from .read import READ_SECONDS
from .records import note_values, rows_noted
from .statements import statement, statements, text

_sql = statements("schedules")
DROP_NOTED: Final = statement(
    "schedules", "drop_schedule_noted", counted=text("audits", "counted"), noted=text("audits", "noted")
)


class PostgresSchedules(PostgresVerbs):
    async def put_schedule(self, schedule: Schedule, *, again: bool = False) -> Schedule:
        found = await self._calls.rows(
            _sql("put_schedule"),
            schedule.name,
            schedule.next_at,
            schedule.last_at,
            schedule.paused,
            schedule.spec,
            again,
        )
        return _schedule_of(found[0]) if found else replace(schedule, next_at=None)

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
                error=error or "",
            )
            for name, at, fired_at, id, tenant, state, error in rows
        ]

    async def drop_schedule(self, name: str, *, note: AuditNote | None = None) -> bool:
        change = noted_change(note, "cancel_schedule", None, [name])
        if change is None:
            return bool(await self._calls.rows(_sql("drop_schedule"), name))
        values = note_values(change).values()
        return bool(await self._calls.rows(DROP_NOTED, name, *values, repeatable=False))

    async def pause_schedule(self, name: str, paused: bool, *, note: AuditNote | None = None) -> bool:
        change = noted_change(note, "pause_schedule" if paused else "resume_schedule", None, [name])
        return bool(await rows_noted(self._calls, "schedules", "pause_schedule", change, paused, name))


def _schedule_of(row: Record) -> Schedule:
    return Schedule(
        name=row["name"],
        next_at=row["next_at"],
        spec=row["spec"],
        paused=row["paused"],
        last_at=row["last_at"],
        seen_at=row["seen_at"],
    )
