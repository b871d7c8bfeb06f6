"""Strict lanes: which item holds a lane, and which holders are ready to be handed out again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from treadle.item import AvoidedLane, Demand

from .rows import Row


class StrictLanes:
    def __init__(self) -> None:
        self.holders: dict[str, dict[AvoidedLane, Row]] = {}
        """By type, then by tenant and lane: the open row that holds the lane."""
        self.ready: dict[Row, None] = {}
        """The holders that became ready again, in that order. Some may have been handed out since."""

    def of_types(self, types: Iterable[str]) -> dict[str, dict[AvoidedLane, Row]]:
        """The holders of these types. The answer changes with them."""
        return {type: self.holders.setdefault(type, {}) for type in types}

    def hold(self, row: Row) -> None:
        """The row was handed out: it holds its lane until it has ended."""
        kind = row.kind
        row.held_lane = kind.type, kind.tenant, kind.lane
        self.holders.setdefault(kind.type, {})[kind.tenant, kind.lane] = row
        self.ready.pop(row, None)

    def free(self, row: Row) -> None:
        """The row has ended, or is gone."""
        if row.held_lane is None:
            return
        type, tenant, lane = row.held_lane
        row.held_lane = None
        self.ready.pop(row, None)
        del self.holders[type][tenant, lane]

    def ready_for(self, demand: Demand, paused: set[tuple[str, str | None]]) -> Iterator[Row]:
        """The ready holders that a claim may hand out, if it has room for their types."""
        for row in [row for row in self.ready if row.kind.type in demand.strict]:
            kind = row.kind
            if row.status != "ready" or row.verdict is not None:
                del self.ready[row]
            elif (
                (demand.queues is None or kind.queue in demand.queues)
                and (demand.tenants is None or kind.tenant in demand.tenants)
                and (kind.queue, None) not in paused
                and (kind.queue, kind.tenant) not in paused
                and not demand.avoids(kind.type, kind.tenant, kind.lane)
            ):
                yield row
