"""Records: what is stored of a change, for the audit, and of what workers count, for statistics.

Statistics are stored by minute, quarter and hour. A process adds to all three.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, zip_longest
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from treadle.bulk_action import OPERATORS
from treadle.item import AuditNote, Changed, Filter, Submission
from treadle.records import (
    HOUR,
    KEPT_HOURS,
    KEPT_MINUTES,
    MINUTE,
    MOST_AUDIT_IDS,
    QUARTER,
    AuditEntry,
    AuditPage,
    Stat,
    StatsBy,
)

from .listing import cursor_of, number_of
from .submission import SubmitPlan


class NotedChange(NamedTuple):
    """A change that is about to be made with a note."""

    note: AuditNote
    verb: str
    tenant: str | None
    ids: tuple[str, ...]

    def entry(self, no: int, at: float, count: int) -> AuditEntry:
        note = self.note
        return AuditEntry(
            no=no,
            at=at,
            actor=note.actor,
            verb=self.verb,
            tenant=self.tenant,
            ids=self.ids,
            count=count,
            about=note.about,
            reason=note.reason,
            address=note.address,
            bulk=note.bulk,
        )


def noted_change(
    note: AuditNote | None, verb: str, tenant: str | None, ids: Sequence[str] | Filter
) -> NotedChange | None:
    """The change that a note is about. None: there is no note."""
    if note is None:
        return None
    first = () if isinstance(ids, Filter) else tuple(ids[:MOST_AUDIT_IDS])
    if tenant == OPERATORS:  # a bulk action of all tenants
        tenant = None
    return NotedChange(note, note.verb or verb, note.tenant if tenant is None else tenant, first)


def noted_submission(submission: Submission) -> NotedChange | None:
    """The same for new items. Of items of several tenants, the entry names none."""
    if submission.note is None:
        return None
    tenants = {item.tenant for item in submission.items}
    ids = [item.id for item in islice(submission.items, MOST_AUDIT_IDS)]
    return noted_change(submission.note, "enqueue", tenants.pop() if len(tenants) == 1 else None, ids)


def changed_by(plan: SubmitPlan) -> int:
    """How many items a submission stores or changes."""
    return len(plan.new) + sum(ref not in plan.new for ref in plan.changes)


def changed_count(answer: Changed | bool) -> int:
    """How much a call has changed, by its answer."""
    return len(answer.items) if isinstance(answer, Changed) else int(answer)


def audit_page(found: Sequence[AuditEntry], limit: int) -> AuditPage:
    """A page of `limit` entries. One more was looked for, to know whether there are more."""
    entries = tuple(found[:limit])
    return AuditPage(entries, cursor_of("audits", entries[-1].no) if len(found) > limit else None)


def number_of_audit(cursor: str) -> int:
    """The number of the entry behind which a page begins."""
    return number_of("audits", cursor, "audits")


# -- statistics --------------------------------------------------------------------------------------


StatKey: TypeAlias = tuple[int, float, str, str]
"""Step, begin, type, queue. Stores change rows in this order."""

STEPS: Final = {MINUTE: KEPT_MINUTES, QUARTER: KEPT_MINUTES, HOUR: KEPT_HOURS}
"""Lengths that are stored, and for how many seconds each is kept."""
StatRow: TypeAlias = tuple[Sequence[int], tuple[int, ...], tuple[int, ...]]
"""The `COUNTERS`, and how long items waited and ran."""
COUNTERS: Final = ("started", "succeeded", "failed", "retried", "dead", "cancelled", "lost")


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


def stat_of(
    at: float,
    labels: tuple[str, str],
    counters: Sequence[int],
    wait: tuple[int, ...],
    run: tuple[int, ...],
) -> Stat:
    """A Stat of a type and a queue, with these `COUNTERS`."""
    named = dict(zip(COUNTERS, counters, strict=True))
    return Stat(at=at, type=labels[0], queue=labels[1], wait=wait, run=run, **named)


def added(at: float, type: str, queue: str, stats: Sequence[Stat]) -> Stat:
    """The sums of these."""
    counters = ([getattr(stat, name) for name in COUNTERS] for stat in stats)
    rows = [(counts, stat.wait, stat.run) for counts, stat in zip(counters, stats, strict=True)]
    return stat_of(at, (type, queue), *sum_of(rows))


def sum_of(rows: Iterable[StatRow]) -> StatRow:
    """Rows, one at least, as one."""
    counters, waits, runs = zip(*rows, strict=True)
    return tuple(map(sum, zip(*counters, strict=True))), _sums(waits), _sums(runs)


def _sums(histograms: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*filter(None, histograms), fillvalue=0)))
