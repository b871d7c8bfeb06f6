"""What is said of an item in a list: how often it was tried, and the instant that matters."""

from __future__ import annotations

from .item import ItemState


def attempt_words(item: ItemState) -> str:
    """How many attempts have begun, and how many it may have."""
    if item.attempt == 0:
        return ""
    # Lost attempts do not count among those that may fail: with one of them there may be more.
    ends_well = item.status in ("running", "success", "cancelled", "dead") and item.reason != "lease_lost"
    counts = item.attempts is not None and item.attempt <= min(item.attempts, item.failures + ends_well)
    return f"{item.attempt}/{item.attempts}" if counts else str(item.attempt)


def matters_at(item: ItemState) -> float | None:
    """The instant that matters in its status: when it ended, began, is due, became ready or was queued."""
    match item.status:
        case "success" | "dead" | "cancelled":
            return item.ended_at
        case "running":
            return item.started_at or item.claimed_at
        case "scheduled":
            return item.due_at
        case "ready":
            return max(item.due_at, item.queued_at)
        case "blocked":
            return item.queued_at
