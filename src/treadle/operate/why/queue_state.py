"""Queue state: why the items of a queue wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.base.wording import approximate, close_to, duration, listed, plain
from treadle.item import DEFAULT_QUEUE, Count, Status
from treadle.store.fleet import queues_of
from treadle.why import Reason

from .facts import QueueFacts
from .fleet import WorkerFleet
from .ready import paused_reasons

OTHERS: Final[tuple[Status, ...]] = ("running", "scheduled", "blocked", "dead")


def queue_reasons(facts: QueueFacts) -> list[Reason]:
    """The reasons of a queue. Those of its oldest item follow: see `why_queue`."""
    fleet = WorkerFleet(facts.workers, facts.now)
    if not _is_known(facts, fleet):
        return [_no_queue(facts)]
    reasons = paused_reasons(facts.name, facts.paused)
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
