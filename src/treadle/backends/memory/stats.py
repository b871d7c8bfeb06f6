"""Statistics: what workers counted, by minute, quarter and hour."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.records import Stat, StatsBy
from treadle.store.rules.statistics import STEPS, added, begin_of, kept_step, labels, rows_to_add

from .tables import MemoryTables


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


def prune_stats(store: MemoryTables, now: float) -> None:
    for step, kept in STEPS.items():
        rows = store.stats[step]
        for at in [at for at in rows if at < now - kept]:
            del rows[at]
