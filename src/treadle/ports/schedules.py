"""Schedules: all of them are one record. An occurrence and its items are written there before the items are
submitted. A process that finds an occurrence there completes its submission."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from treadle.item import Fire, Item, Rejected, Schedule, Submitted
from treadle.records import KEPT_REMOVALS
from treadle.store.rules.times import fired, put_schedule

from .records import UNCHANGED, Records, RecordType, Unchanged
from .submit import PortsSubmit

A = TypeVar("A")


class StoredSchedule(msgspec.Struct, omit_defaults=True):
    schedule: Schedule
    firing: tuple[Item, ...] | None = None
    """The items of the last occurrence, while they are being submitted."""
    removed_at: float | None = None
    """It was removed then. Only that is known of it."""


SchedulesRecord: TypeAlias = dict[str, StoredSchedule]
SCHEDULES: RecordType[SchedulesRecord] = RecordType(dict[str, StoredSchedule])


class PortsSchedules:
    def __init__(self, records: Records, submit: PortsSubmit) -> None:
        self._records = records
        self._submit = submit

    async def put(self, schedule: Schedule, *, again: bool) -> Schedule:
        now = self._records.now()

        def step(record: SchedulesRecord) -> tuple[Schedule, SchedulesRecord | Unchanged]:
            stored = _find(record, schedule.name)
            known = None if stored is None else stored.schedule
            removed = stored is None and schedule.name in record
            put = put_schedule(known, schedule, now, again=again, removed=removed)
            if put is None:
                return known or replace(schedule, next_at=None), UNCHANGED
            if stored is not None and stored.schedule.spec == put.spec:
                stored.schedule = put
            else:
                record[schedule.name] = StoredSchedule(put)
            return put, record

        return await self._change(step)

    async def all(self) -> list[Schedule]:
        record = (await self._records.draft(self._records.keys.schedules, SCHEDULES)).record or {}
        for name, stored in record.items():
            if stored.firing is not None:
                await self._resume(name, stored)
        return [record[name].schedule for name in sorted(record) if record[name].removed_at is None]

    async def drop(self, name: str) -> bool:
        now = self._records.now()

        def step(record: SchedulesRecord) -> tuple[bool, SchedulesRecord | Unchanged]:
            found = _find(record, name) is not None
            record[name] = StoredSchedule(Schedule(name=name, next_at=None), removed_at=now)
            kept = {
                each: stored
                for each, stored in record.items()
                if stored.removed_at is None or stored.removed_at >= now - KEPT_REMOVALS
            }
            return found, kept

        return await self._change(step)

    async def pause(self, name: str, paused: bool) -> bool:
        def step(record: SchedulesRecord) -> tuple[bool, SchedulesRecord | Unchanged]:
            stored = _find(record, name)
            if stored is None:
                return False, UNCHANGED
            stored.schedule = replace(stored.schedule, paused=paused)
            return True, record

        return await self._change(step)

    async def fire(self, fire: Fire) -> tuple[Submitted, ...] | Rejected | None:
        before = await self._begin_fire(fire)
        if before is None:
            return None
        answer = await self._submit.submit_together(fire.items)
        if isinstance(answer, Rejected):
            await self._change(lambda record: _undo_fire(record, fire, before))
        else:
            await self._change(lambda record: _complete_fire(record, fire.name, fire.items))
        return answer

    async def _begin_fire(self, fire: Fire) -> Schedule | None:
        """Advance the schedule and write the items to be submitted. None: this occurrence is not due."""
        while True:
            draft = await self._records.draft(self._records.keys.schedules, SCHEDULES)
            record = draft.record or {}
            stored = _find(record, fire.name)
            advanced = None if stored is None else fired(stored.schedule, fire)
            if stored is None or advanced is None:
                return None
            if stored.firing is not None:
                await self._resume(fire.name, stored)
                continue
            before = stored.schedule
            stored.schedule, stored.firing = advanced, fire.items
            if await self._records.replace(self._records.keys.schedules, draft, record):
                return before

    async def _resume(self, name: str, stored: StoredSchedule) -> None:
        """Submit the items of an interrupted occurrence. If they were submitted, this is rejected and
        harmless."""
        items = stored.firing or ()
        await self._submit.submit_together(items)
        await self._change(lambda record: _complete_fire(record, name, items))

    async def _change(self, step: Callable[[SchedulesRecord], tuple[A, SchedulesRecord | Unchanged]]) -> A:
        return await self._records.change(
            self._records.keys.schedules, SCHEDULES, lambda record: step({} if record is None else record)
        )


def _find(record: SchedulesRecord, name: str) -> StoredSchedule | None:
    stored = record.get(name)
    return None if stored is None or stored.removed_at is not None else stored


def _complete_fire(
    record: SchedulesRecord, name: str, items: tuple[Item, ...]
) -> tuple[None, SchedulesRecord | Unchanged]:
    stored = record.get(name)
    if stored is None or stored.firing != items:
        return None, UNCHANGED
    stored.firing = None
    return None, record


def _undo_fire(
    record: SchedulesRecord, fire: Fire, before: Schedule
) -> tuple[None, SchedulesRecord | Unchanged]:
    stored = record.get(fire.name)
    if stored is None or stored.firing != fire.items:
        return None, UNCHANGED
    record[fire.name] = StoredSchedule(before)
    return None, record
