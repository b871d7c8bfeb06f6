"""Audit notes: who makes changes with a client, and the log line of each change. See `Client.by`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from treadle.backend import Backend
from treadle.base.timing import iso
from treadle.base.wording import one_line, plural
from treadle.errors import InputError, UnsupportedError
from treadle.item import AuditNote
from treadle.logs.lines import INFO, log_line
from treadle.records import MOST_AUDIT_IDS, AuditEntry

MOST_ACTOR: Final = 200
MOST_REASON: Final = 2000
MOST_ABOUT: Final = 2000
PORTION_GAP: Final = 60.0
"""Seconds between two portions of one change, at most."""


def checked_note(actor: object, reason: object, address: object) -> AuditNote:
    """The note of a client. InputError names what it cannot be made of."""
    return AuditNote(
        actor=_checked(actor, "actor", MOST_ACTOR, least=1),
        reason=_checked(reason, "reason", MOST_REASON),
        address=_checked(address, "address", MOST_ACTOR),
    )


def _checked(value: object, field: str, most: int, least: int = 0) -> str:
    if not isinstance(value, str):
        raise InputError.of(field, value, "must be text")
    if len(value.strip()) < least:
        raise InputError.of(field, value, "is empty: name who makes the changes, as by('ann@example.org')")
    if len(value) > most:
        raise InputError.of(field, value, f"has {len(value):,} characters: at most {most:,} are kept")
    if not value.isprintable():
        raise InputError.of(field, value, "has characters that cannot be printed: write it on one line")
    return value


def noted_about(note: AuditNote | None, about: str) -> AuditNote | None:
    """The note of one change, with what was asked for, unless it says so already."""
    return note if note is None or note.about else replace(note, about=about)


def noted_for(note: AuditNote | None, tenant: str | None) -> AuditNote | None:
    """The note with the tenant whose things are changed, for verbs that do not tell it to the store."""
    return note if note is None or tenant is None else replace(note, tenant=tenant)


def about(given: Mapping[str, Any]) -> str:
    """What was asked for, as text: `queue=bulk run_at=2030-01-31T09:00:00Z deadline=none`."""
    return one_line(" ".join(f"{name}={_text(name, value)}" for name, value in given.items()), MOST_ABOUT)


def _text(name: str, value: object) -> str:
    if isinstance(value, int | float) and name in ("run_at", "deadline", "until"):
        return f"{(iso(value) or '')[:19]}Z"
    return "none" if value is None else str(value)


def check_recording(backend: Backend) -> None:
    """Raise if a backend cannot keep notes."""
    if "recording" not in backend.capabilities:
        raise UnsupportedError(
            "recording",
            type(backend).__name__,
            "audit entries",
            advice="change it without `by(...)`, or use a backend that does",
        )


def log_change(note: AuditNote | None, verb: str, ids: Sequence[str], count: int, tenant: str | None) -> None:
    """Log a change that was made and stored. Nothing without a note."""
    if note is None:
        return
    verb = note.verb or verb
    named = f" of {ids[0]}" if len(ids) == 1 else f" of {plural(len(ids), 'id')}" if ids else ""
    reason = f" ({note.reason})" if note.reason else ""
    log_line(
        INFO,
        one_line(f"{verb}{named} by {note.actor}: {count} changed{reason}"),
        {
            "actor": note.actor,
            "verb": verb,
            "count": count,
            "tenant": note.tenant if tenant is None else tenant,
            "reason": note.reason,
            "address": note.address,
        },
    )


def in_one(entries: Iterable[AuditEntry]) -> list[AuditEntry]:
    """The entries, newest first, with the portions of one change as one: those that follow one another, and
    differ in nothing but their items. All but the last are full."""
    found: list[AuditEntry] = []
    began = 0.0
    for entry in entries:
        if (
            found
            and len(entry.ids) >= MOST_AUDIT_IDS
            and _is_alike(found[-1], entry)
            and began - entry.at <= PORTION_GAP
        ):
            last = found[-1]
            ids = (*entry.ids, *last.ids)[:MOST_AUDIT_IDS]
            count, portions = last.count + entry.count, last.portions + 1
            found[-1] = replace(last, ids=ids, count=count, portions=portions)
        else:
            found.append(entry)
        began = entry.at
    return found


def _is_alike(one: AuditEntry, other: AuditEntry) -> bool:
    same = replace(other, no=one.no, at=one.at, ids=one.ids, count=one.count, portions=one.portions)
    return same == one
