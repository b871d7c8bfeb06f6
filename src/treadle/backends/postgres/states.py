"""States: rows of `treadle.shown` and `treadle.shown_group` as what readers see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.item import Attempt, GroupState, ItemState

from .calls import Record
from .codes import REASONS, status_of


def state_of(row: Record) -> ItemState:
    # By position, as in `treadle.shown`: by name, the driver would take twice as long.
    (
        _, id, tenant, type, queue, lane, priority, attempts, queued, due, deadline, started, ended, state,
        reason, attempt, group_id, parent, workflow, workflow_type, after, key, worker, result, input,
        options, error_type, error, waiting_for, *rest,
    ) = row  # fmt: skip
    kind, message = text_of(error_type), text_of(error)
    shown = ItemState(
        id=id,
        type=type,
        status=status_of(state),
        tenant=tenant,
        reason=REASONS[reason or 0],
        attempt=attempt,
        attempts=attempts,
        result=result,
        error_type=kind,
        error=f"{kind}: {message}" if message else kind,
        queued_at=queued,
        due_at=due,
        started_at=started,
        ended_at=ended,
        deadline=deadline,
        priority=priority,
        lane=lane,
        queue=queue,
        group_id=group_id,
        parent=parent,
        workflow=workflow,
        workflow_type=workflow_type,
        after=tuple(after or ()),
        waiting_for=tuple(waiting_for or ()),
        key=key,
        worker=worker,
        input=input,
        options=options,
    )
    if rest[0] is not None:
        shown.history = _history(rest[:6])
    return shown


def _history(columns: Sequence[Sequence[Any]]) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(attempt, text_of(type) or "", text_of(message) or "", text_of(trace) or "", at, worker)
        for attempt, type, message, trace, at, worker in zip(*columns, strict=True)
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
