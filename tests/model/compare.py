"""How two answers are compared.

What a backend may choose is taken out: tokens, its own numbers, cursors, where the turns of lanes stand,
which of several members that failed stands for a group, and the order of what happens in one step.
"""

from __future__ import annotations

from typing import Any

import msgspec

from treadle.item import Ended, GroupState, Lease

HIDDEN = frozenset(("token", "ref", "rotation", "cursor"))


def plain(value: Any) -> Any:
    """What can be compared."""
    if isinstance(value, msgspec.Struct):
        fields = {name: plain(getattr(value, name)) for name in value.__struct_fields__ if name not in HIDDEN}
        if isinstance(value, GroupState) and value.failed is not None:
            fields["failed"] = value.failed.status  # any one of those that failed
        return (type(value).__name__, tuple(sorted(fields.items())))
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return tuple(sorted((repr(key), plain(one)) for key, one in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(plain(one) for one in value)
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(repr(one) for one in value))
    return value


def unordered(value: Any) -> Any:
    """The same, whatever the order of what happened in one step."""
    found = plain(value)
    return _sorted(found)


def _sorted(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(sorted((_sorted(one) for one in value), key=repr))
    return value


def differences(one: Any, two: Any) -> list[str]:
    """Where two answers differ, once they are plain."""
    if isinstance(one, tuple) and isinstance(two, tuple) and len(one) == len(two):
        return [found for pair in zip(one, two, strict=True) for found in differences(*pair)]
    return [] if one == two else [f"{one!r}, not {two!r}"]


def known_of(lease: Lease) -> Lease:
    """When an orphan that is not to be run was claimed: each backend says something else."""
    return lease if lease.verdict is None else msgspec.structs.replace(lease, claimed_at=0.0)


def as_listed(ended: Ended) -> Ended:
    """Only `get` has to read the history."""
    items = {ref: msgspec.structs.replace(state, history=()) for ref, state in ended.items.items()}
    return msgspec.structs.replace(ended, items=items)
