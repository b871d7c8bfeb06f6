"""Records: audit entries (who changed what), and what workers counted, by minute, quarter and hour.

A change and its audit entry are one statement.

The counts of a histogram are stored as one number: 12 decimal digits for each count, the first count last.
So the sum of two such numbers has the sums of their counts, and PostgreSQL adds up a histogram as quickly as
a plain count.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

from treadle.item import AuditNote
from treadle.records import MINUTE, AuditEntry, AuditPage, BacklogSample, Stat, StatsBy
from treadle.store.rules.listing import page_size
from treadle.store.rules.records import (
    COUNTERS,
    NotedChange,
    audit_page,
    kept_step,
    labels,
    noted_change,
    number_of_audit,
    rows_to_add,
    stat_of,
)

from .connection import PostgresCalls, PostgresVerbs, Record
from .read import READ_SECONDS
from .statements import statement, statements, text

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


_sql = statements("stats")

DIGITS: Final = 12
MOST: Final = 10**DIGITS - 1


class PostgresStats(PostgresVerbs):
    async def add_stats(self, stats: Sequence[Stat]) -> None:
        rows = rows_to_add(stats)
        if not rows:
            return
        keys = [list(column) for column in zip(*(key for key, _ in rows), strict=True)]
        counts = [[getattr(stat, name) for _, stat in rows] for name in COUNTERS]
        wait, run = ([encoded(getattr(stat, name)) for _, stat in rows] for name in ("wait", "run"))
        # Not repeated after an error whose outcome is unknown: it would count twice.
        await self._calls.rows(_sql("add"), *keys, *counts, wait, run, repeatable=False)

    async def stats(
        self,
        since: float,
        *,
        until: float | None = None,
        step: int = MINUTE,
        by: StatsBy = "time",
        type: str | None = None,
        queue: str | None = None,
    ) -> Sequence[Stat]:
        within = (kept_step(step), since, until, type, queue, step, by)
        rows = await self._calls.rows(_sql("stats"), *within, within=READ_SECONDS)
        return [_stat(row, labels(by, type, queue, row["name"])) for row in rows]

    async def put_samples(self, samples: Sequence[BacklogSample]) -> None:
        if samples:
            columns = [[getattr(each, field) for each in samples] for field in _SAMPLE]
            await self._calls.rows(_sql("put_samples"), *columns)

    async def samples(
        self,
        since: float,
        *,
        until: float | None = None,
        step: int = MINUTE,
        queues: Sequence[str] | None = None,
    ) -> Sequence[BacklogSample]:
        rows = await self._calls.rows(_sql("samples"), step, since, until, queues, within=READ_SECONDS)
        return [BacklogSample(**dict(zip(_SAMPLE, row, strict=True))) for row in rows]


_SAMPLE: Final = ("step", "at", "queue", "samples", "ready", "running", "oldest", "estimated")


def _stat(row: Record, labels: tuple[str, str]) -> Stat:
    at, _, *counters, wait, run = row
    return stat_of(at, labels, counters, decoded(wait), decoded(run))


def encoded(counts: Sequence[int]) -> str:
    return "".join([f"{min(count, MOST):0{DIGITS}d}" for count in reversed(counts)]) or "0"


def decoded(number: str) -> tuple[int, ...]:
    if number == "0":
        return ()
    return tuple([int(number[max(0, end - DIGITS) : end]) for end in range(len(number), 0, -DIGITS)])
