"""submit: new items."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.item import Rejected, Submission, Submitted

from .plan import Ids, Plan, is_plain, plan, plan_plain
from .store import store
from .tx import Tx


def submit(tx: Tx, submissions: Sequence[Submission]) -> list[tuple[Submitted, ...] | Rejected]:
    """Store each submission, in order; runs of plain ones all at once."""
    answers: list[tuple[Submitted, ...] | Rejected] = []
    run: list[Submission] = []
    for submission in submissions:
        if is_plain(submission.items):
            run.append(submission)
            continue
        answers += _submit_plain(tx, run)
        run = []
        answers.append(_submit_one(tx, submission))
    return answers + _submit_plain(tx, run)


def _submit_plain(tx: Tx, run: Sequence[Submission]) -> list[tuple[Submitted, ...] | Rejected]:
    if not run:
        return []
    ids = Ids(tx, [(item.tenant, item.id) for submission in run for item in submission.items])
    plans = [_planned(submission, ids) for submission in run]
    stored = iter(store(tx, [(item, None) for one in plans if isinstance(one, Plan) for item in one.fresh]))
    return [tuple(next(stored) for _ in one.fresh) if isinstance(one, Plan) else one for one in plans]


def _planned(submission: Submission, ids: Ids) -> Plan | Rejected:
    planned = plan_plain(submission.items, ids)
    if isinstance(planned, Plan):
        ids.take(planned.fresh)
    return planned


def _submit_one(tx: Tx, submission: Submission) -> tuple[Submitted, ...] | Rejected:
    planned = plan(tx, submission.items)
    if isinstance(planned, Rejected):
        return planned
    return planned.finished(store(tx, [(item, None) for item in planned.fresh]))
