"""At most `max` at once, the highest priority first."""

from __future__ import annotations

from .bounded import BoundedDoer, Order, SortedLine


class PriorityLine(SortedLine):
    __slots__ = ()

    def order(self, priority: int, queued_at: float, place: float | None, number: int) -> Order:
        return (-priority, queued_at if place is None else place, number)


def priority(max: int, *, buffer: int | None = None) -> BoundedDoer:
    """Run at most `max` tasks at once in one worker. Of those that wait, the highest priority starts first,
    then the oldest.

    buffer: how many more to claim ahead. None: what starts within some milliseconds, see `bounded`. 0: none.
    """
    return BoundedDoer(max, buffer, PriorityLine())
