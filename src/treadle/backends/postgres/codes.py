"""Codes: how words are stored, in two bytes each. migrations/0001_tables.sql lists them too."""

from __future__ import annotations

from typing import Final

from treadle.item import Algorithm, DeathReason, Loss, SettlementKind, Status, Verdict

STATUSES: Final[tuple[Status, ...]] = (
    "blocked",
    "scheduled",
    "ready",
    "ready",  # parked
    "ready",  # doomed: `shown_status` has the status that readers see
    "running",
    "success",
    "dead",
    "cancelled",
)


def status_of(code: int) -> Status:
    return STATUSES[code]


READY: Final = 2
PARKED: Final = 3
RUNNING: Final = 5
SUCCESS: Final = 6
DEAD: Final = 7
CANCELLED: Final = 8

STATUS_CODES: Final[dict[Status, int]] = {status: code for code, status in reversed([*enumerate(STATUSES)])}
"""The first code of each status."""

REASONS: Final[tuple[DeathReason | None, ...]] = (
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
REASON_CODES: Final[dict[DeathReason | None, int | None]] = {
    reason: code or None for code, reason in enumerate(REASONS)
}
VERDICTS: Final[dict[int | None, Verdict | None]] = {
    None: None,
    3: "expired",
    5: "unsatisfiable",
    8: "unknown_type",
}

KIND_CODES: Final[dict[SettlementKind, int]] = {
    "retry": 1,
    "defer": 2,
    "release": 3,
    "success": SUCCESS,
    "dead": DEAD,
    "cancelled": CANCELLED,
}

SETTLED: Final = 0
"""Instead of a loss: this token has already settled the item."""
LOSSES: Final[tuple[Loss, ...]] = ("taken", "taken", "completed", "cancelled", "not_found")

OPEN_SCOPE: Final = -1.0
ANY_SCOPE: Final = -2.0

KEY_POLICY_CODES: Final[dict[str, int]] = {"existing": 0, "replace": 1, "debounce": 2, "error": 3}

ALGORITHM_CODES: Final[dict[Algorithm, int]] = {
    "token_bucket": 0,
    "fixed_window": 1,
    "sliding_window": 2,
    "slots": 3,
}


def decoded(data: bytes | None) -> str | None:
    """An error text. Those are stored as bytes, because they may contain what PostgreSQL's text cannot."""
    return None if data is None else data.decode("utf-8", "surrogatepass")


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
