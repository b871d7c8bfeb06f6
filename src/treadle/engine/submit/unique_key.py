"""The key of a `unique` item: a hash of its type and arguments, the same in every process.

The arguments are written by the default codec, not by the app's: a codec that encrypts would never write the
same bytes twice. Dict keys and the members of sets are put in order first.
"""

from __future__ import annotations

import hashlib

import msgspec
from typing_extensions import TypeIs

from treadle.codec.tags import MARK
from treadle.define.work_type import arguments_of
from treadle.engine.registry import AnyType
from treadle.options import Input

_encoder = msgspec.json.Encoder(order="sorted")


def unique_key(type: AnyType, input: Input) -> str:
    """Return the key of a Work with these arguments. EncodeError if they cannot be written."""
    tree = msgspec.json.decode(arguments_of(type).encode(input))
    written = _encoder.encode([type.name, _without_order(input, tree)])
    return f"unique:{hashlib.sha256(written).hexdigest()[:40]}"


def _without_order(value: object, tree: object) -> object:
    """The tree that a value was written as, with the members of sets in order."""
    if isinstance(value, set | frozenset):
        return _sorted_lists(tree)
    if (
        _is_dict(value)
        and _is_dict(tree)
        and tree.get(MARK) == "dict"
        and _is_list(pairs := tree.get("value"))
    ):
        # A dict whose keys are no text is written as a list of pairs.
        parts = map(_without_order, value.items(), pairs)
        return {**tree, "value": sorted(parts, key=_encoder.encode)}
    if _is_dict(tree):
        return {name: _without_order(_part(value, name), part) for name, part in tree.items()}
    if _is_list(tree) and _is_sequence(value) and len(value) == len(tree):
        return list(map(_without_order, value, tree))
    return tree


def _part(value: object, name: str) -> object:
    return value.get(name) if _is_dict(value) else getattr(value, name, None)


def _sorted_lists(tree: object) -> object:
    """The tree of a set: its members may be sets too."""
    if _is_list(tree):
        return sorted(map(_sorted_lists, tree), key=_encoder.encode)
    if _is_dict(tree):
        return {name: _sorted_lists(part) for name, part in tree.items()}
    return tree


def _is_dict(value: object) -> TypeIs[dict[str, object]]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeIs[list[object]]:
    return isinstance(value, list)


def _is_sequence(value: object) -> TypeIs[list[object] | tuple[object, ...]]:
    return isinstance(value, list | tuple)
