"""Enums with numbers. msgspec writes and reads their members, and refuses them where it validates a value
(`Expected int, got Color`). So they are validated as their numbers."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any, Final

from msgspec import inspect as info


def numbered(parts: Iterable[info.Type]) -> frozenset[type[Enum]]:
    """Return the enums and flags among the parts of a type whose members are no `int` or `str` themselves."""
    enums = [part.cls for part in parts if isinstance(part, info.EnumType)]
    return frozenset(each for each in enums if not issubclass(each, int | str))


def as_numbers(value: Any, enums: AbstractSet[type[Enum]]) -> Any:
    """Return `value` with the members of these enums replaced by what they stand for."""
    kind = value.__class__
    if kind in enums:
        return value.value
    if kind in _REMADE:
        return kind([as_numbers(each, enums) for each in value])
    if kind is dict:
        return {as_numbers(key, enums): as_numbers(each, enums) for key, each in value.items()}
    if hasattr(kind, "_make"):  # a named tuple
        return kind._make([as_numbers(each, enums) for each in value])
    return value


_REMADE: Final[frozenset[Any]] = frozenset((list, set, frozenset, tuple))
