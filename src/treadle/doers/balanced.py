"""At most `max` at once, fair between the lanes."""

from __future__ import annotations

from bisect import insort
from collections import deque
from heapq import heapify, heappop, heappush

from treadle.item import Ref

from .bounded import BoundedDoer, Order, WaitingTask

SLACK = 64
"""Outdated ranks stay in the heap until they reach its top. The heap is rebuilt when it holds more than twice
as many ranks as there are lanes, and this many besides."""


class BalancedLane:
    """The tasks that run and wait under one (tenant, lane)."""

    __slots__ = ("rank", "ref", "running", "waiting")

    def __init__(self, ref: Ref) -> None:
        self.ref = ref
        self.running = 0
        self.waiting: deque[WaitingTask] = deque()
        """In their order."""
        self.rank: LaneRank | None = None
        """Its current rank among the lanes; None while nothing waits."""

    @property
    def is_empty(self) -> bool:
        return self.running <= 0 and not self.waiting


LaneRank = tuple[int, Order, BalancedLane]
"""How many tasks the lane runs, the order of its first waiting task, and the lane. The lowest rank is next.
Orders are unique, so lanes are never compared, except for a rank with its own equal."""


class BalancedLine:
    """The lane that runs the fewest tasks comes first. Among equals priority decides, then age.

    Lanes are kept in a heap by rank. When a rank changes, a new one is pushed. The old one is recognised when
    it reaches the top, because its lane no longer points to it. A single lane, which is the usual case, needs
    no rank.
    """

    def __init__(self) -> None:
        self._lanes: dict[Ref, BalancedLane] = {}
        self._ranks: list[LaneRank] = []
        self._size = 0

    def order(self, priority: int, queued_at: float, place: float | None, number: int) -> Order:
        return (-priority, queued_at if place is None else place, number)

    def push(self, waiting: WaitingTask) -> None:
        lane = self._lanes.get(waiting.lane) or self._new_lane(waiting.lane)
        if not lane.waiting or lane.waiting[-1].order < waiting.order:
            lane.waiting.append(waiting)  # as a rule tasks come in their order
        else:
            insort(lane.waiting, waiting)
        self._size += 1
        if len(self._lanes) > 1 and lane.waiting[0] is waiting:
            self._rerank(lane)

    def pop(self) -> WaitingTask:
        lanes = self._lanes
        lane = next(iter(lanes.values())) if len(lanes) == 1 else self._first()
        waiting = lane.waiting.popleft()
        self._size -= 1
        if len(lanes) > 1:
            self._rerank(lane)
        return waiting

    def started(self, lane: Ref) -> None:
        found = self._lanes.get(lane) or self._new_lane(lane)
        found.running += 1
        if len(self._lanes) > 1:
            self._rerank(found)

    def ended(self, lane: Ref) -> None:
        found = self._lanes[lane]
        found.running -= 1
        if len(self._lanes) == 1:
            return  # it stays, even without tasks: most likely the next task is in this lane too
        if found.is_empty:
            del self._lanes[lane]
            found.rank = None
        else:
            self._rerank(found)

    def clear(self) -> list[WaitingTask]:
        cleared = [waiting for lane in self._lanes.values() for waiting in lane.waiting]
        self._lanes = {ref: lane for ref, lane in self._lanes.items() if lane.running > 0}
        for lane in self._lanes.values():
            lane.waiting.clear()
            lane.rank = None
        self._ranks, self._size = [], 0
        return sorted(cleared)

    def __len__(self) -> int:
        return self._size

    def _new_lane(self, ref: Ref) -> BalancedLane:
        if len(self._lanes) == 1 and next(iter(self._lanes.values())).is_empty:
            self._lanes.clear()
        lane = self._lanes[ref] = BalancedLane(ref)
        if len(self._lanes) == 2:
            self._rank_all()
        return lane

    def _first(self) -> BalancedLane:
        """The lane with the lowest rank, of several."""
        while True:
            rank = heappop(self._ranks)
            if rank[2].rank is rank:
                return rank[2]

    def _rerank(self, lane: BalancedLane) -> None:
        if not lane.waiting:
            lane.rank = None
            return
        lane.rank = (lane.running, lane.waiting[0].order, lane)
        heappush(self._ranks, lane.rank)
        if len(self._ranks) > 2 * len(self._lanes) + SLACK:
            self._rebuild()

    def _rank_all(self) -> None:
        """From now on there are several lanes."""
        for lane in self._lanes.values():
            lane.rank = (lane.running, lane.waiting[0].order, lane) if lane.waiting else None
        self._rebuild()

    def _rebuild(self) -> None:
        self._ranks = [lane.rank for lane in self._lanes.values() if lane.rank is not None]
        heapify(self._ranks)


def balanced(max: int, *, buffer: int | None = None) -> BoundedDoer:
    """Run at most `max` tasks at once in one worker. The next one comes from the lane that runs the fewest;
    among lanes with as many, the highest priority goes first, then the oldest.

    buffer: how many more to claim ahead. None: what starts within some milliseconds, see `bounded`. 0: none.
    """
    return BoundedDoer(max, buffer, BalancedLine())
