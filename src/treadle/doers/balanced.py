"""At most so many at once, shared out among the lanes."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from treadle.item import Ref

from .bounded import BoundedDoer, Entry, Order

# Outdated ranks stay in the heap until they surface. Beyond twice the lanes, and this, it is rebuilt.
SLACK = 64


class Lane:
    """What runs and what waits under one (tenant, lane)."""

    __slots__ = ("rank", "ref", "running", "waiting")

    def __init__(self, ref: Ref) -> None:
        self.ref = ref
        self.running = 0
        self.waiting: list[Entry] = []
        self.rank: Rank | None = None
        """Its current place among the lanes; None while nothing waits."""


Rank = tuple[int, Order, Lane]
"""How many the lane runs, the order of its first waiting entry, and the lane: the least one is next. Orders
are unique, so lanes are never compared, except for a rank with its own equal."""


class BalancedLine:
    """The lane that runs the fewest comes first; among equals priority decides, then age.

    Lanes are kept in a heap by rank. A rank that changes is not looked for: a new one is pushed, and the
    old one recognised when it surfaces, since its lane no longer points to it.
    """

    def __init__(self) -> None:
        self._lanes: dict[Ref, Lane] = {}
        self._ranks: list[Rank] = []
        self._size = 0

    def order(self, priority: int, queued_at: float, place: float | None) -> Order:
        return (-priority, queued_at if place is None else place)

    def push(self, entry: Entry) -> None:
        lane = self._lane(entry.lane)
        heappush(lane.waiting, entry)
        self._size += 1
        if lane.waiting[0] is entry:
            self._rerank(lane)

    def pop(self) -> Entry:
        lane = self._first()
        entry = heappop(lane.waiting)
        self._size -= 1
        self._rerank(lane)
        return entry

    def started(self, lane: Ref) -> None:
        found = self._lane(lane)
        found.running += 1
        self._rerank(found)

    def ended(self, lane: Ref) -> None:
        found = self._lane(lane)
        found.running -= 1
        self._rerank(found)

    def clear(self) -> list[Entry]:
        entries = [entry for lane in self._lanes.values() for entry in lane.waiting]
        for lane in list(self._lanes.values()):
            lane.waiting = []
            self._rerank(lane)
        self._ranks, self._size = [], 0
        return sorted(entries)

    def __len__(self) -> int:
        return self._size

    def _lane(self, ref: Ref) -> Lane:
        lane = self._lanes.get(ref)
        if lane is None:
            lane = self._lanes[ref] = Lane(ref)
        return lane

    def _first(self) -> Lane:
        while True:
            rank = heappop(self._ranks)
            if rank[2].rank is rank:
                return rank[2]

    def _rerank(self, lane: Lane) -> None:
        if lane.waiting:
            lane.rank = (lane.running, lane.waiting[0].order, lane)
            heappush(self._ranks, lane.rank)
            if len(self._ranks) > 2 * len(self._lanes) + SLACK:
                self._rebuild()
        else:
            lane.rank = None
            if lane.running <= 0:
                self._lanes.pop(lane.ref, None)

    def _rebuild(self) -> None:
        self._ranks = [lane.rank for lane in self._lanes.values() if lane.rank is not None]
        heapify(self._ranks)


def balanced(max: int, *, buffer: int | None = None) -> BoundedDoer:
    """Run at most `max` at once in this process; of those it holds, the next is from the lane that runs
    the fewest, then the highest priority, then the oldest.

    buffer: how many more to claim ahead. None: what starts within some milliseconds, see `bounded`. 0: none.
    """
    return BoundedDoer(max, buffer, BalancedLine())
