"""Slots that are on their way back to the store, and those of which nobody knows.

If the store did not answer, it may have taken slots, or given them back, or not. Such slots are *doubtful*:
perhaps held for nothing. They are given back once no task here holds that limit, when giving too many back
does no harm: a store frees no more than the worker holds. So a limit may be underused for a while after an
error, but is never exceeded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

from treadle.item import Limit, PermitRequest


class PermitReturns:
    def __init__(self) -> None:
        self._owed: Counter[Limit] = Counter()
        self._doubtful: Counter[Limit] = Counter()

    def add(self, slots: Sequence[Limit], number: int = 1) -> None:
        """Tasks that held these have ended."""
        for limit in slots:
            self._owed[limit] += number

    def doubt(self, slots: Sequence[Limit], number: int) -> None:
        """So many of each may be held without anybody knowing."""
        for limit in slots:
            self._doubtful[limit] = min(self._doubtful[limit] + number, limit.limit)

    def take_out(self, held: Container[Limit]) -> list[PermitRequest]:
        """What to give back now; `held` are the limits of which tasks here hold slots."""
        if not self:
            return []
        out, self._owed = self._owed, Counter()
        for limit in [limit for limit in self._doubtful if limit not in held]:
            out[limit] += self._doubtful.pop(limit)
        return [PermitRequest((limit,), number) for limit, number in out.items()]

    def put_back(self, requests: Sequence[PermitRequest]) -> None:
        """Giving these back was not answered."""
        for take in requests:
            self.doubt(take.limits, take.count)

    def __bool__(self) -> bool:
        return bool(self._owed or self._doubtful)
