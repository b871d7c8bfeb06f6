"""The bytes of schedules and their runs: `lua/lib/schedules.lua` has the formats."""

from __future__ import annotations

from struct import Struct as Bytes
from typing import Final

from treadle.item import Schedule
from treadle.records import ScheduleRun

_PAUSED: Final = 1
_HAS_NEXT: Final = 2
_HAS_LAST: Final = 4

_HEAD: Final = Bytes(">Bddd")
_RUN: Final = Bytes(">dd")
_LENGTH: Final = Bytes(">H")


def pack_schedule(schedule: Schedule) -> bytes:
    flags = (
        _PAUSED * schedule.paused
        + _HAS_NEXT * (schedule.next_at is not None)
        + _HAS_LAST * (schedule.last_at is not None)
    )
    return (
        _HEAD.pack(flags, schedule.next_at or 0.0, schedule.last_at or 0.0, schedule.seen_at) + schedule.spec
    )


def read_schedule(name: str, row: bytes) -> Schedule:
    flags, next_at, last_at, seen_at = _HEAD.unpack_from(row)
    return Schedule(
        name=name,
        next_at=next_at if flags & _HAS_NEXT else None,
        spec=row[_HEAD.size :],
        paused=bool(flags & _PAUSED),
        last_at=last_at if flags & _HAS_LAST else None,
        seen_at=seen_at,
    )


def read_runs(name: str, data: bytes) -> list[ScheduleRun]:
    """All runs of a schedule that are kept, the newest first."""
    found: list[ScheduleRun] = []
    at = 0
    while at < len(data):
        due, fired_at = _RUN.unpack_from(data, at)
        tenant, at = _read_text(data, at + _RUN.size)
        id, at = _read_text(data, at)
        error, at = _read_text(data, at)
        whose = tenant if id else None
        found.append(
            ScheduleRun(name=name, at=due, fired_at=fired_at, id=id or None, tenant=whose, error=error)
        )
    return sorted(found, key=lambda run: run.at, reverse=True)


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    end = at + 2 + length
    return data[at + 2 : end].decode(), end
