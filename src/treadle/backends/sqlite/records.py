"""Records: audit entries, which say who changed what, and statistics: what workers counted, by minute,
quarter and hour."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from treadle.item import Changed
from treadle.records import AuditEntry, AuditPage, BacklogSample, Stat, StatsBy
from treadle.store.rules.listing import page_size
from treadle.store.rules.records import (
    COUNTERS,
    STEPS,
    NotedChange,
    audit_page,
    changed_count,
    kept_step,
    labels,
    number_of_audit,
    rows_to_add,
    stat_of,
)

from .rows import decode_ids
from .statements import Row, Tx, array, blob, statements

_SQL = statements("records")

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


# -- statistics --------------------------------------------------------------------------------------


def add_stats(tx: Tx, stats: Sequence[Stat]) -> None:
    tx.run_rows(
        _SQL["add"],
        [
            (
                *(step, int(at), type, queue),
                *(getattr(stat, name) for name in COUNTERS),
                blob(encode_histogram(stat.wait)),
                blob(encode_histogram(stat.run)),
            )
            for (step, at, type, queue), stat in rows_to_add(stats)
        ],
    )


def read_stats(
    tx: Tx,
    since: float,
    until: float | None,
    step: int,
    by: StatsBy,
    type: str | None,
    queue: str | None,
) -> list[Stat]:
    within = (kept_step(step), since, until, type, queue)
    rows = tx.rows(_SQL[f"by_{by}"], *within, step if by == "time" else since)
    return [_stat(row, labels(by, type, queue, row[1])) for row in rows]


def _stat(row: Row, labels: tuple[str, str]) -> Stat:
    at, _, *counters, wait, run = row
    return stat_of(float(at), labels, counters, decode_histogram(wait), decode_histogram(run))


_SAMPLE: Final = ("step", "at", "queue", "samples", "ready", "running", "oldest", "estimated")


def put_samples(tx: Tx, samples: Sequence[BacklogSample]) -> None:
    tx.run_rows(_SQL["put_sample"], [tuple(getattr(each, field) for field in _SAMPLE) for each in samples])


def read_samples(
    tx: Tx, since: float, until: float | None, step: int, queues: Sequence[str] | None
) -> list[BacklogSample]:
    rows = tx.rows(_SQL["samples"], step, since, until, None if queues is None else array(queues))
    fields: list[dict[str, Any]] = [
        dict(zip(_SAMPLE, (*row[:-1], bool(row[-1])), strict=True)) for row in rows
    ]
    return [BacklogSample(**each) for each in fields]


def prune_stats(tx: Tx, limit: int) -> None:
    """Remove what is not kept any more, up to `limit` rows each."""
    for step, kept in STEPS.items():
        tx.run(_SQL["prune"], step, tx.now - kept, limit)
        tx.run(_SQL["prune_samples"], step, tx.now - kept, limit)


# -- histograms as numbers -----------------------------------------------------------------------------
#
# The counts of a histogram are the digits of one number, in the base 2 ** 48, the first count last. So the
# sum of two such numbers has the sums of their counts. They are stored as bytes, the lowest first, without
# the zeros at the end: an empty histogram has none.


_BYTES: Final = 6
_MOST: Final = 2 ** (8 * _BYTES) - 1
"""No process counts this far: that would take a million items a second for nine years."""


def encode_histogram(counts: Sequence[int]) -> bytes:
    return b"".join(min(count, _MOST).to_bytes(_BYTES, "little") for count in counts).rstrip(b"\0")


def decode_histogram(stored: bytes) -> tuple[int, ...]:
    parts = (stored[begin : begin + _BYTES] for begin in range(0, len(stored), _BYTES))
    return tuple(int.from_bytes(part, "little") for part in parts)


def add_functions(connection: sqlite3.Connection) -> None:
    """Define the functions of SQL that statements call with histograms."""
    connection.create_function("treadle_add", 2, _added, deterministic=True)
    aggregate: Any = _HistogramSum  # the stubs know aggregates of integers only
    connection.create_aggregate("treadle_sum", 1, aggregate)


def _added(first: bytes, second: bytes) -> bytes:
    return _to_bytes(int.from_bytes(first, "little") + int.from_bytes(second, "little"))


def _to_bytes(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "little")


class _HistogramSum:
    """The sum of the histograms in a group of rows."""

    def __init__(self) -> None:
        self._sum = 0

    def step(self, stored: bytes) -> None:
        self._sum += int.from_bytes(stored, "little")

    def finalize(self) -> bytes:
        return _to_bytes(self._sum)
