"""How a group's value is written.

A group's members are of many types, so its value says whose result it is: that type's codec and declared
type read it back as it was. Folds, and values given inside `ctx.queue(...)`, are nobody's result: the app's
codec writes them. A group of one has no value of its own: it is the item's result, as it is.

    \\x01 <type> \\x00 <bytes>    the result of a member of that type; if empty, by the app's codec
    <bytes>                     the result of the root
"""

from __future__ import annotations

from typing import Any, Final

from treadle.engine.registry import Registry
from treadle.errors import GroupFailed, NotFound, WorkCancelled, WorkFailed
from treadle.item import GroupState, ItemState

_MARK: Final = b"\x01"
_END: Final = b"\x00"


def wrap(type: str, data: bytes) -> bytes:
    return b"".join((_MARK, type.encode(), _END, data))


def read(registry: Registry, root_type: str, value: bytes | None) -> Any:
    """The value, decoded; None where there is none."""
    if value is None:
        return None
    if not value.startswith(_MARK):
        return registry.read_result(root_type, value)
    type, _, data = value[1:].partition(_END)
    return registry.read_result(type.decode(), data)


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
        return read(registry, group.type, value if isinstance(value, bytes) else None)
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
