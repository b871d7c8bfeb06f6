"""At most so many at once, higher priority first."""

from __future__ import annotations

from .bounded import BoundedDoer, Order, SortedLine


class PriorityLine(SortedLine):
    __slots__ = ()

    def order(self, priority: int, queued_at: float) -> Order:
        return (-priority, queued_at)


def priority(max: int, *, buffer: int = 0) -> BoundedDoer:
    """Run at most `max` at once in this process; of those it holds, the highest priority goes first,
    then the oldest.

    buffer: how many more to claim ahead. See `treadle.doers.bounded` for why that is 0.
    """
    return BoundedDoer(max, buffer, PriorityLine())
