"""The numbers that stand for states in the tables, and what they are called outside."""

from __future__ import annotations

from typing import Final

from treadle.item import OPEN, SettlementKind, Status

BLOCKED: Final = 0
SCHEDULED: Final = 1
READY: Final = 2
PARKED: Final = 3
RUNNING: Final = 4

SUCCESS: Final = 10
DEAD: Final = 11
CANCELLED: Final = 12

STATUS: Final[dict[int, Status]] = {
    -3: "ready",
    -2: "scheduled",
    -1: "blocked",
    BLOCKED: "blocked",
    SCHEDULED: "scheduled",
    READY: "ready",
    PARKED: "ready",
    RUNNING: "running",
    5: "blocked",
    6: "scheduled",
    7: "ready",
    SUCCESS: "success",
    DEAD: "dead",
    CANCELLED: "cancelled",
}
"""What is shown. A doomed item keeps the status it had, also while it is leased with its verdict."""

OUTCOME: Final[dict[SettlementKind, int]] = {"success": SUCCESS, "dead": DEAD, "cancelled": CANCELLED}
"""What becomes of an item that a settlement ends."""


def doomed(status: int) -> int:
    """The code of an item that waited like this, once it is doomed. What ran and was freed is ready."""
    return {BLOCKED: -1, SCHEDULED: -2}.get(status, -3)


def leased(status: int) -> int:
    """The code of a doomed item while it is leased with its verdict; and back."""
    return 4 - status


def codes(statuses: tuple[Status, ...]) -> list[int]:
    """All codes that are shown as one of these."""
    return [code for code, shown in STATUS.items() if shown in statuses]


OPEN_CODES: Final = frozenset(codes(tuple(OPEN)))
