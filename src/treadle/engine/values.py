"""How a group's value is written.

A group's members are of many types, so its value says whose result it is: that type's codec and declared
type read it back as it was. Folds, and values given inside `ctx.queue(...)`, are nobody's result: the app's
codec writes them. A group of one has no value of its own: it is the item's result, as it is.

    \\x01 <type> \\x00 <bytes>    the result of a member of that type; if empty, by the app's codec
    <bytes>                     the result of the root
"""

from __future__ import annotations

from typing import Any, Final

from .registry import Registry

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
