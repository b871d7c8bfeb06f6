"""At most `max` at once, the oldest first."""

from __future__ import annotations

from .bounded import BoundedDoer, Order, SortedLine


class OldestLine(SortedLine):
    __slots__ = ()

    def order(self, priority: int, queued_at: float, place: float | None, number: int) -> Order:
        return (queued_at, number)


def oldest(max: int, *, buffer: int | None = None) -> BoundedDoer:
    """Run at most `max` tasks at once in one worker. Of those that wait, the one queued first starts first.

    buffer: how many more to claim ahead. None: what starts within some milliseconds, see `bounded`. 0: none.
    """
    return BoundedDoer(max, buffer, OldestLine())
