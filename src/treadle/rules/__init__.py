"""The storage rules, written once for the backends that are written in Python.

Nothing here does I/O or keeps state. A backend passes in what it has stored, and stores what it gets back.

times.py        when items are due and expire, how schedules move on
submission.py   the plan of a submission: keys, duplicate ids, dependencies, cycles
settlement.py   items that are put back or lose their worker, history, tokens, the values of groups
limits.py       permits of fleet-wide limits
"""

from .limits import LimitState, advance, allowance, idle_at, permit, wait_for_one
from .settlement import (
    KEPT_ATTEMPTS,
    GroupValue,
    WaitingAgain,
    after_loss,
    budget_spent,
    contributed,
    contribution_state,
    death_reason,
    failed_attempt,
    is_fold,
    loss_delay,
    loss_of,
    lost_attempt,
    put_back,
    recorded_failure,
    redrive,
    shortest_keep,
)
from .submission import (
    Dependencies,
    KeyHolder,
    KeyRef,
    SubmitPlan,
    as_child,
    count_dependencies,
    counts,
    dependency_cycle,
    dependency_state,
    find_cycle,
    key_answers,
    plan_submission,
)
from .times import deadline_at, due_at, fired, put_schedule, waiting_status

PORTION = 1000
"""How many items of each kind (freed, due, expired) one claim processes before it hands out work."""
MOST_DOOMED = 100
"""How many doomed items one claim hands out."""

__all__ = [
    "KEPT_ATTEMPTS",
    "MOST_DOOMED",
    "PORTION",
    "Dependencies",
    "GroupValue",
    "KeyHolder",
    "KeyRef",
    "LimitState",
    "SubmitPlan",
    "WaitingAgain",
    "advance",
    "after_loss",
    "allowance",
    "as_child",
    "budget_spent",
    "contributed",
    "contribution_state",
    "count_dependencies",
    "counts",
    "deadline_at",
    "death_reason",
    "dependency_cycle",
    "dependency_state",
    "due_at",
    "failed_attempt",
    "find_cycle",
    "fired",
    "idle_at",
    "is_fold",
    "key_answers",
    "loss_delay",
    "loss_of",
    "lost_attempt",
    "permit",
    "plan_submission",
    "put_back",
    "put_schedule",
    "recorded_failure",
    "redrive",
    "shortest_keep",
    "wait_for_one",
    "waiting_status",
]
