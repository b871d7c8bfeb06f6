"""Ready: why an item that could run does not, which limits it waits for, and when one that is due later will
run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from treadle.base.wording import duration, error_line, listed, plain, plural
from treadle.engine.run.isolation import LOSSES_BEFORE_TRIAL
from treadle.item import Limit, Order, WorkerState
from treadle.item_facts import Explanation, LimitHolder, LimitUse
from treadle.store.rules.watching import MOST_AHEAD, MOST_LANES
from treadle.why import Reason

from .facts import ItemFacts, LimitFact
from .fleet import WorkerFleet, has_no_place, undecodable_reasons, unknown_workers
from .wording import (
    attempt_name,
    clear_command,
    command,
    give_up_killer,
    item_name,
    last_seen,
    ordered_text,
    pause_text,
    resume_command,
    since_text,
    tenant_option,
    until_text,
    worker_name,
)

LATE: Final = 60.0
"""Seconds after which an item should have started that nothing holds back."""


def later_reasons(explained: Explanation) -> list[Reason]:
    """The reasons of an item that is due later."""
    item = explained.item
    fix = command("trigger", item.id, tenant=tenant_option(item.tenant))
    if item.losses >= LOSSES_BEFORE_TRIAL:  # sooner is not better
        fix = give_up_killer(item)
    if not explained.given_back:
        return [_due_at(explained, fix)]
    fleet, type = WorkerFleet(explained.workers, explained.now), item.type
    workers = fleet.serving(type=type)
    undecodable = undecodable_reasons(explained, workers)
    if undecodable:  # sooner is not better
        return [*undecodable, _due_at(explained, "")]
    isolated = _isolated(explained)
    return [_due_at(explained, "" if isolated else fix), *fleet.declining(workers, type), *isolated]


def held_reason(facts: ItemFacts) -> Reason:
    """Who holds an item, as far as the audit says."""
    item, hold = facts.explained.item, facts.hold
    text = "it is held"
    if hold is not None:
        because = f": {plain(hold.reason)}" if hold.reason else ""
        text += f", by {plain(hold.actor)} {since_text(facts.explained.now, hold.at)}{because}"
    return Reason(kind="held", text=text, fix=command("unhold", item.id, tenant=tenant_option(item.tenant)))


def _due_at(explained: Explanation, fix: str) -> Reason:
    item = explained.item
    text = f"{_why_later(explained)}, due {until_text(explained.now, item.due_at)}"
    return Reason(kind="due_at", text=text, until=item.due_at, fix=fix)


def _why_later(explained: Explanation) -> str:
    """Why it is due later: said by its history."""
    item = explained.item
    claimed = item.claimed_at
    failed = item.history[-1] if item.history else None
    if explained.freed:
        times = "once" if item.losses == 1 else f"{item.losses:,} times in a row"
        return f"its worker died while it ran, {times}"
    if explained.given_back:
        return "a worker gave it back before it ran"
    if failed is not None and (claimed is None or claimed <= failed.at):
        error = error_line(failed.error_type, failed.message)
        return f"{attempt_name(failed.attempt, item.attempts)} failed ({error})"
    if claimed is not None:
        return "its handler deferred it"
    return "it was submitted for later"


def overdue_reasons(facts: ItemFacts) -> list[Reason]:
    """The reasons of an item that is due, and that no claim has made ready yet."""
    explained = facts.explained
    when = since_text(explained.now, explained.item.due_at)
    text = f"it was due {when}, and no worker has claimed anything of its queue since"
    others = [each for each in ready_reasons(facts) if each.kind != "next"]
    binding = [each for each in others if each.kind != "turn"]
    overdue = Reason(kind="overdue", text=text, fix="" if binding else "look again")
    return [*binding, overdue, *(each for each in others if each.kind == "turn")]


def ready_reasons(facts: ItemFacts) -> list[Reason]:
    """The reasons of an item that waits for a worker."""
    explained = facts.explained
    fleet = WorkerFleet(explained.workers, explained.now)
    paused = list(paused_reasons(facts.paused, explained.now))
    workers, missing = _could_run(explained, fleet)
    if missing is not None or paused:
        return [*paused, *([] if missing is None else [missing])]
    undecodable = undecodable_reasons(explained, workers)
    reasons = [*undecodable, *_lane_held(explained), *_busy(facts, fleet, workers), *_isolated(explained)]
    unknown = _unknown(facts, workers)
    if explained.ahead:
        reasons.append(_turn(explained, "" if reasons else unknown))
    return reasons or [_next(explained, unknown)]


def _busy(facts: ItemFacts, fleet: WorkerFleet, workers: list[WorkerState]) -> list[Reason]:
    """The limits that are reached, and why the workers that could run it do not take it. A doer has no room
    while its limit is reached, and the worker says so for some seconds more: then the limit is the reason."""
    type = facts.explained.item.type
    busy = fleet.busy(workers, type, facts.runs)
    full = [each for each in busy if each.kind == "worker_full"]
    others = [each for each in busy if each.kind != "worker_full"]
    if facts.limits is None:
        return [*others, *_perhaps_limited(full, type)]
    only_limited = bool(full and facts.limits) and not any(has_no_place(worker, type) for worker in workers)
    limits = limit_reasons(facts.limits, fleet, passed=only_limited)
    return [*limits, *others, *([] if limits or only_limited else full)]


def _perhaps_limited(full: list[Reason], type: str) -> list[Reason]:
    return [replace(each, text=f"{each.text}; {_limits_unknown(type)}") for each in full]


def paused_reasons(pauses: Iterable[Order], now: float) -> Iterator[Reason]:
    """A reason for each pause."""
    for each in pauses:
        whom = " for all tenants" if each.queue is not None and each.tenant is None else ""
        text = pause_text(each) + whom + ordered_text(each, now)
        yield Reason(kind="paused", text=text, refs=(each.about,), fix=resume_command(each))


def _could_run(explained: Explanation, fleet: WorkerFleet) -> tuple[list[WorkerState], Reason | None]:
    """The workers that could run it. If there is none: why."""
    item = explained.item
    if not fleet.taking:
        return [], fleet.no_worker(explained.unknown_since)
    having = fleet.serving(type=item.type)
    if not having:
        return [], fleet.no_worker_for_type(item.type, explained.unknown_since, item.due_at)
    return fleet.not_serving(having, item.type, item.queue, item.tenant)


def _lane_held(explained: Explanation) -> list[Reason]:
    item, holder = explained.item, explained.lane_holder
    if holder is None or holder == item.id:
        return []
    lane = f"lane {plain(item.lane)}" if item.lane else "its lane"
    text = f"{lane} is strict, and {item_name(holder)} holds it until it has ended"
    fix = command("why", holder, tenant=tenant_option(item.tenant))
    return [Reason(kind="lane_held", text=text, refs=(holder,), fix=fix)]


def _isolated(explained: Explanation) -> list[Reason]:
    losses = explained.item.losses
    if losses < LOSSES_BEFORE_TRIAL:
        return []
    text = f"{losses:,} workers in a row died while they ran it: it starts only beside ever fewer other items"
    return [Reason(kind="isolated", text=text, fix=give_up_killer(explained.item))]


def _turn(explained: Explanation, unknown: str) -> Reason:
    go = "goes" if explained.ahead == 1 else "go"
    ahead = plural(explained.ahead, "item", explained.ahead >= MOST_AHEAD)
    text = f"{ahead} of its line {go} first"
    if explained.lanes > 1:
        text += f"; {_lines(explained)} of queue {plain(explained.item.queue)} are served in rotation"
    return Reason(kind="turn", text=f"{text}{unknown}")


def _lines(explained: Explanation) -> str:
    return plural(explained.lanes, "line", explained.lanes >= MOST_LANES)


def _next(explained: Explanation, unknown: str) -> Reason:
    text = "nothing is in its way" if not unknown else "nothing that is known is in its way"
    if explained.lanes > 1:
        text += f", except that {_lines(explained)} of its queue are served in rotation"
    item = explained.item
    is_late = explained.now - item.due_at > LATE and not item.after  # it may have been released just now
    fix = "look again" if unknown else "look again; if it stays, it is a bug of treadle" if is_late else ""
    return Reason(kind="next", text=f"{text}: it should start soon{unknown}", fix=fix)


def _unknown(facts: ItemFacts, workers: list[WorkerState]) -> str:
    """What is not known about limits and workers, as the end of a sentence."""
    said = [unknown_workers(workers)]
    if facts.limits is None:
        said.append(_limits_unknown(facts.explained.item.type))
    return "".join(f"; {each}" for each in said if each)


def _limits_unknown(type: str) -> str:
    return f"the limits of {plain(type)} are not known here: ask with its code (--app)"


def limit_reasons(limits: Sequence[LimitFact], fleet: WorkerFleet, *, passed: bool = False) -> list[Reason]:
    """A reason for each limit that is reached: `slots` first, then those that free themselves. passed: also
    for limits on starts that were reached just now, and whose next permit no worker has taken."""
    slots = [each for each in limits if each.limit.algorithm == "slots"]
    rates = [each for each in limits if each.limit.algorithm != "slots"]
    held = [
        _ordered(each, _concurrency(use, each.limit.limit, fleet), fleet.now)
        for each in slots
        if (use := _full(each)) is not None
    ]
    used = [
        _ordered(each, _rate(each.limit, use.retry_after, fleet), fleet.now)
        for each in rates
        if (use := _used_up(each)) is not None
    ]
    if held or used or not passed:
        return [*held, *used]
    return [_ordered(each, _rate(each.limit, 0.0, fleet), fleet.now) for each in rates]


def _ordered(fact: LimitFact, reason: Reason, now: float) -> Reason:
    """The reason, with who has ordered the limit, if it is not that of the code."""
    if fact.order is None:
        return reason
    text = f"{reason.text}; ordered in place of the code{ordered_text(fact.order, now)}"
    return replace(reason, text=text, fix=f"{reason.fix}; what the code says: {clear_command(fact.order)}")


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
