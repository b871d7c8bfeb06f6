"""Limits: which fleet-wide limits of an item are reached, and who holds their permits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from treadle.item_facts import LimitHolder, LimitUse
from treadle.why import Reason
from treadle.wording import duration, listed, plain

from .facts import LimitFact
from .fleet import WorkerFleet
from .wording import last_seen, worker_name


def limit_reasons(limits: Sequence[LimitFact], fleet: WorkerFleet) -> list[Reason]:
    """A reason for each limit that is reached: `slots` first, then those that free themselves."""
    reached = [reason for each in limits if (reason := _reached(each, fleet)) is not None]
    return sorted(reached, key=lambda reason: reason.kind)


def _reached(fact: LimitFact, fleet: WorkerFleet) -> Reason | None:
    use, limit = fact.use, fact.limit
    if use is None:
        return None
    match limit.algorithm:
        case "slots":
            return _concurrency(use, limit.limit, fleet) if use.used >= limit.limit else None
        case "token_bucket" | "fixed_window" | "sliding_window":
            return _rate(fact, use, fleet) if use.retry_after > 0 else None
        case _:  # pragma: no cover
            assert_never(limit.algorithm)


def _concurrency(use: LimitUse, limit: int, fleet: WorkerFleet) -> Reason:
    holders = listed(_holder(each, fleet) for each in use.holders)
    text = f"limit {plain(use.name)}: {use.used:,.0f} of {limit:,} in use"
    silent = [each for each in use.holders if _is_silent(each, fleet)]
    fix = "wait until one of them ends, or raise the limit"
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
    text = f"worker {name}" if not holder.items else f"{listed(map(plain, holder.items))} on worker {name}"
    text += f": {holder.count:,}" if holder.count > 1 and not holder.items else ""
    if worker is not None and worker.until <= fleet.now:
        return f"{text} (silent for {duration(fleet.now - last_seen(worker))})"
    return text


def _is_silent(holder: LimitHolder, fleet: WorkerFleet) -> bool:
    return any(each.id == holder.worker for each in fleet.silent)


def _rate(fact: LimitFact, use: LimitUse, fleet: WorkerFleet) -> Reason:
    limit = fact.limit
    text = f"limit {plain(use.name)}: {limit.limit:,} starts per {duration(limit.window)} are used; "
    return Reason(
        kind="rate",
        text=f"{text}the next may start in {duration(use.retry_after)}",
        until=fleet.now + use.retry_after,
        refs=(use.name,),
        fix="wait, or raise the limit",
    )
