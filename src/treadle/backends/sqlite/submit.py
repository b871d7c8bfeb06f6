"""submit: plan new items (keys, duplicate ids, cycles), then store them with their keys and dependencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple

from msgspec.structs import replace

from treadle.item import GROUP_MARK, Item, Ref, Rejected, Submission, Submitted
from treadle.store.rules.audits import changed_by, noted_submission
from treadle.store.rules.submission import KeyHolder, KeyRef, SubmitPlan, plan_submission

from .audits import record
from .dependencies import find_cycle, find_known
from .rows import decode_ids
from .statements import Tx, statements
from .status_codes import STATUS
from .store_items import store, store_unless_taken
from .update import take_over

_SQL = statements("submit")


def submit(tx: Tx, submissions: Sequence[Submission]) -> list[tuple[Submitted, ...] | Rejected]:
    """Store each submission, in order. Consecutive plain ones are stored together."""
    answers: list[tuple[Submitted, ...] | Rejected] = []
    plain: list[Submission] = []
    for submission in submissions:
        if submission.note is None and is_plain(submission.items):
            plain.append(submission)
            continue
        answers += _submit_plain(tx, plain)
        plain = []
        answers.append(_submit_one(tx, submission))
    return answers + _submit_plain(tx, plain)


def is_plain(items: Iterable[Item]) -> bool:
    """Whether only the ids have to be checked: the items have no keys and wait for nothing."""
    for item in items:  # noqa: SIM110  with any() this takes three times as long
        if item.key is not None or item.after:
            return False
    return True


def _submit_plain(tx: Tx, submissions: Sequence[Submission]) -> list[tuple[Submitted, ...] | Rejected]:
    """Store plain submissions together, except those with an id that is taken. Almost none has one, so that
    is looked into only if the insert finds one."""
    if not submissions:
        return []
    refusals: Sequence[Rejected | None] = [None] * len(submissions)
    stored = store_unless_taken(tx, [(item, None) for one in submissions for item in one.items])
    if stored is None:
        refusals = _clashes(tx, submissions)
        accepted = [one for one, refused in zip(submissions, refusals, strict=True) if refused is None]
        stored = store(tx, [(item, None) for one in accepted for item in one.items])
    answers = iter(stored)
    return [
        refused or tuple(islice(answers, len(one.items)))
        for refused, one in zip(refusals, submissions, strict=True)
    ]


def _clashes(tx: Tx, submissions: Sequence[Submission]) -> list[Rejected | None]:
    """Why each of these submissions is refused. None: it is not."""
    refs = [[(item.tenant, item.id) for item in one.items] for one in submissions]
    ids = TakenIds(tx, chain.from_iterable(refs))
    refusals: list[Rejected | None] = []
    for its_refs in refs:
        refused = ids.clash(its_refs)
        refusals.append(refused)
        if refused is None:
            ids.add(its_refs)
    return refusals


def _submit_one(tx: Tx, submission: Submission) -> tuple[Submitted, ...] | Rejected:
    planned = plan(tx, submission.items)
    if isinstance(planned, Rejected):
        return planned
    if (change := noted_submission(submission)) is not None and (count := changed_by(planned.plan)):
        record(tx, change, count)
    stored = store(tx, [(item, None) for item in planned.plan.new.values()])
    new = dict(zip(planned.plan.new, stored, strict=True))
    if planned.plan.changes:
        planned.change(tx, new)
    return tuple(planned.answer(ref, new) if existing else new[ref] for ref, existing in planned.plan.answers)


# -- planning: nothing is written ----------------------------------------------------------------------


class TakenIds:
    """Which ids are taken: stored already, or about to be stored. Knows only the ids it was created for. A
    name with `GROUP_MARK` is taken if that group exists."""

    def __init__(self, tx: Tx, refs: Iterable[Ref], groups: Collection[Ref] = ()) -> None:
        found = tx.rows_of(_SQL["existing_ids"], refs)
        self._taken: set[Ref] = {(tenant, id) for tenant, (id,) in found}
        if groups:
            self._taken.update(find_known(tx, groups))

    def __contains__(self, ref: Ref) -> bool:
        return ref in self._taken

    def clash(self, refs: Sequence[Ref]) -> Rejected | None:
        """Refuse a batch of plain items if one of its ids is taken, or stands there twice."""
        if len(set(refs)) == len(refs) and self._taken.isdisjoint(refs):
            return None
        seen = Counter(refs)
        ids = dict.fromkeys(ref[1] for ref in refs if ref in self._taken or seen[ref] > 1)
        return Rejected("duplicate_id", tuple(ids))

    def add(self, refs: Iterable[Ref]) -> None:
        """These ids are about to be stored."""
        self._taken.update(refs)


class PlannedItems(NamedTuple):
    """A plan, and the stored items that answer for some of its items by their keys."""

    plan: SubmitPlan
    holders: dict[Ref, Submitted]

    def answer(self, ref: Ref, new: dict[Ref, Submitted]) -> Submitted:
        """The answer of an earlier item: a stored one, or one of the new ones."""
        return self.holders[ref] if ref not in new else replace(new[ref], existing=True, lease=None)

    def change(self, tx: Tx, new: dict[Ref, Submitted]) -> None:
        """Let items take over what others with the same key have. Their answers have the new status."""
        take_over(tx, self.plan.changes)
        for ref in self.plan.changes:
            status: int = tx.value(_SQL["status_of"], ref[1], ref[0])
            for answers in (new, self.holders):
                if ref in answers:
                    answers[ref] = replace(answers[ref], status=STATUS[status])


def plan(
    tx: Tx, items: Sequence[Item], tenant: str | None = None, group_id: str | None = None
) -> PlannedItems | Rejected:
    """Plan a batch of items. Everything that was planned before must be stored. For children: the tenant and
    the group of the settled item."""
    holders: dict[Ref, Submitted] = {}

    def find_holder(key: KeyRef) -> KeyHolder | None:
        row = tx.row(_SQL["key_holder"], key[2], key[0], key[1])
        if row is None:
            return None
        id, group_id, queued_at, status, group_open, unstarted, changed_by = row
        holders[key[0], id] = Submitted(id, existing=True, status=STATUS[status], group_id=group_id)
        return KeyHolder(id, bool(group_open), queued_at, bool(unstarted), decode_ids(changed_by), group_id)

    named = [(tenant or item.tenant, id) for item in items for id in (item.id, *item.must_exist)]
    taken = TakenIds(tx, named, [ref for ref in named if ref[1].startswith(GROUP_MARK)])
    planned = plan_submission(items, tx.now, find_holder, taken.__contains__, tenant)
    if isinstance(planned, Rejected):
        return planned
    cycle = find_cycle(tx, planned.new, group_id)
    return PlannedItems(planned, holders) if cycle is None else Rejected("cycle", cycle)
