"""Health: dead rows pile up where the next claim looks, unless vacuum removes them in time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

import asyncpg

from treadle.errors import BackendError, LongTransaction

from .connection import PostgresCalls, Record
from .errors import CONNECTION_ERRORS
from .statements import statement

LONG_TRANSACTIONS: Final = statement("long_transactions", "long_transactions")
REPORT_AGAIN: Final = 2.0
"""A transaction is reported again when it has become this many times older."""


class LongTransactions:
    """Reports transactions, of any session, that are older than `seconds`; none if that is None.

    Vacuum removes a row that has ended once no transaction can see it. A transaction that stays open, such as
    a report or a forgotten console, prevents that.
    """

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


IS_DUE: Final = statement("vacuum", "is_due")
VACUUM: Final = statement("vacuum", "vacuum")

DEAD: Final = 20_000
"""Dead rows with which a vacuum is due, if there is one for 20 others."""
EVERY: Final = 20_000
"""Claimed items after which a process looks."""
SELDOM: Final = 50
"""How many times as many it waits for at most, if vacuum fails or cannot remove rows: an open transaction may
still see them, or this role must not vacuum."""


class Vacuum:
    """Removes dead entries from the index of ready items.

    A claim looks at the start of that index, and passes by the entries of all items that have left it since
    the last vacuum. The server's autovacuum comes once a minute at most. At 10,000 items a second these are
    600,000 entries: passing by them took two fifths of the server's time. So a process that has claimed many
    items looks whether a vacuum is due, and does it.
    """

    def __init__(self, calls: PostgresCalls) -> None:
        self._calls = calls
        self._claimed = 0
        self._every = EVERY
        self._task: asyncio.Task[None] | None = None

    def count(self, claimed: int) -> None:
        """This many items were claimed."""
        self._claimed += claimed
        if self._claimed >= self._every and self._task is None:
            self._claimed = 0
            self._task = asyncio.get_running_loop().create_task(self._run(), name="treadle-vacuum")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def abandon(self) -> None:
        self._task = None

    async def _run(self) -> None:
        try:
            await self.run_once()
        except (BackendError, asyncpg.PostgresError, *CONNECTION_ERRORS):
            self._wait_longer()  # it is done later, by this process, another one, or the server
        self._task = None

    async def run_once(self) -> None:
        if not await self._is_due():
            return
        sql = self._calls.sql(VACUUM)
        async with self._calls.pool.connection(statement=sql) as connection:
            await connection.execute(sql, timeout=self._calls.patience)
        if await self._is_due():
            self._wait_longer()
        else:
            self._every = EVERY

    def _wait_longer(self) -> None:
        self._every = min(2 * self._every, SELDOM * EVERY)

    async def _is_due(self) -> bool:
        return bool(await self._calls.value(IS_DUE, DEAD))
