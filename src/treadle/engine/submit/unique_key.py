"""The key of a `unique` item: a hash of its type and arguments, the same in every process.

The arguments are written by the default codec, whatever the app's codec is: one that encrypts would never
write the same bytes twice. Dict keys and the members of sets are put in order first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from treadle.engine.registry import AnyType
from treadle.options import Input
from treadle.work_type import arguments_of

_encoder = msgspec.json.Encoder(order="sorted")


def unique_key(type: AnyType, input: Input) -> str:
    """Return the key of a Work with these arguments. EncodeError if they cannot be written."""
    tree = msgspec.json.decode(arguments_of(type).encode(input))
    written = _encoder.encode([type.name, _without_order(input, tree)])
    return f"unique:{hashlib.sha256(written).hexdigest()[:40]}"


def _without_order(value: Any, tree: Any) -> Any:
    """The tree that a value was written as, with the members of sets in order."""
    if isinstance(value, set | frozenset):
        return _sorted_lists(tree)
    if isinstance(tree, dict):
        parts = cast("dict[str, Any]", tree)
        return {name: _without_order(_part(value, name), part) for name, part in parts.items()}
    if isinstance(tree, list) and isinstance(value, list | tuple):
        values, members = cast("Sequence[Any]", value), cast("list[Any]", tree)
        if len(values) == len(members):
            return list(map(_without_order, values, members))
    return cast("Any", tree)


def _part(value: Any, name: str) -> Any:
    return (
        cast("Mapping[Any, Any]", value).get(name)
        if isinstance(value, Mapping)
        else getattr(value, name, None)
    )


def _sorted_lists(tree: Any) -> Any:
    """The tree of a set: its members may be sets too."""
    if isinstance(tree, list):
        return sorted(map(_sorted_lists, cast("list[Any]", tree)), key=_encoder.encode)
    if isinstance(tree, dict):
        return {name: _sorted_lists(part) for name, part in cast("dict[str, Any]", tree).items()}
    return tree
