"""Statistics: what workers counted, by minute, quarter and hour.

The counts of a histogram are stored as one number: 12 decimal digits for each count, the first count last.
So the sum of two such numbers has the sums of their counts, and PostgreSQL adds up a histogram as quickly as
a plain count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.records import MINUTE, Stat, StatsBy
from treadle.store.rules.statistics import COUNTERS, kept_step, labels, rows_to_add

from .connection import PostgresVerbs, Record
from .read import READ_SECONDS
from .statements import statements

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


def _stat(row: Record, labels: tuple[str, str]) -> Stat:
    at, _, started, succeeded, failed, retried, dead, cancelled, wait, run = row
    return Stat(
        at=at,
        type=labels[0],
        queue=labels[1],
        started=started,
        succeeded=succeeded,
        failed=failed,
        retried=retried,
        dead=dead,
        cancelled=cancelled,
        wait=decoded(wait),
        run=decoded(run),
    )


def encoded(counts: Sequence[int]) -> str:
    return "".join([f"{min(count, MOST):0{DIGITS}d}" for count in reversed(counts)]) or "0"


def decoded(number: str) -> tuple[int, ...]:
    if number == "0":
        return ()
    return tuple([int(number[max(0, end - DIGITS) : end]) for end in range(len(number), 0, -DIGITS)])
