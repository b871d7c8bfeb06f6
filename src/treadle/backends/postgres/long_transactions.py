"""Long transactions, of any session, that keep vacuum from removing dead rows.

Vacuum removes a row that has ended once no transaction can see it. A transaction that stays open, such as a
report or a forgotten console, prevents that: dead rows pile up where the next claim looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.errors import BackendError, LongTransaction

from .connection import PostgresCalls, Record
from .statements import statement

LONG_TRANSACTIONS: Final = statement("long_transactions", "long_transactions")
REPORT_AGAIN: Final = 2.0
"""A transaction is reported again when it has become this many times older."""


class LongTransactions:
    """Reports transactions that are older than `seconds`; none if that is None."""

    def __init__(self, calls: PostgresCalls, seconds: float | None) -> None:
        self._calls = calls
        self._seconds = seconds
        self._reported: dict[str, float] = {}

    async def inspect(self) -> Sequence[BackendError]:
        if self._seconds is None:
            return ()
        found = await self._calls.rows(LONG_TRANSACTIONS, self._seconds)
        news = [
            LongTransaction(row["holder"], row["seconds"], row["advice"], pid=row["pid"])
            for row in found
            if self._is_news(row)
        ]
        self._reported = {row["holder"]: self._reported[row["holder"]] for row in found}
        return news

    def _is_news(self, row: Record) -> bool:
        holder, age = row["holder"], row["seconds"]
        reported = self._reported.get(holder)
        # Younger than the one reported: another transaction of the same session.
        if reported is not None and reported <= age < reported * REPORT_AGAIN:
            return False
        self._reported[holder] = age
        return True
