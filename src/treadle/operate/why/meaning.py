"""Meaning: from facts to reasons, the most binding reason first. No I/O, no clock.

The reasons of running items are here, those of others in `blocked`, `ready`, `ended` and `queues`.
"""

from __future__ import annotations

from typing import assert_never

from treadle.base.wording import duration
from treadle.item import ItemState, WorkerState
from treadle.item_facts import Explanation
from treadle.store.fleet import is_blocked
from treadle.why import Reason

from .blocked import blocked_reasons, doomed_reasons
from .ended import ended_reasons, group_reasons, no_item_reasons
from .facts import Facts, GroupFacts, ItemFacts, NoItem, QueueFacts, ScheduleFacts
from .fleet import WorkerFleet
from .queues import queue_reasons, schedule_reasons
from .ready import held_reason, later_reasons, overdue_reasons, ready_reasons
from .suspended import suspended_reasons
from .wording import (
    attempt_name,
    command,
    kill_command,
    killed_text,
    last_seen,
    process_name,
    since_text,
    tenant_option,
    until_text,
    worker_name,
)


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
        case "scheduled" if item.held:
            reasons = [held_reason(facts), *suspended_reasons(facts)]
        case "scheduled" if facts.waits and item.due_at > now:
            reasons = suspended_reasons(facts)
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


# -- running: who runs it, since when, and whether that worker is alive ------------------------------


def running_reasons(explained: Explanation) -> list[Reason]:
    """The reasons of an item that a worker has a lease for."""
    item, now = explained.item, explained.now
    worker = next((each for each in explained.workers if each.id == item.worker), None)
    if worker is not None and worker.until <= now:
        return _lapsed(explained, worker)
    if not explained.begun:
        return [_claimed_ahead(explained, worker)]
    claimed = "" if item.claimed_at is None else f", which claimed it {since_text(now, item.claimed_at)}"
    attempt = attempt_name(max(1, item.attempt), item.attempts)
    text = f"it runs on {worker_name(worker or item.worker)}{claimed}: {attempt}"
    if worker is not None and worker.running and (info := worker.info) is not None and info.waiting:
        text += f"; {info.waiting:,} of the {worker.running:,} items there have not begun"
    cancel = command("cancel", item.id, tenant=tenant_option(item.tenant))
    text += f"; {killed_text(item.losses)} before" if item.losses else ""
    if worker is None or not is_blocked(worker):
        return [Reason(kind="running", text=text, refs=_worker_ids(item), fix=f"to stop it: {cancel}")]
    blockers = () if worker.info is None else worker.info.blocked_by
    if blockers and not any((each.tenant, each.id) == (item.tenant, item.id) for each in blockers):
        text += "; it goes on when the event loop does"
        blocked = WorkerFleet(explained.workers, now).worker_blocked([worker])
        fix = f"to stop it then: {cancel}"
        return [blocked, Reason(kind="running", text=text, refs=_worker_ids(item), fix=fix)]
    fix = (
        f"so that it does not run again: {cancel}; that cannot interrupt it while it blocks the event loop: "
    )
    fix += f"end {process_name(worker)} too ({kill_command('KILL', worker)}), or wait until its supervisor "
    fix += "does (--max-block)"
    running = Reason(kind="running", text=text, refs=_worker_ids(item), fix=fix)
    return [WorkerFleet(explained.workers, now).worker_blocked([worker]), running]


def _claimed_ahead(explained: Explanation, worker: WorkerState | None) -> Reason:
    item = explained.item
    since = "" if item.claimed_at is None else f" for {duration(explained.now - item.claimed_at)}"
    text = f"{worker_name(worker or item.worker)} has had it{since}, and has not begun: it waits there for a "
    text += "permit of a limit, for the rest of its batch, or for room"
    text += f"; {killed_text(item.losses)} before" if item.losses else ""
    return Reason(kind="claimed_ahead", text=text, refs=_worker_ids(item))


def _lapsed(explained: Explanation, worker: WorkerState) -> list[Reason]:
    item, fleet = explained.item, WorkerFleet(explained.workers, explained.now)
    silent = f"silent for {duration(explained.now - last_seen(worker))}"
    if worker.info is None:
        silent = f"without a lease for {duration(explained.now - worker.until)}"
    text = f"{worker_name(worker)}, which runs it, has been {silent}: "
    if fleet.taking:
        text += "the next claim of any worker frees it"
        return [Reason(kind="lease_lapsed", text=text, refs=_worker_ids(item))]
    text += "it is free as soon as a worker claims, and none is alive"
    return [Reason(kind="lease_lapsed", text=text, refs=_worker_ids(item)), fleet.no_worker()]


def _worker_ids(item: ItemState) -> tuple[str, ...]:
    return () if item.worker is None else (item.worker,)
