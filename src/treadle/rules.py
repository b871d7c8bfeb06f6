"""Rules of storage that are plain arithmetic, for the backends that are written in Python.

No I/O and no state: a backend hands in what it has stored and stores what comes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, TypeVar, assert_never

from treadle.item import (
    Attempt,
    Counting,
    ErrorInfo,
    Item,
    Limit,
    PermitReply,
    PermitRequest,
    Settlement,
    Status,
)

N = TypeVar("N")

PORTION = 1000
"""The most of each kind (freed, become due, expired) that one claim works off before it hands out."""
MOST_DOOMED = 100
"""The most items with a verdict that one claim hands out."""
KEPT_ATTEMPTS = 10
"""How many failed attempts an item's history keeps."""
LONGEST_LOSS_DELAY = 60.0
FUZZ = 1e-6
"""Epoch seconds as floats are exact to a fraction of a microsecond. Without allowing for it, whoever waited
for exactly `retry_after` could come that much too early, and be sent away again."""

# ---------------------------------------------------------------------------------------- the life of an item


def due_at(when: Item | Settlement, now: float) -> float:
    """When it is due: the absolute instant wins."""
    return now + when.delay if when.run_at is None else when.run_at


def deadline_at(item: Item, now: float) -> float | None:
    """When it is too late for it: the absolute instant wins."""
    if item.deadline is not None:
        return item.deadline
    return None if item.expires_in is None else now + item.expires_in


def loss_delay(losses: int) -> float:
    """How far away an item is scheduled when its worker died, the `losses`-th in a row. 0: ready at once."""
    if losses < 2:
        return 0.0
    return LONGEST_LOSS_DELAY if losses > 7 else min(2.0 ** (losses - 2), LONGEST_LOSS_DELAY)


def budget_spent(attempt: int, attempts: int | None) -> bool:
    return attempts is not None and attempt >= attempts


def failed_attempt(failure: ErrorInfo, attempt: int, at: float, worker: str) -> Attempt:
    """The history's entry for a failure."""
    return Attempt(attempt, failure.type, failure.message, failure.traceback, at, worker)


def lost_attempt(attempt: int, at: float, worker: str) -> Attempt:
    """The history's entry for an attempt whose worker died."""
    return Attempt(attempt, "LeaseLost", f"worker {worker} died or lost its lease", "", at, worker)


# ------------------------------------------------------------------------------------------------------ gates


def counts(counting: Counting, ended: Status) -> bool:
    """Whether a prerequisite that ended this way counts as met."""
    return counting == "done" or ended == "success"


def gate(need: int, met: int, open: int) -> Literal["released", "doomed", "waiting"]:
    if met >= need:
        return "released"
    return "doomed" if met + open < need else "waiting"


def find_cycle(starts: Iterable[N], waits_for: Callable[[N], Iterable[N]]) -> tuple[N, ...] | None:
    """Some nodes that wait for each other, each for the next and the last for the first; None if there are
    none to be reached from `starts`."""
    cleared: set[N] = set()
    for start in starts:
        if start not in cleared:
            found = _cycle_from(start, waits_for, cleared)
            if found is not None:
                return found
    return None


def _cycle_from(start: N, waits_for: Callable[[N], Iterable[N]], cleared: set[N]) -> tuple[N, ...] | None:
    # Depth first with a stack of its own: chains may be longer than Python can recurse.
    path: dict[N, None] = {start: None}
    stack = [iter(waits_for(start))]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            cleared.add(path.popitem()[0])
        elif node in path:
            nodes = list(path)
            return tuple(nodes[nodes.index(node) :])
        elif node not in cleared:
            path[node] = None
            stack.append(iter(waits_for(node)))
    return None


# ------------------------------------------------------------------------------------------------------- keys


def key_answers(scope: Literal["open", "any"] | float, *, group_open: bool, age: float) -> bool:
    """Whether an earlier item that holds the key answers for a new one. `age`: seconds since it was
    submitted."""
    match scope:
        case "open":
            return group_open
        case "any":
            return True
        case _:
            return age <= scope


# ----------------------------------------------------------------------------------------------------- limits


