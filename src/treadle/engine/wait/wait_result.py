"""What a wait returns: the value of an ended item or group, or the error that it ended with.

A group's members are of many types, so a stored group value names the type whose result it is. That type's
codec and declared type decode it. A folded value, and a value given inside `ctx.queue(...)`, is the result of
no type: the app's codec decodes it. A group of one item stores no value of its own: its value is the item's
result, as it is.

    \\x01 <type> \\x00 <bytes>    the result of a member of that type; if empty, by the app's codec
    <bytes>                     the result of the root item
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Final

from treadle.engine.large_values import read_value
from treadle.engine.registry import Registry
from treadle.errors import GroupFailed, NotFound, WorkCancelled, WorkFailed
from treadle.item import LIMIT_REACHED, GroupState, ItemState

_MARK: Final = b"\x01"
_END: Final = b"\x00"


def encode_group_value(type: str, data: bytes) -> bytes:
    """Mark the encoded result `data` as one of `type`; an empty `type` stands for the app's codec."""
    return b"".join((_MARK, type.encode(), _END, data))


def decode_group_value(registry: Registry, root_type: str, value: bytes | None) -> Any:
    """Decode a stored group value. None stays None."""
    if value is None:
        return None
    if not value.startswith(_MARK):
        return registry.read_result(root_type, value)
    type, _, data = value[1:].partition(_END)
    return registry.read_result(type.decode(), data)


def item_value(registry: Registry, state: ItemState | None, id: str) -> Any:
    """Return the value of an item that has ended, or raise its error. `NotFound` if there is no item."""
    if state is None:
        raise NotFound(id)
    if state.status == "success":
        result = state.result
        return registry.read_result(state.type, result if isinstance(result, bytes) else None)
    raise _error_of(WorkFailed, state)


def group_value(registry: Registry, group: GroupState) -> Any:
    """Return the value of a group that has ended. Without any value, raise the error of a failed member."""
    if group.contributed:
        value = group.value
        return decode_group_value(registry, group.type, value if isinstance(value, bytes) else None)
    if failed := group.deaths[0] if group.deaths else group.cancelled:
        raise _error_of(GroupFailed, failed, group.id)
    return None


def _error_of(kind: type[WorkFailed], state: ItemState, group_id: str | None = None) -> WorkFailed:
    group_id = group_id or state.group_id or state.id
    if state.status == "cancelled":
        why = state.error or "" if state.error_type == LIMIT_REACHED else ""
        return WorkCancelled(state.id, state.type, state.attempt, error=why, group_id=group_id)
    if state.status != "dead":
        message = f"it is {state.status}, not ended"
        return kind(state.id, state.type, message, "", state.attempt, "open", group_id=group_id)
    error_type, reason = state.error_type or "", state.reason or "exhausted"
    message = (state.error or "").removeprefix(error_type).removeprefix(": ")
    return kind(state.id, state.type, message, error_type, state.attempt, reason, group_id=group_id)


def decode_state(registry: Registry, state: ItemState) -> ItemState:
    """Decode the result of a state, in place. Users see it like this."""
    if isinstance(state.result, bytes):
        state.result = registry.read_result(state.type, state.result)
    return state


async def decode_states(registry: Registry, states: Iterable[ItemState | None]) -> list[ItemState | None]:
    """Decode the results of states, in place. One that cannot be decoded stays as it is stored, so that the
    others can be seen."""
    decoded = list(states)
    for state in decoded:
        if state is not None:
            with contextlib.suppress(Exception):  # a user's codec may raise anything
                await read_value(state.result, decode_state, registry, state)
    return decoded
