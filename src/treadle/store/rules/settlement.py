"""What settlements and lost workers make of items, and of the values of groups."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final, Literal, NamedTuple

from treadle.item import (
    GROUP_TYPE,
    Attempt,
    Contribution,
    DeathReason,
    ErrorInfo,
    Loss,
    Settlement,
    Status,
    Verdict,
)

from .times import due_at, waiting_status

KEPT_ATTEMPTS = 10
"""How many failed attempts, and how many settling tokens, are kept per item."""
LONGEST_LOSS_DELAY = 30.0
SHOWN_DEATHS = 10
"""How many deaths a group shows."""

# -------------------------------------------------------------------------- attempts that did not end an item


class WaitingAgain(NamedTuple):
    """What an item becomes after an attempt that did not end it."""

    status: Literal["scheduled", "ready"]
    due: float
    attempt: int
    failures: int
    losses: int
    """Workers lost in a row."""
    keeps_place: bool
    """It keeps its place among the ready items. Otherwise it goes to the end."""
    verdict: Verdict | None
    """Given: the item is doomed. It keeps `status`, but only waits to be ended."""
    stays_ready: bool = False
    """It has been ready all the time: it was claimed, and not run."""


class Counters(NamedTuple):
    """What is counted about the attempts of an item."""

    attempt: int
    """How many have begun."""
    failures: int
    """How many have failed."""
    losses: int
    """How many in a row ended with the death of their worker."""
    begun: bool
    """Whether the current one has begun."""


def put_back(
    settlement: Settlement, now: float, counters: Counters, *, due: float, deadline: float | None
) -> WaitingAgain:
    """What a settlement of kind retry, defer or release makes of its item.

    A retry counts a failure; defer and release give the attempt back. A release keeps the item's place and
    its losses, and, unless the settlement names a time, its due time and since when it is ready. An item
    whose deadline has passed is doomed.

    Not for an item that was leased with a verdict: that stays doomed, and nothing else about it changes.
    """
    kind = settlement.kind
    stays_ready = kind == "release" and not settlement.delay and settlement.run_at is None
    if not stays_ready:
        due = due_at(settlement, now)
    return WaitingAgain(
        waiting_status(due, now),
        due,
        counters.attempt - (kind != "retry" and counters.begun),
        counters.failures + (kind == "retry"),
        counters.losses if kind == "release" else 0,
        kind == "release",
        "expired" if deadline is not None and deadline <= now else None,
        stays_ready,
    )


def after_loss(
    now: float, counters: Counters, number: int, *, due: float, deadline: float | None
) -> WaitingAgain:
    """What the death of its worker makes of a running item. number: the item's, or any other that differs
    from item to item.

    After the first loss it is ready at once; each further loss in a row delays it longer. It keeps its place.
    An attempt that had not begun is no loss: the item has been ready all the time. An item whose deadline has
    passed is doomed.

    Not for an item that was leased with a verdict: that stays doomed, and nothing else about it changes.
    """
    losses = counters.losses + counters.begun
    if counters.begun and losses > 1:
        due = now + loss_delay(losses, number)
    return WaitingAgain(
        waiting_status(due, now),
        due,
        counters.attempt,
        counters.failures,
        losses,
        True,
        "expired" if deadline is not None and deadline <= now else None,
        not counters.begun,
    )


def loss_delay(losses: int, number: int) -> float:
    """Seconds that an item waits after its second and each further loss in a row. Items that were lost
    together wait for different times."""
    spread = (number * 7919 + losses * 104729) % 1000 / 1000
    return min(2.0 ** min(losses - 2, 10), LONGEST_LOSS_DELAY) * (1 - spread / 2)


def redrive(redrives: int, most: int | None, backoff: float) -> tuple[int, float]:
    """How often a dead item was redriven once it is requeued now, and its delay. `most` None: an operator
    requeues it, which starts the count anew."""
    return (0, 0.0) if most is None else (redrives + 1, backoff * 2.0**redrives)


# -------------------------------------------------------------------------------------------- history, tokens


def recorded_failure(settlement: Settlement, verdict: Verdict | None) -> ErrorInfo | None:
    """The failure that a settlement adds to the history. `verdict`: the one its item was leased with. Putting
    a doomed item back adds nothing."""
    ended = settlement.kind == "dead" or settlement.kind == "cancelled"
    return settlement.failure if ended or (settlement.kind == "retry" and verdict is None) else None


def death_reason(settlement: Settlement, verdict: Verdict | None) -> DeathReason:
    return settlement.reason or verdict or "aborted"


def failed_attempt(
    failure: ErrorInfo, attempt: int, at: float, worker: str, release: str | None = None
) -> Attempt:
    return Attempt(attempt, failure.type, failure.message, failure.traceback, at, worker, release or "")


def lost_attempt(attempt: int, at: float, worker: str, release: str | None = None) -> Attempt:
    """The history of an attempt whose worker died."""
    text = f"worker {worker} died or lost its lease"
    return Attempt(attempt, "LeaseLost", text, "", at, worker, release or "")


def loss_of(
    token: int, settled: Container[int], ended: Status | None, *, by_operator: bool = False
) -> Loss | None:
    """Why a token does not own an item that exists. None: this token has settled the item.

    `settled`: the last tokens that settled it. `ended`: its status if it has ended, `by_operator` if no
    settlement ended it.
    """
    if token in settled:
        return None
    if ended is None or not by_operator:
        return "taken"
    return "cancelled" if ended == "cancelled" else "completed"


# ----------------------------------------------------------------------------------------------- group values


def can_fail_group(type: str, *, contributes: bool) -> bool:
    """Whether the death of such an item can fail its group. That of a compensation, and of what it queued,
    cannot: the death that it compensates has."""
    return contributes or type == GROUP_TYPE


def group_status(failed: int, cancelled: int) -> Literal["success", "dead"]:
    """How a group has ended, for items that wait for it. `failed`: its deaths that were not tolerated.
    `cancelled`: its members that were cancelled."""
    return "dead" if failed or cancelled else "success"


class GroupValue(NamedTuple):
    version: int = 0
    """Stands for this value: see `next_version`. 0: no member has contributed."""
    value: bytes | None = None
    final: bool = False


def applied_contribution(settlement: Settlement, *, contributes: bool) -> Contribution | None:
    """What a settlement adds to its group's value. `contributes`: whether the item may add anything."""
    return settlement.contribution if contributes else None


