"""Limits: which fleet-wide limits of an item are reached, and who holds their permits."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.base.wording import duration, listed, plain
from treadle.item import Limit
from treadle.item_facts import LimitHolder, LimitUse
from treadle.why import Reason

from .facts import LimitFact
from .fleet import WorkerFleet
from .wording import last_seen, until_text, worker_name


def limit_reasons(limits: Sequence[LimitFact], fleet: WorkerFleet, *, passed: bool = False) -> list[Reason]:
    """A reason for each limit that is reached: `slots` first, then those that free themselves. passed: also
    for limits on starts that were reached just now, and whose next permit no worker has taken."""
    slots = [each for each in limits if each.limit.algorithm == "slots"]
    rates = [each for each in limits if each.limit.algorithm != "slots"]
    held = [_concurrency(use, each.limit.limit, fleet) for each in slots if (use := _full(each)) is not None]
    used = [
        _rate(each.limit, use.retry_after, fleet) for each in rates if (use := _used_up(each)) is not None
    ]
    if held or used or not passed:
        return [*held, *used]
    return [_rate(each.limit, 0.0, fleet) for each in rates]


def _full(fact: LimitFact) -> LimitUse | None:
    return fact.use if fact.use is not None and fact.use.used >= fact.limit.limit else None


def _used_up(fact: LimitFact) -> LimitUse | None:
    return fact.use if fact.use is not None and fact.use.retry_after > 0 else None


def _concurrency(use: LimitUse, limit: int, fleet: WorkerFleet) -> Reason:
    holders = listed(_holder(each, fleet) for each in use.holders)
    text = f"limit {plain(use.name)}: {use.used:,.0f} of {limit:,} in use"
    silent = [each for each in use.holders if _is_silent(each, fleet)]
    fix = "wait until one of them ends, or raise the limit"
    if not any(each.items for each in use.holders):
        fix += "; what they run: treadle workers --items"
    if silent:
        fix = "the permits of a silent worker are free when another worker claims"
    return Reason(
        kind="concurrency",
        text=f"{text}, held by {holders}" if holders else text,
        refs=(use.name, *(item for each in use.holders for item in each.items)),
        fix=fix,
    )


def _holder(holder: LimitHolder, fleet: WorkerFleet) -> str:
    worker = fleet.find(holder.worker)
    name = worker_name(worker or holder.worker)
    text = f"worker {name}" if not holder.items else f"{listed(holder.items)} on worker {name}"
    text += f": {holder.count:,}" if holder.count > 1 and not holder.items else ""
    if worker is not None and worker.until <= fleet.now:
        return f"{text} (silent for {duration(fleet.now - last_seen(worker))})"
    return text


def _is_silent(holder: LimitHolder, fleet: WorkerFleet) -> bool:
    return any(each.id == holder.worker for each in fleet.silent)


def _rate(limit: Limit, wait: float, fleet: WorkerFleet) -> Reason:
    text = f"limit {plain(limit.name)}: {limit.limit:,} starts per {duration(limit.window)} are used"
    if not wait:
        text = f"limit {plain(limit.name)}: {limit.limit:,} starts per {duration(limit.window)}"
    return Reason(
        kind="rate",
        text=f"{text}; the next may start {until_text(fleet.now, fleet.now + wait)}",
        until=fleet.now + wait,
        refs=(limit.name,),
        fix="wait, or raise the limit",
    )
