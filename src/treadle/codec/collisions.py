"""Declared sets and dicts that would take long to build: see `hashes`.

msgspec builds them while it reads. So the data is read once more before that, without types, and the hashes
in each array or object that could become such a set are counted.
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
from .hashes import SMALL, check_hashes
from .refused import Refused

SMALL_DATA: Final = 4096
"""Data that is shorter is not read twice."""

_RANDOM_HASH: Final = (str, bytes, datetime, date, time, Enum, PurePath)

read_numbers = msgspec.json.Decoder(float_hook=Decimal).decode
"""Read JSON without types, and without rounding numbers."""


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
        """Raise Refused if a set or dict in a value that was read without types would take long to build."""
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
        except Refused:
            raise
        except Exception:  # noqa: BLE001  they are of another type, or cannot be in a set
            continue
