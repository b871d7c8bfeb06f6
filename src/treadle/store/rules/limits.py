"""Limits that the fleet shares: how many permits are left, and when the next one is. And the room that types
share within one claim."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, assert_never

from treadle.item import Demand, Limit, PermitReply, PermitRequest

FUZZ = 1e-6
"""Epoch seconds as floats are exact to a fraction of a microsecond. Without this allowance, a caller that
waited for exactly `retry_after` could be that much too early, and be sent away again."""


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


def permit(
    request: PermitRequest, states: Mapping[Limit, LimitState], now: float, *, alive: bool = True
) -> tuple[PermitReply, dict[Limit, LimitState]]:
    """The answer to a request, and the states to store for its limits.

    `states` are the stored ones; a limit without one is unused. For `slots`, the permits of the answer are to
    be added to what the worker holds. A worker that is not `alive` gets none: nothing would return them.
    """
    if not alive and any(limit.algorithm == "slots" for limit in request.limits):
        return PermitReply(0), {}
    present = {limit: advance(limit, states.get(limit, LimitState(now)), now) for limit in request.limits}
    count = max(0, min([request.count, *(allowance(limit, state, now) for limit, state in present.items())]))
    spent = {limit: state._replace(used=state.used + count) for limit, state in present.items()}
    wait = max((wait_for_one(limit, state, now) for limit, state in spent.items()), default=0.0)
    return PermitReply(count, wait), spent


def advance(limit: Limit, state: LimitState, now: float) -> LimitState:
    """The state as of now. A clock that went back neither returns nor takes permits: what was true in the
    future is true now, so no call waits for the old time to come again."""
    match limit.algorithm:
        case "token_bucket":
            refilled = max(0.0, now - state.at) * limit.limit / limit.window
            return LimitState(now, max(0.0, state.used - refilled))
        case "fixed_window":
            if not state.used or now >= state.at + limit.window - FUZZ:
                return LimitState(now)
            return state._replace(at=min(state.at, now))
        case "sliding_window":
            return _slide(limit, state, now)
        case "slots":
            return state
        case _:
            assert_never(limit.algorithm)


def _slide(limit: Limit, state: LimitState, now: float) -> LimitState:
    start = math.floor(now / limit.window) * limit.window
    if state.at >= start:
        return state._replace(at=start)
    if state.at >= start - limit.window:
        return LimitState(start, 0.0, state.used)
    return LimitState(start)


def allowance(limit: Limit, state: LimitState, now: float) -> int:
    """How many permits an advanced state has left."""
    left = limit.limit - in_force(limit, state, now)
    return max(0, min(limit.limit, math.floor(left + _tolerance(limit))))


def in_force(limit: Limit, state: LimitState, now: float) -> float:
    """How many permits of an advanced state count now."""
    if limit.algorithm != "sliding_window":
        return state.used
    share = 1.0 - (now - state.at) / limit.window
    return state.used + state.before * min(1.0, max(0.0, share))


def _tolerance(limit: Limit) -> float:
    return min(0.5, FUZZ * limit.limit / limit.window + 1e-9)


def wait_for_one(limit: Limit, state: LimitState, now: float) -> float:
    """Seconds until an advanced state has one permit left. 0 for `slots`: that cannot be known."""
    if limit.algorithm == "slots" or allowance(limit, state, now) >= 1:
        return 0.0
    if limit.limit < 1:
        return math.inf
    match limit.algorithm:
        case "token_bucket":
            return (state.used + 1 - limit.limit) * limit.window / limit.limit
        case "fixed_window":
            return state.at + limit.window - now
        case "sliding_window":
            return _slid_to(limit, state) - now


def _slid_to(limit: Limit, state: LimitState) -> float:
    """When a full sliding window has weight for one more. The share of the previous window must shrink to
    `rest`; if the current window alone is too much, its own share must shrink in the next window."""
    rest = limit.limit - 1 - state.used
    if rest >= 0:
        return state.at + limit.window * (1 - rest / state.before)
    return state.at + limit.window * (2 - (limit.limit - 1) / state.used)


def idle_at(limit: Limit, state: LimitState) -> float:
    """When an unused state is like new and need not be stored any more. `slots`: when all are returned."""
    match limit.algorithm:
        case "token_bucket":
            return state.at + state.used * limit.window / limit.limit if limit.limit else state.at
        case "fixed_window":
            return state.at + limit.window
        case "sliding_window":
            return state.at + 2 * limit.window
        case "slots":
            return math.inf if state.used else state.at
        case _:
            assert_never(limit.algorithm)


class SharedRooms:
    """What is left, during one claim, of the room that types share."""

    __slots__ = ("_left", "_types")

    def __init__(self, demand: Demand) -> None:
        self._types = {type: shared.types for shared in demand.shared for type in shared.types}
        self._left = {shared.types: shared.room for shared in demand.shared}

    def use(self, type: str, rooms: dict[str, int]) -> bool:
        """An item of this type was handed out. True: its shared room is used up, and `rooms` says that none
        of the types that share it has room."""
        types = self._types.get(type)
        if types is None:
            return False
        self._left[types] -= 1
        if self._left[types] > 0:
            return False
        rooms.update(dict.fromkeys(types, 0))
        return True
