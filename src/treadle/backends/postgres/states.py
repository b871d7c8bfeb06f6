"""States: rows of `treadle.shown` and `treadle.shown_group` as what readers see."""

from __future__ import annotations

from treadle.item import Attempt, GroupState, ItemState

from .calls import Record
from .codes import REASONS, status_of


def state_of(row: Record) -> ItemState:
    error_type, message = text_of(row["error_type"]), text_of(row["error"])
    state = ItemState(
        id=row["id"],
        type=row["type"],
        status=status_of(row["state"]),
        tenant=row["tenant"],
        reason=REASONS[row["reason"] or 0],
        attempt=row["attempt"],
        attempts=row["attempts"],
        result=row["result"],
        error_type=error_type,
        error=f"{error_type}: {message}" if message else error_type,
        queued_at=row["queued"],
        due_at=row["due"],
        started_at=row["started"],
        ended_at=row["ended"],
        deadline=row["deadline"],
        priority=row["priority"],
        lane=row["lane"],
        queue=row["queue"],
        group_id=row["group_id"],
        parent=row["parent"],
        workflow=row["workflow"],
        workflow_type=row["workflow_type"],
        after=tuple(row["after"] or ()),
        waiting_for=tuple(row["waiting_for"] or ()),
        key=row["key"],
        worker=row["worker"],
        input=row["input"],
        options=row["options"],
    )
    if row["h_attempt"] is not None:
        state.history = _history(row)
    return state


def _history(row: Record) -> tuple[Attempt, ...]:
    names = ("h_attempt", "h_type", "h_message", "h_trace", "h_at", "h_worker")
    return tuple(
        Attempt(attempt, text_of(type) or "", text_of(message) or "", text_of(trace) or "", at, worker)
        for attempt, type, message, trace, at, worker in zip(*(row[name] for name in names), strict=True)
    )


def group_of(row: Record, failed: ItemState | None) -> GroupState:
    return GroupState(
        id=row["id"],
        tenant=row["tenant"],
        type=row["type"],
        open=row["open"],
        value=row["value"],
        contributed=row["contributed"],
        final=row["final"],
        version=row["version"],
        ended_at=row["ended"],
        failed=failed,
    )


def text_of(data: bytes | None) -> str | None:
    """Texts that came from anywhere are stored as bytes."""
    return None if data is None else data.decode("utf-8", "surrogatepass")


def text_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
