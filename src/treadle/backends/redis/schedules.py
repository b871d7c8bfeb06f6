"""Schedules: recurring work. Each occurrence fires once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from treadle.item import AuditNote, Fire, Rejected, Schedule, Submitted
from treadle.records import ScheduleRun

from .item_bytes import STATUSES, Argument, item_arguments, pack_double, read_double
from .link import RedisVerbs
from .record_bytes import pack_note, pack_schedule, read_runs, read_schedule
from .scripts import RedisScript
from .submit import read_submitted

PORTION: Final = 300
"""Items that one script looks for."""

_PUT_SCHEDULE: Final = RedisScript("put_schedule")
_PAUSE_SCHEDULE: Final = RedisScript("pause_schedule")
_DROP_SCHEDULE: Final = RedisScript("drop_schedule")
_FIRE: Final = RedisScript("fire")
_SCHEDULE_RUNS: Final = RedisScript("schedule_runs")


class RedisSchedules(RedisVerbs):
    async def put_schedule(self, schedule: Schedule, *, again: bool = False) -> Schedule:
        row = await self._link.run(_PUT_SCHEDULE, [schedule.name, pack_schedule(schedule), int(again)])
        return read_schedule(schedule.name, row) if row else replace(schedule, next_at=None)

    async def schedules(self) -> Sequence[Schedule]:
        rows = await self._link.command(b"HGETALL", self._link.key("schedules"), on="read")
        found = [read_schedule(rows[i].decode(), rows[i + 1]) for i in range(0, len(rows), 2)]
        return sorted(found, key=lambda schedule: schedule.name)

    async def drop_schedule(self, name: str, *, note: AuditNote | None = None) -> bool:
        packed = pack_note(note, "cancel_schedule", [name])
        return bool(await self._link.run(_DROP_SCHEDULE, [name, packed]))

    async def pause_schedule(self, name: str, paused: bool, *, note: AuditNote | None = None) -> bool:
        packed = pack_note(note, "pause_schedule" if paused else "resume_schedule", [name])
        return bool(await self._link.run(_PAUSE_SCHEDULE, [name, int(paused), packed]))

    async def fire(self, fire: Fire) -> tuple[Submitted, ...] | Rejected | None:
        next_at = b"" if fire.next_at is None else pack_double(fire.next_at)
        arguments: list[Argument] = [os.urandom(3), fire.name, pack_double(fire.at), next_at, fire.error]
        answer = await self._link.run(_FIRE, [*arguments, *item_arguments(fire.items)])
        if answer is None:
            return None
        now, submitted = answer
        return read_submitted(submitted, fire.items, read_double(now))

    async def schedule_runs(self, *, count: int = 30) -> Sequence[ScheduleRun]:
        rows = await self._link.command(b"HGETALL", self._link.key("schedule_runs"), on="read")
        named = sorted((rows[i].decode(), rows[i + 1]) for i in range(0, len(rows), 2))
        found = [run for name, data in named for run in read_runs(name, data)[: max(0, count)]]
        for first in range(0, len(found), PORTION):
            found[first : first + PORTION] = await self._with_status(found[first : first + PORTION])
        return found

    async def _with_status(self, runs: Sequence[ScheduleRun]) -> list[ScheduleRun]:
        names = [text for run in runs if run.id is not None for text in (run.tenant or "", run.id)]
        letters = iter(await self._link.run(_SCHEDULE_RUNS, names, on="read") if names else ())
        return [
            run if run.id is None or not (letter := next(letters)) else replace(run, status=STATUSES[letter])
            for run in runs
        ]
