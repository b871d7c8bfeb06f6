"""What operators read: which facts about items, workers and limits follow from what is stored."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from treadle.item import (
    TERMINAL,
    Algorithm,
    Count,
    Counting,
    DeathReason,
    ItemState,
    Limit,
    Status,
    Verdict,
    WorkerState,
)
from treadle.item_facts import LimitHolder, LimitUse, Prerequisite
from treadle.store.fleet import serves

from .limits import LimitState, advance, in_force, wait_for_one
from .submission import counts

MOST_AHEAD = 1000
"""Stores count no further: see `Explanation.ahead`."""
MOST_LANES = 100
MOST_PREREQUISITES = 100
MOST_WORKERS = 1000
MOST_HOLDERS = 100
MOST_AGED_LINES = 200
"""How many lines of a queue are looked at for its age."""


# ------------------------------------------------------------------------------------------------- one item


class WaitsAgain(NamedTuple):
    """Why an item that was claimed before waits again: see `Explanation`."""

    freed: bool = False
    given_back: bool = False


def why_again(state: ItemState, verdict: Verdict | None, *, keeps_place: bool) -> WaitsAgain:
    """What became of the last claim of an item. `keeps_place`: it is scheduled, and gets its old place when
    it is ready.

    A failure and a loss are in the history. An item that was given back keeps the time at which it was due,
    which was before the claim; or, with a delay, its place.
    """
    if verdict is not None or state.claimed_at is None or state.status not in ("scheduled", "ready"):
        return WaitsAgain()
    if state.history and state.history[-1].at >= state.claimed_at:
        return WaitsAgain(freed=state.losses > 0)
    if state.status == "scheduled":
        return WaitsAgain(given_back=keeps_place)
    return WaitsAgain(given_back=state.due_at < state.claimed_at)


UNRUN: frozenset[DeathReason] = frozenset(("lease_lost", "unsatisfiable", "unknown_type"))
"""Deaths that come without an attempt: any worker takes note of them."""


def died_unrun(state: ItemState) -> bool:
    """Whether a worker ended it as dead without an attempt. The last entry of its history is no attempt
    then. If its deadline passed: not while it ran, so the entry before is of the same attempt."""
    if state.status != "dead" or state.reason != "expired":
        return state.status == "dead" and state.reason in UNRUN
    before = state.history[-2].attempt if len(state.history) > 1 else 0
    return state.attempt <= before


def shown_prerequisites(
    state: ItemState, counting: Counting, found: Mapping[str, tuple[Status, str]]
) -> tuple[Prerequisite, ...]:
    """The prerequisites of an item, in the order of `Explanation`. `found`: the status and type of those that
    exist. A missing one is open, unless it counted when the item was requeued."""
    waiting = frozenset(state.waiting_for)
    ordered: tuple[list[Prerequisite], ...] = ([], [], [])
    for name in dict.fromkeys(state.after):
        stored = found.get(name)
        if stored is None:
            ordered[0 if name in waiting else 2].append(Prerequisite(name, "missing"))
            continue
        status, type = stored
        place = 0 if status not in TERMINAL else 2 if counts(counting, status) else 1
        ordered[place].append(Prerequisite(name, status, type))
    return tuple(one for part in ordered for one in part)[:MOST_PREREQUISITES]


# ------------------------------------------------------------------------------------------------ the fleet


def unserved_since(
    type: str, workers: Iterable[WorkerState], lost: Mapping[str, float], now: float
) -> float | None:
    """Since when no live worker has had a type. None: one has it, or none ever had, as far as is known.

    `lost`: by type, when the last worker that had it was removed; under the empty name, when the last one
    that had every type was.
    """
    instants = [worker.until for worker in workers if serves(worker, type=type)]
    if any(until > now for until in instants):
        return None
    instants += [lost[name] for name in (type, "") if name in lost]
    return max(instants, default=None)


CountKey: TypeAlias = tuple[str, str, str, Status]
"""A tenant, queue, type and status."""


def shown_counts(
    found: Mapping[CountKey, int], estimated: Container[tuple[str, Status]] = ()
) -> tuple[Count, ...]:
    """The counts of an overview. `estimated`: the queues and statuses of which not all items were counted."""
    return tuple(
        Count(*key, count, (key[1], key[3]) in estimated) for key, count in sorted(found.items()) if count > 0
    )


# --------------------------------------------------------------------------------------------------- limits


def rate_use(
    name: str, algorithm: Algorithm, rate: tuple[int, float] | None, state: LimitState, now: float
) -> LimitUse | None:
    """How far a limit on starts is used. None: it is not in use. `rate`: how many starts in how many
    seconds the last request asked for; None: unknown."""
    if rate is None:
        return LimitUse(name, algorithm, state.used) if state.used > 0 else None
    limit = Limit(name, *rate, algorithm)
    present = advance(limit, state, now)
    used = in_force(limit, present, now)
    if used <= 0:
        return None
    return LimitUse(name, algorithm, used, limit.limit, max(0.0, wait_for_one(limit, present, now)))


def slots_use(name: str, holders: Sequence[LimitHolder]) -> LimitUse | None:
    """How far a `slots` limit is used. None: it is not in use."""
    used = float(sum(holder.count for holder in holders))
    if used <= 0:
        return None
    shown = sorted(holders, key=lambda holder: (-holder.count, holder.worker))
    return LimitUse(name, "slots", used, holders=tuple(shown[:MOST_HOLDERS]))
