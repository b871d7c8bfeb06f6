"""Store rows: what the store says about itself, as rows of `STORE_METRICS`."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final

from treadle.item import Schedule
from treadle.item_facts import LimitUse, Overview
from treadle.store.fleet import Fleet, last_beat

from .names import STORE_METRICS
from .registry import MAX_TYPES
from .rows import MetricRow
from .series import MAX_QUEUES, OTHER

MOST_LIMITS: Final = 100
MOST_SCHEDULES: Final = 500
_EXPORTED: Final = {metric.name: metric.exported for metric in STORE_METRICS}


class KeptLabels:
    """The first `most` values of a label that were met. All others are shown as `OTHER`."""

    def __init__(self, most: int) -> None:
        self._known: set[str] = set()
        self._most = most

    def of(self, value: str) -> str:
        if value not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(value)
        return value


class StoreRows:
    """Makes the rows. It remembers which queues and types are shown by name, so that series go on."""

    def __init__(self) -> None:
        self._queues = KeptLabels(MAX_QUEUES)
        self._types = KeptLabels(MAX_TYPES)

    def of_overview(self, overview: Overview) -> list[MetricRow]:
        now, queue, type = overview.now, self._queues.of, self._types.of
        fleet = Fleet(overview.workers, now)
        counts = [((queue(each.queue), type(each.type), each.status), each.count) for each in overview.counts]
        exact = [((queue(each.queue), each.status), int(not each.estimated)) for each in overview.counts]
        ages = [((queue(each.queue),), max(0.0, now - each.oldest_ready)) for each in overview.ages]
        unserved = [((type(each.type),), each.count) for each in overview.unserved]
        known = {each.queue for each in overview.counts} | {each.queue for each in overview.ages}
        stopped = {name for name, tenant in overview.paused if tenant is None}
        paused = [((queue(name),), int(name in stopped)) for name in sorted(known | stopped)]
        beats = [beat for each in fleet.workers if (beat := last_beat(each)) is not None]
        return [
            *_rows("items", counts, sum),
            *_rows("items_exact", exact, min),
            *_rows("oldest_ready_seconds", ages, max),
            *_rows("unserved_items", unserved, sum),
            *_rows("workers", [((), len(fleet.taking))], sum),
            *_rows("worker_last_beat_timestamp_seconds", [((), beat) for beat in beats], max),
            *_rows("queue_paused", paused, max),
        ]


def _rows(
    name: str,
    values: Iterable[tuple[tuple[str, ...], float]],
    together: Callable[[Sequence[float]], float],
) -> list[MetricRow]:
    """One row for each set of labels. together: how values with the same labels become one."""
    found: dict[tuple[str, ...], list[float]] = {}
    for labels, value in values:
        found.setdefault(labels, []).append(value)
    return [MetricRow(_EXPORTED[name], labels, together(each)) for labels, each in found.items()]


def rows_of_limits(uses: Sequence[LimitUse], declared: Callable[[str], int | None]) -> list[MetricRow]:
    """declared: what the code allows under a name: of `slots` the store does not know it. A limit that is not
    known is left out. If there are too many, those that are used most are shown."""
    ratios: list[tuple[float, str]] = []
    for use in uses:
        limit = declared(use.name) if use.limit is None else use.limit
        if limit:
            full = use.retry_after > 0
            ratios.append((1.0 if full else min(1.0, use.used / limit), use.name))
    most = sorted(ratios, key=lambda each: (-each[0], each[1]))[:MOST_LIMITS]
    return _rows("limit_used_ratio", [((name,), ratio) for ratio, name in most], max)


def rows_of_schedules(
    schedules: Sequence[Schedule], is_orphaned: Callable[[Schedule], bool], failed: Container[str]
) -> list[MetricRow]:
    """Those that have not ended. failed: the names of those whose last run failed."""
    open = [(each, each.next_at) for each in schedules if each.next_at is not None][:MOST_SCHEDULES]

    def flags(name: str, is_set: Callable[[Schedule], bool]) -> list[MetricRow]:
        return _rows(name, [((each.name,), int(not each.paused and is_set(each))) for each, _ in open], max)

    return [
        *_rows("schedule_next_timestamp_seconds", [((each.name,), next_at) for each, next_at in open], max),
        *flags("schedule_orphaned", is_orphaned),
        *flags("schedule_failing", lambda each: each.name in failed),
    ]


def row_of_answer(answered: bool) -> MetricRow:
    return MetricRow(_EXPORTED["store_up"], (), int(answered))
