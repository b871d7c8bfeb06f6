"""Audit entries: who changed what."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from treadle.item import Changed
from treadle.records import AuditEntry, AuditPage
from treadle.store.rules.audits import NotedChange, audit_page, changed_count, number_of_audit
from treadle.store.rules.listing import page_size

from .rows import decode_ids
from .statements import Row, Tx, array, statements

_SQL = statements("audits")

A = TypeVar("A", Changed, bool)


def noted(tx: Tx, change: NotedChange, verb: Callable[[Tx], A]) -> A:
    """Carry out a verb, and store its entry."""
    answer = verb(tx)
    record(tx, change, changed_count(answer))
    return answer


def record(tx: Tx, change: NotedChange, count: int) -> None:
    note = change.note
    tx.run(
        _SQL["insert_audit"],
        tx.now,
        note.actor,
        change.verb,
        change.tenant,
        array(change.ids),
        count,
        note.about,
        note.reason,
        note.address,
        note.bulk,
    )


def audits(tx: Tx, tenant: str | None, bulk: str | None, limit: int, cursor: str | None) -> AuditPage:
    most = page_size(limit)
    before = 2**62 if cursor is None else number_of_audit(cursor)
    if tenant is None:
        rows = tx.rows(_SQL["audits"], bulk, before, most + 1)
    elif bulk is None:
        rows = tx.rows(_SQL["audits_of_tenant"], tenant, before, most + 1)
    else:
        rows = tx.rows(_SQL["portions_of_tenant"], tenant, bulk, before, most + 1)
    return audit_page([_entry(row) for row in rows], most)


def _entry(row: Row) -> AuditEntry:
    no, at, actor, verb, tenant, ids, count, about, reason, address, bulk = row
    return AuditEntry(
        no=no,
        at=at,
        actor=actor,
        verb=verb,
        tenant=tenant,
        ids=decode_ids(ids),
        count=count,
        about=about,
        reason=reason,
        address=address,
        bulk=bulk,
    )
