"""At most so many at once, higher priority first."""

from __future__ import annotations

from .bounded import BoundedDoer, Order, SortedLine


class PriorityLine(SortedLine):
    __slots__ = ()

    def order(self, priority: int, queued_at: float, place: float | None) -> Order:
        return (-priority, queued_at if place is None else place)


def priority(max: int, *, buffer: int | None = None) -> BoundedDoer:
    """Run at most `max` at once in this process; of those it holds, the highest priority goes first,
    then the oldest.

    buffer: how many more to claim ahead. None: what starts within some milliseconds, see `bounded`. 0: none.
    """
    return BoundedDoer(max, buffer, PriorityLine())
