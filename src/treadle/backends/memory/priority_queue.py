"""A priority queue that can give up a member from its middle. Most tables of this backend are made of it.

Most members come in order (the next ready item, the next to expire). So the queue is a deque of those that
did, and a heap of those that did not. Removing a member from the middle only marks its position. A marked
position is skipped when it comes first. All are swept once they are the majority.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

Position: TypeAlias = tuple[float, int, Any]
"""A number, a second one that decides between equal numbers, and the member."""

SLACK = 16
"""How many marked positions are never worth a sweep."""


class Positioned(Protocol):
    position: Position | None
    """Its position in the one queue that it can be in. Any other position of it is a marked one."""


T = TypeVar("T", bound=Positioned)


class PriorityQueue(Generic[T]):
    """Members by number, and by tie where the numbers are equal. No two members may have both equal."""

    __slots__ = ("_in_order", "_late", "size")

    def __init__(self) -> None:
        self._in_order: deque[Position] = deque()
        self._late: list[Position] = []
        self.size = 0

    def __iter__(self) -> Iterator[T]:
        """All members, in no order."""
        for positions in (self._in_order, self._late):
            for position in positions:
                if position[2].position is position:
                    yield position[2]

    def __len__(self) -> int:
        return self.size

    def push(self, number: float, tie: int, member: T) -> None:
        position = (number, tie, member)
        member.position = position
        self.size += 1
        in_order = self._in_order
        if in_order and position < in_order[-1]:
            heappush(self._late, position)
        else:
            in_order.append(position)

    def pop(self) -> T | None:
        """Remove the first member. None: the queue is empty."""
        in_order, late = self._in_order, self._late
        while True:
            if late and (not in_order or late[0] < in_order[0]):
                position = heappop(late)
            elif in_order:
                position = in_order.popleft()
            else:
                return None
            member: T = position[2]
            if member.position is position:
                member.position = None
                self.size -= 1
                if not self.size:
                    self._clear()
                return member

    def remove(self, member: T) -> None:
        """Remove a member, wherever it is."""
        member.position = None
        self.size -= 1
        if not self.size:
            self._clear()
        elif len(self._in_order) + len(self._late) > 2 * self.size + SLACK:
            self._sweep()

    def first(self) -> Position | None:
        """The position of the first member. None: the queue is empty."""
        in_order, late = self._in_order, self._late
        while in_order and in_order[0][2].position is not in_order[0]:
            in_order.popleft()
        while late and late[0][2].position is not late[0]:
            heappop(late)
        if late and (not in_order or late[0] < in_order[0]):
            return late[0]
        return in_order[0] if in_order else None

    def pop_until(self, number: float) -> T | None:
        """Remove the first member if its number is at most this."""
        first = self.first()
        return self.pop() if first is not None and first[0] <= number else None

    def take_until(self, number: float, most: int) -> Iterator[T]:
        """Remove up to `most` members whose number is at most this."""
        for _ in range(most):
            if (member := self.pop_until(number)) is None:
                return
            yield member

    def count_before(self, number: float, tie: int, most: int) -> int:
        """How many members come before this position, up to `most`. Looks at no others."""
        found = 0
        for position in self._in_order:
            if position[:2] >= (number, tie) or found >= most:
                break
            found += position[2].position is position
        late, open = self._late, [0]
        while open and found < most:
            index = open.pop()
            # Below a position in the heap there are only later ones.
            if index < len(late) and late[index][:2] < (number, tie):
                found += late[index][2].position is late[index]
                open += (2 * index + 1, 2 * index + 2)
        return min(found, most)

    def on_empty(self) -> None:
        """Called when the last member has left."""

    def _clear(self) -> None:
        self._in_order.clear()
        self._late.clear()
        self.on_empty()

    def _sweep(self) -> None:
        self._in_order = deque(position for position in self._in_order if position[2].position is position)
        self._late = [position for position in self._late if position[2].position is position]
        heapify(self._late)
