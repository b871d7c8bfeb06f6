"""How two answers are compared.

What a backend may choose is left out: tokens and versions, its own numbers, cursors, the position of the
rotation, which of several failed members a group names, the types that a claim left, and the order of effects
of one step.
"""

from __future__ import annotations

from typing import Any

import msgspec

from treadle.item import Ended, EndedGroup, GroupState, HeartbeatReply, Lease, Outcome

HIDDEN = frozenset(("token", "ref", "fairness", "cursor", "left"))


def plain(value: Any) -> Any:
    """Convert an answer to tuples that can be compared."""
    if isinstance(value, msgspec.Struct):
        fields = {name: plain(getattr(value, name)) for name in value.__struct_fields__ if name not in HIDDEN}
        if isinstance(value, GroupState) and value.cancelled is not None:
            fields["cancelled"] = "cancelled"  # it may be any of the cancelled members
        if isinstance(value, Lease) and value.verdict is not None:
            del fields["ready_at"]  # a doomed item need not have been ready
        if isinstance(value, HeartbeatReply):
            del fields["unknown"]  # tokens; and `held` has leases of other workers here
        if isinstance(value, EndedGroup):
            del fields["failed"]  # a backend need not know it
        if isinstance(value, GroupState):
            # Those of one step may be in any order.
            fields["deaths"] = tuple(sorted(fields["deaths"], key=repr))
        if isinstance(value, (GroupState, Outcome)):
            fields["version"] = value.version > 0  # it depends on tokens
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
    """Like `plain`, but the order of effects does not matter."""
    found = plain(value)
    return _sorted(found)


def _sorted(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(sorted((_sorted(one) for one in value), key=repr))
    return value


def differences(one: Any, two: Any) -> list[str]:
    """Where two plain answers differ."""
    if isinstance(one, tuple) and isinstance(two, tuple) and len(one) == len(two):
        return [found for pair in zip(one, two, strict=True) for found in differences(*pair)]
    return [] if one == two else [f"{one!r}, not {two!r}"]


def without_claim_time(lease: Lease) -> Lease:
    """Leave out when a doomed item was claimed: backends report different times."""
    return lease if lease.verdict is None else msgspec.structs.replace(lease, claimed_at=0.0)


def as_listed(ended: Ended) -> Ended:
    """Leave out the history. Only `get` has to read it."""
    items = {ref: msgspec.structs.replace(state, history=()) for ref, state in ended.items.items()}
    return msgspec.structs.replace(ended, items=items)
