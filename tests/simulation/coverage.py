"""What must happen in a number of seeds. A simulation in which it never happens proves nothing about it."""

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
    *(f"{verb} failed before it arrived" for verb in _LOST[:6]),
    "claim late",
    "settle repeated",
    "settled again",
    "settlement moved",
    "stale settle refused: taken",
    "a worker lease lapsed",
    "unknown leases found",
    "a claim by a removed worker",
    "released",
    "doomed",
    "ended_groups",
    "dead in a group of several",
    "dead exhausted",
    "dead aborted",
    "verdict expired",
    "verdict unsatisfiable",
    "retry",
    "defer",
    "release",
    "requeued",
    "a group was nested",
    "two tenants, one id",
    "skipped the queue",
    "an existing item was returned for a key",
    "changed by its key: replace",
    "changed by its key: debounce",
    "submission refused: duplicate_key",
    "updated",
    "a key was refused",
    "fired",
    "paused",
    "queue paused",
    "type paused",
    "tenant paused",
    "a claim learned of other orders",
    "wake-up dropped",
    "wake-up repeated",
    "waited to the end",
    "a permit was denied",
    "a concurrency limit was reached",
    "an item was handed out again that holds its lane",
    "an item was dropped, or replaced before it began",
    "a thread began",
    "a process was killed by its item",
    "a plain start that had to be prompt",
    "dead lease_lost",
    "a step was recorded",
    "a step ran again",
    "a step was committed",
    "suspended for sleep",
    "suspended for signal",
    "suspended for children",
    "resumed",
    "a signal came before",
    "a signal came while it was waited for",
    "a signal came while it ran",
    "a wait took a signal that was there",
    "a signal was refused: existing",
    "a record was refused: taken",
    "several steps were undone",
    "chunks were written",
)
"""In every 125 seeds."""

SOMETIMES = (
    *OFTEN,
    "a dependent came back",
    *(f"{verb} answer lost" for verb in _LOST),
    *(f"{verb} late" for verb in ("submit", "settle", "beat", "unknown_leases", "claim_key")),
    "stale settle refused: cancelled",
    "stale settle refused: completed",
    "a heartbeat reported a loss: taken",
    "a heartbeat reported a loss: cancelled",
    "a heartbeat reported a loss: completed",
    "lease lost twice",
    "a limited start that had to be prompt",
    "a lost item ran again",
    "an item on trial ran",
    "an attempt began after its claim",
    "a process ended while its thread ran",
    "a process waited for its thread",
    "dead expired",
    "a running item was cancelled",
    "a running item was completed",
    "an item was completed",
    "triggered",
    "pruned",
    "an id was used again",
    "an ended group opened again",
    "a closing item came back",
    "a requeued item stayed dead",
    "a cancelled item was requeued",
    "a nested group without members",
    "an occurrence had already fired",
    "a shutdown under strict timing",
    "requeued from a step",
    "a sleep was ended by trigger",
    "record repeated",
    "record answer lost",
    "signal repeated",
    "the store's clock jumped",
    "submission refused: cycle",
    "submission refused: duplicate_id",
    "an enqueue with unknown outcome",
    "an unknown enqueue was stored",
    "a waiter got a failure",
    "a tenant had more items than one claim returned",
)
"""In every 2,000 seeds."""


def missing(coverage: Counter[str], seeds: int) -> list[str]:
    """What should have happened in that many seeds and did not. Fewer than 125 seeds require nothing."""
    wanted = SOMETIMES if seeds >= 2000 else OFTEN if seeds >= 125 else ()
    return [what for what in dict.fromkeys(wanted) if not coverage[what]]


STEPS = ("key_owner", "now", "put_mark", "read", "stage", "staged", "commit", "receive")
"""The calls of a mover."""

MOVES = (
    "a tenant was moved",
    "a tenant was moved with items that run",
    "a tenant was moved with suspended items",
    "a tenant was moved with blocked items",
    "a tenant was moved with lost items",
    "a tenant was moved with open groups",
    "a tenant was moved with claimed keys",
    "a tenant was moved with keys of items",
    "a tenant was moved with held lanes",
    "a mover has moved items that run",
    "a mover has moved a tenant that another one began to move",
    "a mover found the tenant there",
    "a mover gave up",
    "two movers at once",
    "a freeze took the place of another",
    "a move was given up in the old store",
    "a move was given up in the new store",
    "a move was given up at the end",
    "a move was resumed at the end",
    "a move was ended by who was sent on",
    "a move was refused, or not answered",
    "a move was refused: the clocks",
    "a move was refused: to copy",
)
"""In every 125 seeds with two stores."""

MOVERS = (
    *MOVES,
    *(f"{step} answer lost" for step in ("put_mark", "commit", "receive")),
    "a freeze ended by itself",
    *(
        f"a mover {what} {when} {step}"
        for what in ("was killed", "slept")
        for when in ("before", "after")
        for step in STEPS
    ),
)
"""In every 1,000 seeds with two stores."""


def missing_moves(coverage: Counter[str], seeds: int) -> list[str]:
    """As `missing`, with two stores."""
    wanted = MOVERS if seeds >= 1000 else MOVES if seeds >= 125 else ()
    return [what for what in wanted if not coverage[what]]
