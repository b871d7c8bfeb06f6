"""Strict lanes: which lanes are held when a claim begins, and which it holds on its way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from treadle.item import AvoidedLane, Demand

from .statements import Row, Tx, array, statements

_SQL = statements("fairness")

NONE_LEFT_OUT: Final[Mapping[str, set[AvoidedLane]]] = {}


class HeldLanes:
    """The strict lanes of one claim. A lane is held as long as an open item with `holds_lane` is in it."""

    def __init__(self, tx: Tx, demand: Demand) -> None:
        self._tx = tx
        self._demand = demand
        self.left_out: Mapping[str, set[AvoidedLane]] = {
            type: set(demand.avoid.get(type, ())) for type in demand.strict
        }
        """By strict type: the lanes that are held or to be avoided. It grows as the claim goes on."""
        self._ready: list[Row] = []
        for row in tx.rows(_SQL["lane_holders"], array(demand.strict)):
            _, is_ready, _, tenant, lane, type, _ = row
            self.left_out[type].add((tenant, lane))
            if is_ready:
                self._ready.append(row)

    def ready_holders(self) -> Iterator[Row]:
        """Number, type and deadline of the holders that the claim may hand out if it has room for them."""
        if not self._ready:
            return
        demand = self._demand
        paused = set(self._tx.rows(_SQL["paused"]))
        for no, _, queue, tenant, lane, type, deadline in self._ready:
            if (
                (demand.queues is None or queue in demand.queues)
                and (demand.tenants is None or tenant in demand.tenants)
                and (queue, "") not in paused
                and (queue, tenant) not in paused
                and not demand.avoids(type, tenant, lane)
            ):
                yield no, type, deadline
