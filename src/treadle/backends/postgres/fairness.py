"""Fairness: what one worker was served last, so that its next claim continues behind that.

It holds the queue, the tenant of each queue, and the lane of each tenant. It travels with the demand, so that
the store keeps nothing.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

MOST_TENANTS: Final = 10_000
"""Tenants per queue whose lanes are remembered. Beyond that, the rest start with their first lane again."""

Names: TypeAlias = Sequence[str] | None
LastServed: TypeAlias = tuple[str | None, Names, Names, Names, Names, Names]
"""The columns of `treadle.last_served`."""


class QueueFairness:
    """What was served last within one queue."""

    __slots__ = ("lanes", "tenant", "tenants")

    def __init__(self) -> None:
        self.tenant: str | None = None
        self.tenants: list[str] = []
        """Those whose lane is remembered, sorted."""
        self.lanes: dict[str, str] = {}

    def served(self, tenant: str, lane: str) -> None:
        self.tenant = tenant
        if tenant in self.lanes:
            self.lanes[tenant] = lane
        elif len(self.tenants) < MOST_TENANTS:
            insort(self.tenants, tenant)
            self.lanes[tenant] = lane

    def next_tenants(self, limit: int) -> Iterable[str]:
        """Those that a claim of `limit` items can reach."""
        tenants = self.tenants
        if len(tenants) <= limit:
            return tenants
        begin = 0 if self.tenant is None else bisect_right(tenants, self.tenant)
        return [*(tenants + tenants)[begin : begin + limit], tenants[begin - 1]]


class PostgresFairness:
    __slots__ = ("queue", "queues")

    def __init__(self) -> None:
        self.queue: str | None = None
        self.queues: dict[str, QueueFairness] = {}

    def served(self, lines: Sequence[tuple[str, str, str]]) -> None:
        """Remember that items of these queues, tenants and lanes were leased, in this order."""
        if lines and lines.count(lines[0]) == len(lines):
            lines = lines[:1]  # one line, as in most claims
        for queue, tenant, lane in lines:
            within = self.queues.get(queue)
            if within is None:
                within = self.queues[queue] = QueueFairness()
            within.served(tenant, lane)
        if lines:
            self.queue = lines[-1][0]

    def last_served(self, limit: int) -> LastServed:
        """What the store needs to know for a claim of `limit` items."""
        if not self.queues:
            return (None, None, None, None, None, None)
        queues = list(self.queues)
        tenants = [within.tenant or "" for within in self.queues.values()]
        lanes = [
            (queue, tenant, within.lanes[tenant])
            for queue, within in self.queues.items()
            for tenant in within.next_tenants(limit)
        ]
        if not lanes:
            return (self.queue, queues, tenants, None, None, None)
        lane_queues, lane_tenants, last_lanes = zip(*lanes, strict=True)
        return (self.queue, queues, tenants, lane_queues, lane_tenants, last_lanes)
