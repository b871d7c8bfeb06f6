"""Enums with numbers. msgspec writes and reads their members, and refuses them where it validates a value
(`Expected int, got Color`). So they are validated as their numbers."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any, cast

from msgspec import inspect as info

from .lower import parts


def numbered(root: info.Type) -> frozenset[type[Enum]]:
    """Return the enums and flags inside a type whose members are numbers, and no `int` themselves."""
    enums = [part.cls for part in parts(root) if isinstance(part, info.EnumType)]
    return frozenset(each for each in enums if not issubclass(each, int | str))


def as_numbers(value: Any, enums: AbstractSet[type[Enum]]) -> Any:
    """Return `value` with the members of these enums replaced by what they stand for."""
    kind = cast("type[Any]", type(value))
    if kind in enums:
        return value.value
    if kind in (list, set, frozenset, tuple):
        return kind([as_numbers(each, enums) for each in value])
    if kind is dict:
        return {as_numbers(key, enums): as_numbers(each, enums) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(kind, "_make"):
        return kind._make(as_numbers(each, enums) for each in cast("tuple[Any, ...]", value))
    return value
