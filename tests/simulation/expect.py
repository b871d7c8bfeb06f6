"""What must happen now and then: a simulation in which it never does proves nothing about it."""

from __future__ import annotations

from collections import Counter

_LOST = (
    "submit",
    "claim",
    "settle",
    "beat",
    "unknown_leases",
    "ended",
    "get",
    "claim_key",
    "fire",
    "put_schedule",
)

OFTEN = (
    *(f"{verb} answer lost" for verb in _LOST[:6]),
    *(f"{verb} failed before it happened" for verb in _LOST[:6]),
    "claim late",
    "settle repeated",
    "settled again",
    "settlement moved",
    "stale settle refused: taken",
    "lease over",
    "orphan found",
    "claim by a worker that was buried",
    "released",
    "doomed",
    "closed",
    "dead in a group of several",
    "dead exhausted",
    "dead aborted",
    "verdict expired",
    "verdict unsatisfiable",
    "retry",
    "defer",
    "release",
    "requeued",
    "two tenants, one id",
    "skipped the queue",
    "a key was answered by an earlier item",
    "a key was refused",
    "fired",
    "paused",
    "queue paused",
    "signal dropped",
    "signal doubled",
    "waited to the end",
)
"""In every 500 seeds."""

SOMETIMES = (
    *OFTEN,
    *(f"{verb} answer lost" for verb in _LOST),
    *(f"{verb} late" for verb in ("submit", "settle", "beat", "unknown_leases", "claim_key")),
    "stale settle refused: cancelled",
    "stale settle refused: completed",
    "a beat told of a loss: taken",
    "a beat told of a loss: cancelled",
    "a beat told of a loss: completed",
    "lease lost twice",
    "verdict lease_lost",
    "dead lease_lost",
    "dead expired",
    "cancel of what runs",
    "complete of what runs",
    "completed by hand",
    "triggered",
    "pruned",
    "a group opened again",
    "an occurrence was fired already",
    "an orderly shutdown",
    "the store's clock jumped",
    "submission refused: cycle",
    "submission refused: duplicate_id",
    "enqueue gave up: stored or not, nobody knows",
    "an unknown enqueue was stored",
    "a waiter was told of a failure",
    "a tenant had more than one claim could take",
)
"""In every 2,000 seeds."""


def missing(coverage: Counter[str], seeds: int) -> list[str]:
    """What should have happened in so many seeds, and did not. Fewer than 500 promise nothing."""
    wanted = SOMETIMES if seeds >= 2000 else OFTEN if seeds >= 500 else ()
    return [what for what in dict.fromkeys(wanted) if not coverage[what]]
