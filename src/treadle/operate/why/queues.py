"""Queues and schedules: why the items of a queue wait, and why a schedule has not fired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.base.wording import approximate, close_to, duration, listed, plain
from treadle.item import DEFAULT_QUEUE, Count, Status
from treadle.store.fleet import queues_of
from treadle.why import Reason

from .facts import QueueFacts, ScheduleFacts
from .fleet import WorkerFleet
from .ready import paused_reasons
from .wording import command, since_text, until_text

OTHERS: Final[tuple[Status, ...]] = ("running", "scheduled", "blocked", "dead")


def queue_reasons(facts: QueueFacts) -> list[Reason]:
    """The reasons of a queue. Those of its oldest item follow: see `why_queue`."""
    fleet = WorkerFleet(facts.workers, facts.now)
    if not _is_known(facts, fleet):
        return [_no_queue(facts)]
    reasons = list(paused_reasons(facts.paused, facts.now))
    if not fleet.taking:
        reasons.append(fleet.no_worker())
    else:
        _, missing = fleet.not_serving(fleet.taking, "", facts.name, facts.tenant)
        reasons += [] if missing is None else [missing]
        since = facts.ready_since
        reasons += [
            fleet.no_worker_for_type(each.type, each.since, since.get(each.type, facts.now))
            for each in facts.unserved
        ]
    reasons.append(_waiting(facts))
    return reasons


def _is_known(facts: QueueFacts, fleet: WorkerFleet) -> bool:
    """Whether there is such a queue. Without items and pauses, one that code or a worker names, or that the
    workers would serve, if its name does not look misspelt."""
    if facts.counts or facts.paused or facts.name in (DEFAULT_QUEUE, *_named(facts)):
        return True
    any_queue = any(worker.info is not None and worker.info.queues is None for worker in fleet.taking)
    return any_queue and close_to(facts.name, _known(facts)) is None


def _named(facts: QueueFacts) -> set[str]:
    """The queues that code or a worker names."""
    return {*facts.declared, *queues_of(facts.workers)}


def _known(facts: QueueFacts) -> list[str]:
    return sorted({*facts.queues, *_named(facts)})


def _no_queue(facts: QueueFacts) -> Reason:
    text = f"nothing is in queue {plain(facts.name)}, and no worker names it"
    known = _known(facts)
    close = close_to(facts.name, known)
    if close is not None:
        text += f", but there is {plain(close)}"
    elif known:
        text += f"; there {'is' if len(known) == 1 else 'are'} {listed(known, most=5)}"
    return Reason(kind="unknown", text=text, refs=(facts.name,), fix="check the name and the tenant")


def _waiting(facts: QueueFacts) -> Reason:
    ready = _sum(facts.counts, "ready")
    said = ", ".join(f"{_number(facts.counts, each)} {each}" for each in OTHERS if _sum(facts.counts, each))
    also = f"; also {said}" if said else ""
    if not ready:
        return Reason(kind="empty", text=f"nothing in queue {plain(facts.name)} is ready{also}")
    text = f"{_number(facts.counts, 'ready')} {'item is' if ready == 1 else 'items are'} ready"
    if facts.age is not None:
        text += f", the oldest for {duration(facts.now - facts.age.oldest_ready)}"
    return Reason(kind="turn", text=f"{text}{also}", refs=(facts.name,))


def _sum(counts: Sequence[Count], status: Status) -> int:
    return sum(count.count for count in counts if count.status == status)


def _number(counts: Sequence[Count], status: Status) -> str:
    estimated = any(each.estimated for each in counts if each.status == status)
    return approximate(_sum(counts, status), estimated, "about ")


def schedule_reasons(facts: ScheduleFacts) -> list[Reason]:
    """The reasons of a schedule."""
    row, name, now = facts.stored, facts.name, facts.now
    if row is None:
        return [_no_schedule(facts)]
    last = "it has not fired yet" if row.last_at is None else f"it fired last {since_text(now, row.last_at)}"
    if row.next_at is None:
        return [
            Reason(kind="ended", text=f"it has ended, no occurrence comes any more; {last}", refs=(name,))
        ]
    reasons: list[Reason] = []
    if row.paused:
        fix = command("schedules resume", name, tenant=facts.tenant)
        reasons.append(Reason(kind="paused", text=f"it is paused; {last}", refs=(name,), fix=fix))
    if facts.orphaned:
        reasons.append(_orphaned(facts, row.seen_at))
    if facts.error:
        text = f"its last run failed, and submitted nothing: {facts.error}"
        fix = "correct its `run`: the logs of the workers that have its code have the traceback"
        reasons.append(Reason(kind="run_failed", text=text, refs=(name,), fix=fix))
    if row.next_at > now:
        text = f"it is due {until_text(now, row.next_at)}; {last}"
        fix = f"to run it now: {command('schedules trigger', name, tenant=facts.tenant)}"
        reasons.append(Reason(kind="not_due", text=text, until=row.next_at, refs=(name,), fix=fix))
    elif facts.state == "overdue":
        text = f"it was due {since_text(now, row.next_at)}, and no process has fired it; {last}"
        fix = "look at the logs of the workers that have its code: its `run` may fail or take long"
        reasons.append(Reason(kind="overdue", text=text, refs=(name,), fix=fix))
    elif not reasons:
        text = f"it was due {since_text(now, row.next_at)}: a process that has its code fires it soon; {last}"
        reasons.append(Reason(kind="overdue", text=text, refs=(name,), fix="look again"))
    return reasons


def _no_schedule(facts: ScheduleFacts) -> Reason:
    text = f"no schedule is called {plain(facts.name)}"
    close = close_to(facts.name, facts.names)
    text += "" if close is None else f", but there is {plain(close)}"
    fix = "a schedule is stored when an app that calls app.schedule(...) for it starts"
    return Reason(kind="unknown", text=text, refs=(facts.name,), fix=fix)


def _orphaned(facts: ScheduleFacts, seen_at: float) -> Reason:
    text = "no running process has its code" if facts.taking else "no worker is alive that could fire it"
    text += f"; one that has its code was last seen {since_text(facts.now, seen_at)}" if seen_at else ""
    fix = f"start an app that calls app.schedule({facts.name!r}, ...), or end it: "
    fix += command("schedules cancel", facts.name, tenant=facts.tenant)
    return Reason(kind="orphaned", text=text, refs=(facts.name,), fix=fix)
