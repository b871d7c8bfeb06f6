"""ClaimRoom: how much one claim may still hand out."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.item import Demand
from treadle.store.rules import PORTION
from treadle.store.rules.rooms import SharedRooms

from .statements import Row
from .strict_lanes import NONE_LEFT_OUT, HeldLanes


class ClaimRoom:
    """How many items of each type a claim may still hand out, and the rows that it sets aside."""

    def __init__(self, demand: Demand, now: float, strict: HeldLanes | None = None) -> None:
        self._now = now
        self.left_out = NONE_LEFT_OUT if strict is None else strict.left_out
        """By strict type: the lanes that are left out."""
        self._leaves_out_some = bool(demand.avoid or self.left_out)
        self._demand = demand
        self._types = None if demand.types is None else dict(demand.types)
        self._shared = SharedRooms(demand) if demand.shared else None
        self.left = demand.limit if self._types is None else min(demand.limit, sum(self._types.values()))
        self.parked: list[int] = []
        self.overdue: list[int] = []
        self.exhausted = False
        self.blocked_lanes = 0
        """Lanes that were left although items wait in them: no more rows in front can be set aside."""

    def admits(self, type: str | None) -> bool:
        """Whether there is room for a type. None: for rows that are not parked, which are of any type."""
        return type is None or self._types is None or self._types.get(type, 0) > 0

    def admits_in(self, type: str | None, tenant: str, lane: str) -> bool:
        """The same for items in this lane, which may be strict and held."""
        return self.admits(type) and (tenant, lane) not in self.left_out.get(type or "", ())

    def admitted_holders(self, strict: HeldLanes) -> list[int]:
        """The numbers of the items that hold their lanes, and are handed out again."""
        nos: list[int] = []
        for no, type, deadline in strict.ready_holders():
            if deadline is not None and deadline <= self._now:
                self.overdue.append(no)
            elif len(nos) < self.left and self._use_room(type):
                nos.append(no)
        return nos

    def admitted(self, rows: Sequence[Row], tenant: str, lane: str) -> list[Row]:
        """The rows that are handed out. The others are set aside."""
        return [row for row in rows if self._admit(row, tenant, lane)]

    def _admit(self, row: Row, tenant: str, lane: str) -> bool:
        no, _, _, type, deadline = row[:5]
        if deadline is not None and deadline <= self._now:
            self.overdue.append(no)
        elif self._leaves_out_some and self._leaves_out(type, tenant, lane):
            self.parked.append(no)
        elif self._use_room(type):
            if type in self.left_out:
                self.left_out[type].add((tenant, lane))
            return True
        else:
            self.parked.append(no)
        self.exhausted = len(self.parked) + len(self.overdue) >= PORTION
        return False

    def _leaves_out(self, type: str, tenant: str, lane: str) -> bool:
        return (tenant, lane) in self.left_out.get(type, ()) or self._demand.avoids(type, tenant, lane)

    def _use_room(self, type: str) -> bool:
        """Take room for an item of this type. False: there is none."""
        if self._types is None:
            return True
        if self._types.get(type, 0) <= 0:
            return False
        self._types[type] -= 1
        if self._shared is not None:
            self._shared.use(type, self._types)
        return True