def is_fold(settlement: Settlement) -> bool:
    """Whether its contribution was computed from a version of the group's value. If a fold is not applied,
    later folds of its group in the same call are refused too: they may have been computed from it."""
    return settlement.contribution is not None and settlement.contribution.version is not None


def contribution_state(
    contribution: Contribution, version: int, *, final: bool, refused: bool
) -> Literal["applies", "ignored", "moved"]:
    """What a group at this version does with a contribution. `refused`: an earlier fold of this call was not
    applied.

    `moved`: it was computed from another value, and the settlement must be computed anew. `ignored`: the
    group's value is final, and the settlement applies without it.
    """
    if contribution.version is not None and (contribution.version != version or refused):
        return "moved"
    return "ignored" if final else "applies"


def contributed(contribution: Contribution, result: bytes | None, token: int) -> GroupValue:
    """The group's value after a contribution. `result`: the item's. `token`: that of its lease."""
    value = result if contribution.value is None else contribution.value
    return GroupValue(next_version(token, contribution.version), value, contribution.final)


def token_step(count: int, random_bits: Callable[[int], int]) -> int:
    """How far to move a counter for this many tokens: they are the last ones of the step. A random number of
    those before is left out. So a store that lost its last changes gives other tokens than before, and
    versions, which are sums of tokens, differ."""
    return count and count + random_bits(24)


VERSIONS: Final = 2**50
"""Versions are smaller than this: numbers that Lua and JSON have exactly, and threefold."""
LONE_VERSION: Final = 1
"""The version of a group that ended with its only member. Nothing is ever folded from it."""


def next_version(token: int, folded_from: int | None) -> int:
    """The version that a contribution makes. `token`: that of its lease. `folded_from`: if it is a fold, the
    version of the value that it was computed from.

    So a version stands for one value: no token is given twice, and a member that folds from the same value
    gives the same. A later group with the same id has other versions. So has a store that has forgotten some
    contributions. A worker knows the version of its fold before the store answers.
    """
    return max((token + 3 * (folded_from or 0)) % VERSIONS, LONE_VERSION)


def shortest_keep(keep: float, keep_dead: float | None) -> float:
    """The shortest time that an item may be kept after its group's end, however it ends."""
    return keep if keep_dead is None else min(keep, keep_dead)
