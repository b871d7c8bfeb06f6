"""Piles: things in the order of a number, the least on top. What the whole backend is made of.

Most things come in order (the next in line, the next to expire), so a pile is a queue of those that did, and
a heap of those that did not. Taking a thing out of the middle only marks it: its place is skipped when it
comes to the top, and swept once such places are the majority.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

Spot: TypeAlias = tuple[float, int, Any]
"""Where a thing lies: its number, a second one for things with equal ones, and the thing itself."""

SLACK = 16
"""How many marked places are never worth a sweep."""


class Piled(Protocol):
    spot: Spot | None
    """Its place in the one pile that it can be in. A place that is not its things's spot is a marked one."""


T = TypeVar("T", bound=Piled)


class Pile(Generic[T]):
    """Things by number, and by tie where the numbers are equal. No two things may have both equal."""

    __slots__ = ("_late", "_queue", "size")

    def __init__(self) -> None:
        self._queue: deque[Spot] = deque()
        self._late: list[Spot] = []
        self.size = 0

    def __iter__(self) -> Iterator[T]:
        """All of them, in no order."""
        for spots in (self._queue, self._late):
            for spot in spots:
                if spot[2].spot is spot:
                    yield spot[2]

    def __len__(self) -> int:
        return self.size

    def push(self, number: float, tie: int, thing: T) -> None:
        spot = (number, tie, thing)
        thing.spot = spot
        self.size += 1
        queue = self._queue
        if queue and spot < queue[-1]:
            heappush(self._late, spot)
        else:
            queue.append(spot)

    def pop(self) -> T | None:
        """Take the top one off. None: empty."""
        queue, late = self._queue, self._late
        while True:
            if late and (not queue or late[0] < queue[0]):
                spot = heappop(late)
            elif queue:
                spot = queue.popleft()
            else:
                return None
            thing: T = spot[2]
            if thing.spot is spot:
                thing.spot = None
                self.size -= 1
                if not self.size:
                    self._clear()
                return thing

    def remove(self, thing: T) -> None:
        """Take one out that is in."""
        thing.spot = None
        self.size -= 1
        if not self.size:
            self._clear()
        elif len(self._queue) + len(self._late) > 2 * self.size + SLACK:
            self._sweep()

    def first(self) -> Spot | None:
        """The place of the top one. None: empty."""
        queue, late = self._queue, self._late
        while queue and queue[0][2].spot is not queue[0]:
            queue.popleft()
        while late and late[0][2].spot is not late[0]:
            heappop(late)
        if late and (not queue or late[0] < queue[0]):
            return late[0]
        return queue[0] if queue else None

    def pop_until(self, number: float) -> T | None:
        """Take the top one off if its number is at most this."""
        first = self.first()
        return self.pop() if first is not None and first[0] <= number else None

    def emptied(self) -> None:
        """Called when the last one has left, however it did."""

    def _clear(self) -> None:
        self._queue.clear()
        self._late.clear()
        self.emptied()

    def _sweep(self) -> None:
        self._queue = deque(spot for spot in self._queue if spot[2].spot is spot)
        self._late = [spot for spot in self._late if spot[2].spot is spot]
        heapify(self._late)
