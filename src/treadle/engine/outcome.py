"""What waiting for an item, or for a group, gives: its value, or the error that says why there is none."""

from __future__ import annotations

from typing import Any

from treadle.errors import GroupFailed, NotFound, WorkCancelled, WorkFailed
from treadle.item import GroupState, ItemState

from . import values
from .registry import Registry


def value_of(registry: Registry, state: ItemState | None, id: str) -> Any:
    """The value of an item that has ended. `NotFound` with its id if there is none."""
    if state is None:
        raise NotFound(id)
    if state.status == "success":
        result = state.result
        return registry.read_result(state.type, result if isinstance(result, bytes) else None)
    raise _failure(WorkFailed, state)


def group_value_of(registry: Registry, group: GroupState) -> Any:
    """The value of a group that has ended. One that nobody contributed to failed if a member did."""
    if group.contributed:
        value = group.value
        return values.read(registry, group.type, value if isinstance(value, bytes) else None)
    if group.failed is not None:
        raise _failure(GroupFailed, group.failed, group.id)
    return None


def _failure(kind: type[WorkFailed], state: ItemState, group_id: str | None = None) -> WorkFailed:
    group_id = group_id or state.group_id or state.id
    if state.status == "cancelled":
        return WorkCancelled(state.id, state.type, state.attempt, group_id=group_id)
    if state.status != "dead":
        return kind(
            state.id,
            state.type,
            f"it is {state.status}, not ended",
            "",
            state.attempt,
            "open",
            group_id=group_id,
        )
    error_type = state.error_type or ""
    message = (state.error or "").removeprefix(error_type).removeprefix(": ")
    return kind(
        state.id,
        state.type,
        message,
        error_type,
        state.attempt,
        state.reason or "exhausted",
        group_id=group_id,
    )
