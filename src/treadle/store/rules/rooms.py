"""Rooms: what a claim may hand out of types that share their room."""

from __future__ import annotations

from treadle.item import Demand


class SharedRooms:
    """What is left, during one claim, of the room that types share."""

    __slots__ = ("_left", "_types")

    def __init__(self, demand: Demand) -> None:
        self._types = {type: shared.types for shared in demand.shared for type in shared.types}
        self._left = {shared.types: shared.room for shared in demand.shared}

    def use(self, type: str, rooms: dict[str, int]) -> bool:
        """An item of this type was handed out. True: its shared room is used up, and `rooms` says that none
        of the types that share it has room."""
        types = self._types.get(type)
        if types is None:
            return False
        self._left[types] -= 1
        if self._left[types] > 0:
            return False
        rooms.update(dict.fromkeys(types, 0))
        return True
