"""Codes: how the words of the domain are stored, in two bytes each. The tables' migration lists them too."""

from __future__ import annotations

from typing import Final

from treadle.item import Loss, Reason, SettlementKind, Status, Verdict

STATUSES: Final[tuple[Status, ...]] = (
    "blocked",
    "scheduled",
    "ready",
    "ready",  # parked
    "ready",  # doomed: shown as what it was
    "running",
    "success",
    "dead",
    "cancelled",
)


def status_of(code: int) -> Status:
    return STATUSES[code]


READY: Final = 2
PARKED: Final = 3
SUCCESS: Final = 6
DEAD: Final = 7
CANCELLED: Final = 8

STATUS_CODES: Final[dict[Status, int]] = {
    "blocked": 0,
    "scheduled": 1,
    "ready": 2,
    "running": 5,
    "success": SUCCESS,
    "dead": DEAD,
    "cancelled": CANCELLED,
}

REASONS: Final[tuple[Reason | None, ...]] = (
    None,
    "exhausted",
    "aborted",
    "expired",
    "lease_lost",
    "unsatisfiable",
    "undecodable",
    "bad_result",
    "unknown_type",
)
REASON_CODES: Final[dict[Reason | None, int | None]] = {
    reason: code or None for code, reason in enumerate(REASONS)
}
VERDICTS: Final[dict[int | None, Verdict | None]] = {
    None: None,
    3: "expired",
    4: "lease_lost",
    5: "unsatisfiable",
    8: "unknown_type",
}

KINDS: Final[dict[SettlementKind, int]] = {
    "retry": 1,
    "defer": 2,
    "release": 3,
    "success": SUCCESS,
    "dead": DEAD,
    "cancelled": CANCELLED,
}

SETTLED: Final = 0
"""In the place of a loss: this very token has settled the item."""
LOSSES: Final[tuple[Loss, ...]] = ("taken", "taken", "completed", "cancelled", "not_found")

OPEN_SCOPE: Final = -1.0
ANY_SCOPE: Final = -2.0
