"""Meaning: from facts to reasons, the most binding reason first. No I/O, no clock."""

from __future__ import annotations

from typing import assert_never

from treadle.why import Reason

from .blocked import blocked_reasons, doomed_reasons
from .ended import ended_reasons, group_reasons, no_item_reasons
from .facts import Facts, GroupFacts, ItemFacts, NoItem, QueueFacts, ScheduleFacts
from .queues import queue_reasons, schedule_reasons
from .ready import later_reasons, overdue_reasons, ready_reasons
from .running import running_reasons
from .wording import until_text


def reasons_of(facts: Facts) -> tuple[Reason, ...]:
    """Say what the facts mean."""
    match facts:
        case ItemFacts():
            return tuple(_item_reasons(facts))
        case GroupFacts():
            return tuple(group_reasons(facts))
        case NoItem():
            return tuple(no_item_reasons(facts))
        case QueueFacts():
            return tuple(queue_reasons(facts))
        case ScheduleFacts():
            return tuple(schedule_reasons(facts))
        case _:  # pragma: no cover
            assert_never(facts)


def _item_reasons(facts: ItemFacts) -> list[Reason]:
    explained = facts.explained
    item, now = explained.item, explained.now
    match item.status:
        case "success" | "dead" | "cancelled":
            return ended_reasons(facts)
        case "running":
            reasons = running_reasons(explained)
        case "blocked" | "scheduled" | "ready" if explained.verdict is not None or _has_expired(facts):
            return doomed_reasons(facts)
        case "blocked":
            reasons = blocked_reasons(explained)
        case "scheduled":
            overdue = item.due_at <= now
            reasons = overdue_reasons(facts) if overdue else later_reasons(explained)
        case "ready":
            reasons = ready_reasons(facts)
        case _:  # pragma: no cover
            assert_never(item.status)
    if item.deadline is not None and item.deadline > now:
        when = until_text(now, item.deadline)
        text = f"its deadline: it is dead (expired) {when}, unless it has ended by then"
        reasons.append(Reason(kind="deadline", text=text, until=item.deadline))
    return reasons


def _has_expired(facts: ItemFacts) -> bool:
    """Whether its deadline has passed. The next claim gives it the verdict."""
    deadline = facts.explained.item.deadline
    return deadline is not None and deadline <= facts.explained.now
