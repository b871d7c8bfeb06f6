"""Audit entries: what is stored of a change, and how pages of entries continue."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from treadle.bulk_action import OPERATORS
from treadle.item import AuditNote, Changed, Filter, Submission
from treadle.records import MOST_AUDIT_IDS, AuditEntry, AuditPage

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
