"""Records: audit entries, which say who changed what, and statistics: what workers counted, by minute,
quarter and hour."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from typing import TypeVar

from treadle.item import AuditNote, Changed, Filter
from treadle.records import KEPT_AUDIT, KEPT_REMOVALS, AuditPage, BacklogSample, Stat, StatsBy
from treadle.store.rules.listing import page_size
from treadle.store.rules.records import (
    STEPS,
    NotedChange,
    added,
    audit_page,
    begin_of,
    changed_count,
    kept_step,
    labels,
    noted_change,
    number_of_audit,
    rows_to_add,
)

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


# -- statistics --------------------------------------------------------------------------------------


def add_stats(store: MemoryTables, stats: Sequence[Stat]) -> None:
    for (step, at, type, queue), stat in rows_to_add(stats):
        rows = store.stats[step].setdefault(at, {})
        earlier = rows.get((type, queue))
        rows[type, queue] = stat if earlier is None else added(at, type, queue, (earlier, stat))


def read_stats(
    store: MemoryTables,
    since: float,
    until: float | None,
    step: int,
    by: StatsBy,
    type: str | None,
    queue: str | None,
) -> list[Stat]:
    found: dict[tuple[float, str], list[Stat]] = {}
    for at, rows in store.stats[kept_step(step)].items():
        if at < since or (until is not None and at >= until):
            continue
        for stat in rows.values():
            if type in (None, stat.type) and queue in (None, stat.queue):
                name = {"time": "", "type": stat.type, "queue": stat.queue}[by]
                key = (begin_of(at, step), "") if by == "time" else (since, name)
                found.setdefault(key, []).append(stat)
    return [added(at, *labels(by, type, queue, name), stats) for (at, name), stats in sorted(found.items())]


def read_samples(
    store: MemoryTables, since: float, until: float | None, step: int, queues: Sequence[str] | None
) -> list[BacklogSample]:
    return [
        each
        for (at, name), each in sorted(store.samples[step].items())
        if at >= since and (until is None or at < until) and (queues is None or name in queues)
    ]


def prune_stats(store: MemoryTables, now: float) -> None:
    for step, kept in STEPS.items():
        rows, samples = store.stats[step], store.samples[step]
        for at in [at for at in rows if at < now - kept]:
            del rows[at]
        for key in [key for key in samples if key[0] < now - kept]:
            del samples[key]


def prune_removals(store: MemoryTables, now: float) -> None:
    """Forget schedules that were removed long ago."""
    for name in [name for name, at in store.removed_schedules.items() if at < now - KEPT_REMOVALS]:
        del store.removed_schedules[name]
