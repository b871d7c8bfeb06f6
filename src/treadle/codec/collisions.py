"""Sets and dicts whose elements all have the same hash: each insertion would compare with all before it.

The hashes of texts are random in each process. Those of numbers and of UUIDs are not: 26,000 UUIDs with one
hash, in one payload of 1 MiB, took 199 seconds to read. So the hashes of large sets and dicts are counted
before they are built. treadle itself writes no set with equal elements.

Declared sets are built by msgspec while it reads (`HashedTypes`). So the data is read once more before that,
without types, and the hashes in each array or object that could become such a set are counted.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final, Literal

import msgspec

from . import hooks
from .bad_value import BadValue

SMALL: Final = 64
"""Elements up to which none are counted: comparing each with all others is quick."""
MOST: Final = 64
"""Distinct elements that may have one hash. (Up to 35 powers of 2 do.)"""
SMALL_DATA: Final = 4096
"""Data that is shorter is not read twice."""

_RANDOM_HASH: Final = (str, bytes, datetime, date, time, Enum, PurePath)

read_numbers = msgspec.json.Decoder(float_hook=Decimal).decode
"""Read JSON without types, and without rounding numbers."""


def check_hashes(values: Collection[Any]) -> None:
    """Raise BadValue if a set or dict of these values would take long to build."""
    if len(values) <= SMALL:
        return
    seen: dict[int, int] = {}
    # It stops early: since Python 3.12 a Fraction keeps its hash in a cache, whose keys have one hash too.
    for value in values:
        key = hash(value)
        seen[key] = times = seen.get(key, 0) + 1
        if times > MOST:
            raise BadValue(f"more than {MOST} elements of a set or keys of a dict have the same hash")


def checked(values: Collection[Any]) -> Collection[Any]:
    """Return `values`, the elements of a set."""
    check_hashes(values)
    return values


class HashedTypes:
    """The types inside a declared type whose values are elements of sets, or keys of dicts."""

    def __init__(self, tp: Any) -> None:
        self._elements: list[Any] = []
        self._keys: list[Any] = []
        self._collect(tp)

    def __bool__(self) -> bool:
        return bool(self._elements or self._keys)

    def _collect(self, root: Any) -> None:
        seen: dict[int, Any] = {}  # holds what it has seen: another object could get the address
        waiting = [root]
        while waiting:
            tp = waiting.pop()
            if id(tp) in seen:
                continue
            seen[id(tp)] = tp
            origin, args = typing.get_origin(tp) or tp, typing.get_args(tp)
            if isinstance(origin, type) and issubclass(origin, AbstractSet):
                _add(self._elements, args[0] if args else Any)
            elif isinstance(origin, type) and issubclass(origin, Mapping) and args and args[0] is not Any:
                _add(self._keys, args[0])
            waiting.extend(args)
            waiting.extend(_fields(origin))

    def check(self, tree: Any) -> None:
        """Raise BadValue if a set or dict in a value that was read without types would take long to build."""
        waiting = [tree]
        while waiting:
            part = waiting.pop()
            if isinstance(part, Mapping):
                waiting.extend(_containers(part.values()))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
                _check_each(part, self._keys)  # pyright: ignore[reportUnknownArgumentType]
            elif isinstance(part, list | tuple):
                waiting.extend(_containers(part))  # pyright: ignore[reportUnknownArgumentType]
                _check_each(part, self._elements)  # pyright: ignore[reportUnknownArgumentType]


def _add(found: list[Any], tp: Any) -> None:
    plain = typing.get_origin(tp) or tp
    is_random = plain is Literal or (isinstance(plain, type) and issubclass(plain, _RANDOM_HASH))
    if not is_random and tp not in found:
        found.append(tp)


def _fields(cls: Any) -> Iterable[Any]:
    """Return the types of the fields of a class."""
    if not isinstance(cls, type):
        return ()
    members = getattr(cls, "members", None)
    if isinstance(members, Mapping):  # a Choice, whose module cannot be imported here
        return [getattr(member, "type", None) for member in members.values()]  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType, reportUnknownVariableType]
    try:
        return typing.get_type_hints(typing.cast("Any", cls), include_extras=True).values()
    except Exception:  # noqa: BLE001  a class of any kind, with any annotations
        return ()


def _containers(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, list | tuple | Mapping)]


def _check_each(values: Collection[Any], types: list[Any]) -> None:
    """Count the hashes of values that may be of one of these types. A list may hold one value many times, so
    only distinct texts count."""
    if len(values) <= SMALL or not types:
        return
    distinct = list({str(value): value for value in values}.values())
    for tp in types:
        several: Any = list.__class_getitem__(tp)
        try:
            check_hashes(msgspec.convert(distinct, several, strict=False, dec_hook=hooks.read))
        except BadValue:
            raise
        except Exception:  # noqa: BLE001  they are of another type, or cannot be in a set
            continue
