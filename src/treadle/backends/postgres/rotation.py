"""Rotation: where the turns of queues, tenants and lanes stand, as one worker has seen them.

It is what was served last: the queue, the tenant of each queue, the lane of each tenant.
The next claim goes on behind them. It travels with the demand, so that the store keeps nothing.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

MOST_TENANTS: Final = 10_000
"""Tenants per queue whose lanes are remembered. Beyond that, the rest start with their first lane again."""

Names: TypeAlias = Sequence[str] | None
Cursors: TypeAlias = tuple[str | None, Names, Names, Names, Names, Names]


class Turns:
    """The turns within one queue."""

    __slots__ = ("lanes", "tenant", "tenants")

    def __init__(self) -> None:
        self.tenant: str | None = None
        self.tenants: list[str] = []
        """Those with a lane to remember, sorted."""
        self.lanes: dict[str, str] = {}

    def served(self, tenant: str, lane: str) -> None:
        self.tenant = tenant
        if tenant in self.lanes:
            self.lanes[tenant] = lane
        elif len(self.tenants) < MOST_TENANTS:
            insort(self.tenants, tenant)
            self.lanes[tenant] = lane

    def next_tenants(self, limit: int) -> Iterable[str]:
        """Those that a claim of so many items can come to."""
        tenants = self.tenants
        if len(tenants) <= limit:
            return tenants
        begin = 0 if self.tenant is None else bisect_right(tenants, self.tenant)
        return [*(tenants + tenants)[begin : begin + limit], tenants[begin - 1]]


class Rotation:
    __slots__ = ("queue", "queues")

    def __init__(self) -> None:
        self.queue: str | None = None
        self.queues: dict[str, Turns] = {}

    def served(self, lines: Sequence[tuple[str, str, str]]) -> None:
        """Items of these queues, tenants and lanes were handed out, in this order."""
        for queue, tenant, lane in lines:
            turns = self.queues.get(queue)
            if turns is None:
                turns = self.queues[queue] = Turns()
            turns.served(tenant, lane)
        if lines:
            self.queue = lines[-1][0]

    def cursors(self, limit: int) -> Cursors:
        """What the store needs to know for a claim of so many."""
        if not self.queues:
            return (None, None, None, None, None, None)
        queues = list(self.queues)
        tenants = [turns.tenant or "" for turns in self.queues.values()]
        lanes = [
            (queue, tenant, turns.lanes[tenant])
            for queue, turns in self.queues.items()
            for tenant in turns.next_tenants(limit)
        ]
        if not lanes:
            return (self.queue, queues, tenants, None, None, None)
        within, whose, which = zip(*lanes, strict=True)
        return (self.queue, queues, tenants, within, whose, which)
