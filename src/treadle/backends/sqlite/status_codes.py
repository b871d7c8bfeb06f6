"""The numbers that stand for statuses in the tables."""

from __future__ import annotations

from typing import Final

from treadle.item import SettlementKind, Status

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
"""The status that is shown. A doomed item keeps the one it had, also while it is leased with its verdict."""

OUTCOME: Final[dict[SettlementKind, int]] = {"success": SUCCESS, "dead": DEAD, "cancelled": CANCELLED}
"""The code of an item that a settlement ends."""


def doomed(status: int) -> int:
    """The code of a doomed item that waited with this code. A freed item is ready."""
    return {BLOCKED: -1, SCHEDULED: -2}.get(status, -3)


def leased(status: int) -> int:
    """The code of a doomed item while it is leased with its verdict, and back."""
    return 4 - status


def codes(statuses: tuple[Status, ...]) -> list[int]:
    """All codes that are shown as one of these statuses."""
    return [code for code, shown in STATUS.items() if shown in statuses]
