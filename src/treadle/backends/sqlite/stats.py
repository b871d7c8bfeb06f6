"""Statistics: what workers counted, by minute, quarter and hour."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.records import Stat, StatsBy
from treadle.store.rules.statistics import STEPS, kept_step, labels, rows_to_add

from .histograms import decode_histogram, encode_histogram
from .statements import Row, Tx, blob, statements

_SQL = statements("stats")


def add_stats(tx: Tx, stats: Sequence[Stat]) -> None:
    tx.run_rows(
        _SQL["add"],
        [
            (
                *(step, int(at), type, queue),
                *(stat.started, stat.succeeded, stat.failed, stat.retried, stat.dead, stat.cancelled),
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
    at, _, started, succeeded, failed, retried, dead, cancelled, wait, run = row
    return Stat(
        at=float(at),
        type=labels[0],
        queue=labels[1],
        started=started,
        succeeded=succeeded,
        failed=failed,
        retried=retried,
        dead=dead,
        cancelled=cancelled,
        wait=decode_histogram(wait),
        run=decode_histogram(run),
    )


def prune_stats(tx: Tx, limit: int) -> None:
    """Remove what is not kept any more, up to `limit` rows each."""
    for step, kept in STEPS.items():
        tx.run(_SQL["prune"], step, tx.now - kept, limit)
