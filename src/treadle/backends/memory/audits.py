"""Audit entries: who changed what."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from typing import TypeVar

from treadle.item import AuditNote, Changed, Filter
from treadle.records import KEPT_AUDIT, AuditPage
from treadle.store.rules.audits import (
    NotedChange,
    audit_page,
    changed_count,
    noted_change,
    number_of_audit,
)
from treadle.store.rules.listing import page_size

from .tables import MemoryTables

A = TypeVar("A", Changed, bool)

_no = attrgetter("no")


def noted(
    store: MemoryTables,
    answer: A,
    note: AuditNote | None,
    verb: str,
    ids: Sequence[str] | Filter,
    tenant: str | None = None,
) -> A:
    """Store the entry of a change that has just been made. No other verb can run in between."""
    change = noted_change(note, verb, tenant, ids)
    if change is not None:
        record(store, change, changed_count(answer))
    return answer


def record(store: MemoryTables, change: NotedChange, count: int) -> None:
    store.audits.append(change.entry(next(store.audit_numbers), store.now(), count))


def audits(
    store: MemoryTables, tenant: str | None, bulk: str | None, limit: int, cursor: str | None
) -> AuditPage:
    entries, most = store.audits, page_size(limit)
    end = len(entries) if cursor is None else bisect_left(entries, number_of_audit(cursor), key=_no)
    found = (
        entry
        for entry in (entries[place] for place in range(end - 1, -1, -1))
        if tenant in (None, entry.tenant)
        and (entry.bulk == bulk or (bulk is None and tenant is not None and entry.about))
    )
    return audit_page(list(islice(found, most + 1)), most)


def prune_audits(store: MemoryTables, limit: int, now: float) -> None:
    """Remove old entries, at most `limit`. The oldest come first."""
    old = bisect_left(store.audits, now - KEPT_AUDIT, hi=min(limit, len(store.audits)), key=attrgetter("at"))
    del store.audits[:old]
