"""Audit entries: who changed what. A change and its entry are one statement."""

from __future__ import annotations

from functools import cache
from typing import Final

from treadle.item import AuditNote
from treadle.records import AuditEntry, AuditPage
from treadle.store.rules.audits import NotedChange, audit_page, noted_change, number_of_audit
from treadle.store.rules.listing import page_size

from .connection import PostgresCalls, PostgresVerbs, Record
from .statements import statement, text

NO_CURSOR: Final = 2**62


class PostgresAudits(PostgresVerbs):
    async def audits(
        self,
        *,
        tenant: str | None = None,
        bulk: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AuditPage:
        most = page_size(limit)
        before = NO_CURSOR if cursor is None else number_of_audit(cursor)
        named = [each for each in (tenant, bulk) if each is not None]
        name = "audits" if bulk is None else "portions"
        sql = _statement("audits", name if tenant is None else f"{name}_of_tenant")
        rows = await self._calls.rows(sql, *named, before, most + 1)
        return audit_page([_entry(row) for row in rows], most)

    async def drain_worker(self, worker: str, *, note: AuditNote | None = None) -> bool:
        change = noted_change(note, "drain_worker", None, [worker])
        return bool(await rows_noted(self._calls, "workers", "drain", change, worker))


async def rows_noted(
    calls: PostgresCalls, file: str, name: str, change: NotedChange | None, *arguments: object
) -> list[Record]:
    """The rows that a statement has changed. With its audit entry it is not repeated: there would be two."""
    if change is None:
        return await calls.rows(_statement(file, name), *arguments)
    sql = noted_statement("noted_rows", file, name)
    return await calls.rows(sql, *arguments, *note_values(change).values(), repeatable=False)


_statement = cache(statement)


@cache
def noted_statement(kind: str, file: str, name: str) -> str:
    """A statement of another file, with the entry of what it changes."""
    return statement("audits", kind, change=text(file, name))


def note_values(change: NotedChange) -> dict[str, object]:
    """The values of the parameters of an entry, in their order."""
    note = change.note
    return {
        "note_actor": note.actor,
        "note_verb": change.verb,
        "note_tenant": change.tenant,
        "note_ids": list(change.ids),
        "note_about": note.about,
        "note_reason": note.reason,
        "note_address": note.address,
        "note_bulk": note.bulk,
    }


def _entry(row: Record) -> AuditEntry:
    return AuditEntry(
        no=row["no"],
        at=row["at"],
        actor=row["actor"],
        verb=row["verb"],
        tenant=row["tenant"],
        ids=tuple(row["ids"]),
        count=row["count"],
        about=row["about"],
        reason=row["reason"],
        address=row["address"],
        bulk=row["bulk"],
    )
