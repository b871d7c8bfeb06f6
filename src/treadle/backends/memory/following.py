"""Following: what a verb sets in motion besides what it was asked for, as it adds up."""

from __future__ import annotations

from treadle.item import Closed, Effects, Released

NOTHING = Effects()


class Following:
    __slots__ = ("closed", "doomed", "released")

    def __init__(self) -> None:
        self.released: list[Released] = []
        self.closed: list[Closed] = []
        self.doomed = 0

    def effects(self) -> Effects:
        if not self.released and not self.closed and not self.doomed:
            return NOTHING
        return Effects(tuple(self.released), tuple(self.closed), self.doomed)
