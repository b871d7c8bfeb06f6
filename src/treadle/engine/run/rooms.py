"""Rooms: which work types of a worker share room, for its claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.item import SharedRoom

from .held import BoundType


def shared_rooms(
    types: Sequence[BoundType], pools: Mapping[str, int], rooms: Mapping[str, int]
) -> tuple[SharedRoom, ...]:
    """The rooms of the pools, for types that run there one by one (a batch waits here anyway), and the rooms
    of types with several names."""
    shared: list[SharedRoom] = []
    for run_in, room in pools.items():
        here = [bound for bound in types if bound.run_in == run_in and bound.type.batch is None]
        names = frozenset(name for bound in here for name in bound.names)
        if room > 0 and len(names) > 1:
            shared.append(SharedRoom(names, room))
    for bound in types:
        in_pool = bound.pooled and bound.type.batch is None
        if bound.type.aliases and not in_pool and rooms[bound.name] > 0:
            shared.append(SharedRoom(frozenset(bound.names), rooms[bound.name]))
    return tuple(shared)
