"""Merge: the answers of several stores as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from treadle.item import Changed, Count, Effects, WorkerState
from treadle.item_facts import (
    DeadMark,
    LimitHolder,
    LimitUse,
    Overview,
    QueueAge,
    Release,
    UnservedType,
    mark_releases,
)
from treadle.records import Line

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def effects_of(parts: Iterable[Effects]) -> Effects:
    found = list(parts)
    if len(found) == 1:
        return found[0]
    return Effects(
        tuple(each for part in found for each in part.released),
        tuple(each for part in found for each in part.ended_groups),
        sum([part.doomed for part in found]),
    )


def changed_of(parts: Iterable[Changed]) -> Changed:
    found = list(parts)
    if len(found) == 1:
        return found[0]
    return Changed(
        tuple(item for part in found for item in part.items), effects_of(part.effects for part in found)
    )


def counts_of(parts: Iterable[Sequence[Count]]) -> list[Count]:
    found: dict[tuple[str, str, str, str], Count] = {}
    for each in (count for part in parts for count in part):
        key = each.tenant, each.queue, each.type, each.status
        old = found.get(key)
        if old is not None:
            each = replace(each, count=old.count + each.count, estimated=old.estimated or each.estimated)
        found[key] = each
    return [found[key] for key in sorted(found)]


def workers_of(parts: Iterable[Sequence[WorkerState]]) -> list[WorkerState]:
    """Each worker once. What it runs adds up. Its lease is that of home, which comes first: where it holds
    nothing, its lease lasts longer."""
    found: dict[str, WorkerState] = {}
    for each in (worker for part in parts for worker in part):
        old = found.get(each.id)
        if old is not None:
            running = None if each.running is None or old.running is None else each.running + old.running
            info = each.info if old.info is None else old.info
            each = replace(old, running=running, info=info)
        found[each.id] = each
    return [found[id] for id in sorted(found)]


def overview_of(parts: Sequence[Overview], most_releases: int) -> Overview:
    ages: dict[str, float] = {}
    unserved: dict[str, UnservedType] = {}
    releases: dict[str, float] = {}
    for part in parts:
        for age in part.ages:
            ages[age.queue] = min(age.oldest_ready, ages.get(age.queue, age.oldest_ready))
        for each in part.unserved:
            old = unserved.get(each.type)
            since = [one.since for one in (old, each) if one is not None and one.since is not None]
            count = each.count + (0 if old is None else old.count)
            unserved[each.type] = UnservedType(each.type, count, max(since, default=None))
        for release in part.releases:
            releases[release.name] = min(release.began_at, releases.get(release.name, release.began_at))
    newest = sorted(releases.items(), key=lambda each: -each[1])[:most_releases]
    return Overview(
        now=parts[0].now,
        counts=tuple(counts_of(part.counts for part in parts)),
        ages=tuple(QueueAge(queue, at) for queue, at in sorted(ages.items())),
        unserved=tuple(unserved[type] for type in sorted(unserved)),
        workers=tuple(workers_of(part.workers for part in parts)),
        releases=tuple(Release(name, at) for name, at in newest),
    )


def marks_of(parts: Iterable[Sequence[DeadMark]], count: int, cap: int) -> list[DeadMark]:
    found: defaultdict[str, list[DeadMark]] = defaultdict(list)
    for each in (mark for part in parts for mark in part):
        found[each.mark].append(each)
    merged = [_mark_of(marks, cap) for marks in found.values()]
    return sorted(merged, key=lambda mark: -mark.last_at)[:count]


def _mark_of(marks: Sequence[DeadMark], cap: int) -> DeadMark:
    if len(marks) == 1:
        return marks[0]
    total = sum([each.count for each in marks])
    return replace(
        max(marks, key=lambda mark: mark.last_at),
        count=min(total, cap),
        capped=total > cap or any(each.capped for each in marks),
        oldest_queued_at=min(each.oldest_queued_at for each in marks),
        releases=mark_releases(release for each in marks for release in each.releases),
        stores=tuple(store for each in marks for store in each.stores),
    )


def lines_of(parts: Iterable[Sequence[Line]], count: int, cap: int) -> list[Line]:
    """By root a line may be in several stores. First is then what became ready first."""
    found: dict[tuple[str, str], Line] = {}
    for each in (line for part in parts for line in part):
        old = found.get((each.tenant, each.lane))
        if old is not None:
            total = old.count + each.count
            first = min(old, each, key=lambda line: line.oldest_ready)
            each = replace(first, count=min(total, cap), capped=old.capped or each.capped or total > cap)
        found[each.tenant, each.lane] = each
    return [found[key] for key in sorted(found)][:count]


def _holders(given: Sequence[LimitHolder]) -> tuple[LimitHolder, ...]:
    """Each worker once."""
    found: dict[str, LimitHolder] = {}
    for each in given:
        old = found.get(each.worker, LimitHolder(each.worker, 0))
        found[each.worker] = LimitHolder(each.worker, old.count + each.count, (*old.items, *each.items))
    return tuple(found.values())[:100]


def limits_of(parts: Iterable[Sequence[LimitUse]], count: int) -> list[LimitUse]:
    """Permits of leases are in the stores of the leases, the others at home."""
    found: dict[tuple[str, str], LimitUse] = {}
    for each in (use for part in parts for use in part):
        key = each.name, each.algorithm
        old = found.get(key)
        if old is not None:
            each = replace(old, used=old.used + each.used, holders=_holders((*old.holders, *each.holders)))
        found[key] = each
    return [found[key] for key in sorted(found)][:count]
