"""Picking: which of the rows whose turn it is are handed out, and what happens to the others."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.item import Demand
from treadle.rules import PORTION

from .statements import Statements
from .tx import Row, Tx, array

_SQL = Statements("claim")

# Once no more can be set aside: how many lines are looked at in vain for one that need not be cleared first.
_MOST_IN_VAIN = 100


class Picking:
    """The room of one claim."""

    def __init__(self, tx: Tx, demand: Demand) -> None:
        self._tx = tx
        self._room = None if demand.types is None else dict(demand.types)
        self.left = demand.limit if self._room is None else min(demand.limit, sum(self._room.values()))
        """How many more can be handed out."""
        self._paused: set[Row] = set(tx.rows(_SQL["paused"]))
        self._parked: list[int] = []
        self._overdue: list[int] = []
        self.exhausted = False
        """It has set aside as many as one claim may. The next goes on."""
        self._given_up = 0

    def admits(self, type: str | None) -> bool:
        """Whether there is room for a type; None: for what is not parked, which is of any type."""
        return type is None or self._room is None or self._room.get(type, 0) > 0

    def is_paused(self, queue: str, tenant: str) -> bool:
        """The tenant is empty: for all of them."""
        return (queue, tenant) in self._paused

    @property
    def over(self) -> bool:
        """It makes no sense to look any further."""
        return self._given_up >= _MOST_IN_VAIN

    def give_up(self) -> None:
        """A line was left, though somebody waits in it."""
        self._given_up += 1

    def admitted(self, rows: Sequence[Row]) -> list[int]:
        """The numbers of the rows that are handed out. The others are set aside."""
        return [row[0] for row in rows if self._admits(row)]

    def _admits(self, row: Row) -> bool:
        no, _, _, type, deadline = row
        if deadline is not None and deadline <= self._tx.now:
            self._overdue.append(no)
        elif self._room is None:
            return True
        elif self._room.get(type, 0) > 0:
            self._room[type] -= 1
            return True
        else:
            self._parked.append(no)
        self.exhausted = len(self._parked) + len(self._overdue) >= PORTION
        return False

    def set_aside(self) -> None:
        """Park what is not for this worker; doom what is too late."""
        if self._parked:
            self._tx.run(_SQL["park"], array(self._parked))
        if self._overdue:
            self._tx.run(_SQL["doom"], "expired", array(self._overdue))
