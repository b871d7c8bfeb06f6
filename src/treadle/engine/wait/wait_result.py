"""What a wait returns: the value of an ended item or group, or the error that it ended with.

A group's members are of many types, so a stored group value names the type whose result it is. That type's
codec and declared type decode it. A folded value, and a value given inside `ctx.queue(...)`, is the result of
no type: the app's codec decodes it, and it names the type that gave it, which says what is secret in it. A
group of one item stores no value of its own: its value is the item's result, as it is.

    \\x01 <type> \\x00 <bytes>    the result of a member of that type
    \\x02 <type> \\x00 <bytes>    a value that a member of that type gave, by the app's codec
    <bytes>                     the result of the root item
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from treadle.backend import Backend
from treadle.base.headers import headers_of
from treadle.bulk_action import BULK_TYPE
from treadle.codec.json_codec import read_value
from treadle.define.condition import shown_names
from treadle.define.work import WorkTypeBase
from treadle.engine.registry import Registry
from treadle.errors import Death, GroupFailed, NotFound, WorkCancelled, WorkFailed
from treadle.item import GROUP_TYPE, LIMIT_REACHED, GroupState, ItemState
from treadle.store.reads import deaths_of, group_ended

_RESULT: Final = b"\x01"
_GIVEN: Final = b"\x02"
_END: Final = b"\x00"


class ValueSource(NamedTuple):
    """What a stored group value is."""

    type: str
    """The type of the member that gave it."""
    is_result: bool
    """Whether it is a result of this type. Otherwise the app's codec decodes it."""
    data: bytes


WITH_GROUP_VALUE: Final = (GROUP_TYPE, BULK_TYPE)
"""Types whose items have the value of a group as their result."""


def encode_group_value(type: str, data: bytes, *, is_result: bool) -> bytes:
    """Mark encoded data as a result of `type`, or as a value that a member of `type` gave."""
    return b"".join((_RESULT if is_result else _GIVEN, type.encode(), _END, data))


def decode_group_value(registry: Registry, root_type: str, value: bytes | None) -> Any:
    """Decode a stored group value. None stays None."""
    if value is None:
        return None
    type, is_result, data = value_source(root_type, value)
    return registry.read_result(type, data) if is_result else registry.codec.decode(data)


def value_source(root_type: str, value: bytes) -> ValueSource:
    """What a stored group value is."""
    mark = value[:1]
    if mark not in (_RESULT, _GIVEN):
        return ValueSource(root_type, True, value)
    type, _, data = value[1:].partition(_END)
    return ValueSource(type.decode(), mark == _RESULT, data)


def item_value(registry: Registry, state: ItemState | None, id: str, of: WorkTypeBase | None = None) -> Any:
    """Return the value of an item that has ended, or raise its error. `NotFound` if there is no item. of: its
    type, if the caller has it."""
    if state is None:
        raise NotFound(id)
    if state.status == "success":
        return _own_value(registry, state.type, state.result, of)
    raise item_error(state)


def item_error(state: ItemState) -> WorkFailed:
    """The error of an item that has not succeeded."""
    if state.status == "cancelled":
        why = state.error or "" if state.error_type == LIMIT_REACHED else ""
        group_id = state.group_id or state.id
        return WorkCancelled(state.id, state.type, state.attempt, error=why, group_id=group_id)
    return WorkFailed(*error_fields(state), group_id=state.group_id or state.id)


def error_fields(state: ItemState) -> tuple[str, str, str, str, int, str]:
    """The arguments of the error of an item: id, type, error, error_type, attempts and reason."""
    if state.status != "dead":
        return state.id, state.type, f"it is {state.status}, not ended", "", state.attempt, "open"
    error_type = state.error_type or ""
    message = (state.error or "").removeprefix(error_type).removeprefix(": ")
    return state.id, state.type, message, error_type, state.attempt, state.reason or "exhausted"


def group_value(registry: Registry, group: GroupState) -> Any:
    """Return the value of a group. None if no member contributed one."""
    value = group.value
    if not group.contributed or not isinstance(value, bytes):
        return None
    return decode_group_value(registry, group.type, value)


def _own_value(registry: Registry, type: str, data: object, of: WorkTypeBase | None = None) -> Any:
    """Decode the result of an item. That of an item that closes a nested group, or of a portion of a bulk
    action, is the value of a group."""
    if not isinstance(data, bytes):
        return None
    if type in WITH_GROUP_VALUE:
        return decode_group_value(registry, type, data)
    return registry.read_result(type, data, of)


def decode_state(registry: Registry, state: ItemState) -> ItemState:
    """Decode the result and the headers of a state, in place. Users see it like this."""
    if state.options:
        state.headers = headers_of(state.options)
    if state.after:
        state.after, state.waiting_for = shown_names(state.after), shown_names(state.waiting_for)
    if isinstance(state.result, bytes):
        state.result = _own_value(registry, state.type, state.result)
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


async def group_outcome(
    backend: Backend, registry: Registry, group: GroupState, *, partial: bool = False
) -> Any:
    """Return the value of an ended group. `GroupFailed` if deaths failed it, unless its value is final.
    `WorkCancelled` if it has no value, and a member was cancelled. partial: return the value in any case.
    """
    end = "succeeded" if partial else group_ended(group)
    if end == "failed":
        raise await group_failure(backend, registry, group)
    if end == "cancelled" and group.cancelled is not None:
        raise item_error(group.cancelled)
    return await read_value(group.value, group_value, registry, group)


async def group_failure(backend: Backend, registry: Registry, group: GroupState) -> GroupFailed:
    """The error of a group that failed."""
    deaths, count = await deaths_of(backend, group)
    value = None
    with contextlib.suppress(Exception):  # a user's codec may raise anything: the deaths matter more
        value = await read_value(group.value, group_value, registry, group)
    failed = [Death(each.id, each.type, each.reason or "exhausted", each.error or "") for each in deaths]
    first = error_fields(deaths[0]) if deaths else (group.id, group.type, "", "", 0, "exhausted")
    return GroupFailed(*first, group_id=group.id, value=value, failed=failed, count=count)
