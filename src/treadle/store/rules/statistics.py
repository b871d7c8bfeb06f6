"""Statistics: which minutes, quarters and hours a process adds to, and how they are summed up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Final, TypeAlias

from msgspec.structs import replace

from treadle.records import HOUR, KEPT_HOURS, KEPT_MINUTES, MINUTE, QUARTER, Stat, StatsBy

StatKey: TypeAlias = tuple[int, float, str, str]
"""Step, begin, type, queue. Stores change rows in this order."""

STEPS: Final = {MINUTE: KEPT_MINUTES, QUARTER: KEPT_MINUTES, HOUR: KEPT_HOURS}
"""Of each length that is stored: for how many seconds."""
COUNTERS: Final = ("started", "succeeded", "failed", "retried", "dead", "cancelled")


def rows_to_add(stats: Iterable[Stat]) -> list[tuple[StatKey, Stat]]:
    """What to add for each minute, quarter and hour, once each, in the order of the keys."""
    found: dict[StatKey, Stat] = {}
    for stat in stats:
        for step in STEPS:
            at = begin_of(stat.at, step)
            key = (step, at, stat.type, stat.queue)
            earlier = found.get(key)
            if earlier is None:
                found[key] = replace(stat, at=at)
            else:
                found[key] = added(at, stat.type, stat.queue, (earlier, stat))
    return sorted(found.items(), key=lambda row: row[0])


def begin_of(at: float, step: int) -> float:
    """When the step begins in which an instant is."""
    return at // step * step


def kept_step(step: int) -> int:
    """Which rows are read for a step: the longest of which it is a multiple."""
    return max(stored for stored in STEPS if step % stored == 0)


def labels(by: StatsBy, type: str | None, queue: str | None, found: str) -> tuple[str, str]:
    """The type and the queue that a Stat names. Empty: all of them.

    type, queue: those that were asked for. found: the type or the queue of its group.
    """
    return found if by == "type" else type or "", found if by == "queue" else queue or ""


def added(at: float, type: str, queue: str, stats: Sequence[Stat]) -> Stat:
    """The sums of these."""
    return Stat(
        at=at,
        type=type,
        queue=queue,
        started=sum(stat.started for stat in stats),
        succeeded=sum(stat.succeeded for stat in stats),
        failed=sum(stat.failed for stat in stats),
        retried=sum(stat.retried for stat in stats),
        dead=sum(stat.dead for stat in stats),
        cancelled=sum(stat.cancelled for stat in stats),
        wait=_histograms(stat.wait for stat in stats),
        run=_histograms(stat.run for stat in stats),
    )


def _histograms(counts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))
