"""WorkState: an item as the work router shows it: what a caller needs, and nothing about the fleet."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from treadle.engine.registry import Registry
from treadle.item import TERMINAL, DeathReason, GroupState, ItemState, Status
from treadle.item_json import exact_json, read_group_value, read_result
from treadle.timing import MAX_INSTANT, MIN_INSTANT, to_datetime

from .work_access import WorkAccess


@dataclass(frozen=True, kw_only=True)
class WorkGroup:
    """The group of a root item: the item and everything that it queued."""

    open: int
    """Members that have not ended."""
    failed: int
    """Dead members whose death no other member tolerates."""
    ended_at: datetime | None
    value: Any
    """The value of the group so far. Null if it is not shown."""


@dataclass(frozen=True, kw_only=True)
class WorkState:
    """Work as it is now."""

    id: str
    type: str
    status: Status
    ended: bool
    """Whether it has ended, and everything that it queued. Then nothing changes any more."""
    reason: DeathReason | None
    """Why it is dead."""
    attempt: int
    """How many attempts have begun."""
    queued_at: datetime | None
    due_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    result: Any
    """What it returned. Null if it has not, or if it is not shown."""
    error_type: str | None
    """The class of the last error. Null if errors are not shown."""
    error: str | None
    """The last error. Null if errors are not shown."""
    group: WorkGroup | None
    """Null for work that other work has queued."""


def work_state(
    registry: Registry, access: WorkAccess, item: ItemState, group: GroupState | None
) -> WorkState:
    """An item as a caller may see it. `group`: the one whose root it is, if it is one."""
    ended = item.status in TERMINAL and (group is None or group.open == 0)
    return WorkState(
        id=item.id,
        type=item.type,
        status=item.status,
        ended=ended,
        reason=item.reason,
        attempt=item.attempt,
        queued_at=_instant(item.queued_at),
        due_at=_instant(item.due_at),
        started_at=_instant(item.started_at),
        ended_at=_instant(item.ended_at),
        result=exact_json(read_result(registry, item)[0]) if access.results else None,
        error_type=item.error_type if access.errors else None,
        error=item.error if access.errors else None,
        group=None if group is None else _work_group(registry, access, group),
    )


def _work_group(registry: Registry, access: WorkAccess, group: GroupState) -> WorkGroup:
    return WorkGroup(
        open=group.open,
        failed=group.failed,
        ended_at=_instant(group.ended_at),
        value=exact_json(read_group_value(registry, group)[0]) if access.results else None,
    )


def _instant(at: float | None) -> datetime | None:
    return None if at is None else to_datetime(min(max(at, MIN_INSTANT), MAX_INSTANT))


def state_json(state: WorkState | WorkGroup) -> dict[str, Any]:
    """It as JSON values. Instants are ISO 8601 in UTC, always with microseconds."""
    return {each.name: _json(getattr(state, each.name)) for each in fields(state)}


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%S.%f}Z"
    return state_json(value) if isinstance(value, WorkGroup) else value
