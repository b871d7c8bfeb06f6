"""The bytes of audit entries, schedules and their runs. `lua/lib/audits.lua` and `schedules.lua` have the
formats."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as Bytes
from typing import Final

from msgspec import Struct, msgpack

from treadle.item import AuditNote, Filter, Schedule
from treadle.records import AuditEntry, ScheduleRun
from treadle.store.rules.records import NotedChange, noted_change

NO_NOTE: Final = b""

_HAS_TENANT: Final = 1
_HAS_BULK: Final = 2
_HAS_ABOUT: Final = 4

_HEAD: Final = Bytes(">dIB")
_AUDIT_HEAD: Final = Bytes(">dI")
_LENGTH: Final = Bytes(">H")


class AuditBody(Struct, array_like=True, frozen=True, gc=False):
    """What scripts do not look at."""

    actor: str
    verb: str
    ids: tuple[str, ...]
    about: str
    reason: str
    address: str


_encode: Final = msgpack.Encoder().encode
_decode: Final = msgpack.Decoder(AuditBody).decode


def pack_note(
    note: AuditNote | None, verb: str, ids: Sequence[str] | Filter, tenant: str | None = None
) -> bytes:
    """What `Audits.record` in Lua gets. Empty: there is no note."""
    return pack_change(noted_change(note, verb, tenant, ids))


def pack_change(change: NotedChange | None) -> bytes:
    if change is None:
        return NO_NOTE
    note, tenant = change.note, change.tenant
    flags = (
        _HAS_TENANT * (tenant is not None)
        + _HAS_BULK * (note.bulk is not None)
        + _HAS_ABOUT * bool(note.about)
    )
    body = AuditBody(note.actor, change.verb, change.ids, note.about, note.reason, note.address)
    return b"".join((bytes((flags,)), _text(tenant), _text(note.bulk), _encode(body)))


def pack_audit(entry: AuditEntry) -> bytes:
    """An entry as it is stored."""
    note = AuditNote(
        actor=entry.actor, reason=entry.reason, address=entry.address, bulk=entry.bulk, about=entry.about
    )
    packed = pack_change(NotedChange(note, entry.verb, entry.tenant, entry.ids))
    return _AUDIT_HEAD.pack(entry.at, entry.count) + packed


def pack_runs(runs: Sequence[ScheduleRun]) -> bytes:
    return b"".join(
        b"".join((_RUN.pack(run.at, run.fired_at), _text(run.tenant), _text(run.id), _text(run.error)))
        for run in runs
    )


def read_audit(number: int, entry: bytes) -> AuditEntry:
    at, count, flags = _HEAD.unpack_from(entry)
    tenant, place = _read_text(entry, _HEAD.size)
    bulk, place = _read_text(entry, place)
    body = _decode(entry[place:])
    return AuditEntry(
        no=number,
        at=at,
        actor=body.actor,
        verb=body.verb,
        tenant=tenant if flags & _HAS_TENANT else None,
        ids=body.ids,
        count=count,
        about=body.about,
        reason=body.reason,
        address=body.address,
        bulk=bulk if flags & _HAS_BULK else None,
    )


def _text(text: str | None) -> bytes:
    data = (text or "").encode()
    return _LENGTH.pack(len(data)) + data


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    end = at + 2 + length
    return data[at + 2 : end].decode(), end


_PAUSED: Final = 1
_HAS_NEXT: Final = 2
_HAS_LAST: Final = 4

_SCHEDULE_HEAD: Final = Bytes(">Bddd")
_RUN: Final = Bytes(">dd")


def pack_schedule(schedule: Schedule) -> bytes:
    flags = (
        _PAUSED * schedule.paused
        + _HAS_NEXT * (schedule.next_at is not None)
        + _HAS_LAST * (schedule.last_at is not None)
    )
    return (
        _SCHEDULE_HEAD.pack(flags, schedule.next_at or 0.0, schedule.last_at or 0.0, schedule.seen_at)
        + schedule.spec
    )


def read_schedule(name: str, row: bytes) -> Schedule:
    flags, next_at, last_at, seen_at = _SCHEDULE_HEAD.unpack_from(row)
    return Schedule(
        name=name,
        next_at=next_at if flags & _HAS_NEXT else None,
        spec=row[_SCHEDULE_HEAD.size :],
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
