"""Following: what a verb sets in motion besides what it was asked for, as it adds up."""

from __future__ import annotations

from treadle.item import Effects, EndedGroup, ReleasedItem

from .fading import Bundle

NOTHING = Effects()


class Following:
    __slots__ = ("bundle", "closed", "doomed", "released")

    def __init__(self) -> None:
        self.released: list[ReleasedItem] = []
        self.closed: list[EndedGroup] = []
        self.doomed = 0
        self.bundle: Bundle | None = None
        """For plain items that end in this call."""

    def effects(self) -> Effects:
        if not self.released and not self.closed and not self.doomed:
            return NOTHING
        return Effects(tuple(self.released), tuple(self.closed), self.doomed)