class LimitState(NamedTuple):
    """Where a limit stands: all that is stored for it.

    | algorithm | at | used | before |
    | --- | --- | --- | --- |
    | token_bucket | when `used` was true | permits missing from a full bucket | |
    | fixed_window | when the window began | permits of this window | |
    | sliding_window | when the current window began | permits of the current window | of the previous one |
    | slots | | permits held by all workers | |
    """

    at: float
    used: float = 0.0
    before: float = 0.0


def grant(
    take: PermitRequest, gauges: Mapping[Limit, LimitState], now: float
) -> tuple[PermitReply, dict[Limit, LimitState]]:
    """What a take is given, and the gauges to store for its limits.

    `gauges` are the stored ones; a limit without one is untouched so far. For `slots`, what was granted is to
    be added to what the worker holds.
    """
    present = {limit: advance(limit, gauges.get(limit, LimitState(now)), now) for limit in take.limits}
    count = max(0, min([take.count, *(allowance(limit, gauge, now) for limit, gauge in present.items())]))
    spent = {limit: gauge._replace(used=gauge.used + count) for limit, gauge in present.items()}
    wait = max((wait_for_one(limit, gauge, now) for limit, gauge in spent.items()), default=0.0)
    return PermitReply(count, wait), spent


def advance(limit: Limit, gauge: LimitState, now: float) -> LimitState:
    """The gauge as it stands now. A clock that went back gives nothing back and takes nothing away."""
    match limit.algorithm:
        case "token_bucket":
            refilled = max(0.0, now - gauge.at) * limit.limit / limit.window
            return LimitState(now, max(0.0, gauge.used - refilled))
        case "fixed_window":
            return gauge if gauge.used and now < gauge.at + limit.window - FUZZ else LimitState(now)
        case "sliding_window":
            return _slide(limit, gauge, now)
        case "slots":
            return gauge
        case _:
            assert_never(limit.algorithm)


def _slide(limit: Limit, gauge: LimitState, now: float) -> LimitState:
    start = math.floor(now / limit.window) * limit.window
    if gauge.at >= start:
        return gauge._replace(at=start)
    if gauge.at >= start - limit.window:
        return LimitState(start, 0.0, gauge.used)
    return LimitState(start)


def allowance(limit: Limit, gauge: LimitState, now: float) -> int:
    """How many permits an advanced gauge has left."""
    left = limit.limit - _in_force(limit, gauge, now)
    return max(0, min(limit.limit, math.floor(left + _tolerance(limit))))


def _in_force(limit: Limit, gauge: LimitState, now: float) -> float:
    if limit.algorithm != "sliding_window":
        return gauge.used
    share = 1.0 - (now - gauge.at) / limit.window
    return gauge.used + gauge.before * min(1.0, max(0.0, share))


def _tolerance(limit: Limit) -> float:
    return min(0.5, FUZZ * limit.limit / limit.window + 1e-9)


def wait_for_one(limit: Limit, gauge: LimitState, now: float) -> float:
    """Seconds until an advanced gauge has one permit left. For `slots`, 0: nobody knows."""
    if limit.algorithm == "slots" or allowance(limit, gauge, now) >= 1:
        return 0.0
    if limit.limit < 1:
        return math.inf
    match limit.algorithm:
        case "token_bucket":
            return (gauge.used + 1 - limit.limit) * limit.window / limit.limit
        case "fixed_window":
            return gauge.at + limit.window - now
        case "sliding_window":
            return _slid_to(limit, gauge) - now


def _slid_to(limit: Limit, gauge: LimitState) -> float:
    """When a full sliding window has weight for one more: the previous window must have faded to `rest`, or,
    if the current one alone is too much, that one must, in its turn."""
    rest = limit.limit - 1 - gauge.used
    if rest >= 0:
        return gauge.at + limit.window * (1 - rest / gauge.before)
    return gauge.at + limit.window * (2 - (limit.limit - 1) / gauge.used)


def idle_at(limit: Limit, gauge: LimitState) -> float:
    """When a gauge that is left alone is like new, and need not be stored any more. `slots`: when all are
    given back."""
    match limit.algorithm:
        case "token_bucket":
            return gauge.at + gauge.used * limit.window / limit.limit if limit.limit else gauge.at
        case "fixed_window":
            return gauge.at + limit.window
        case "sliding_window":
            return gauge.at + 2 * limit.window
        case "slots":
            return math.inf if gauge.used else gauge.at
        case _:
            assert_never(limit.algorithm)
