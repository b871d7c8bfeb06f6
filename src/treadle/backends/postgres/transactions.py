"""Transactions: the user's writes and ours, together."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from treadle.errors import TreadleError
from treadle.item import Settled, Settlement

from .base import Verbs
from .calls import Calls, NothingSent, Record
from .failures import LOST, is_away, is_conflict, translated
from .settling import FREE, SETTLE, Settler


class PostgresTransaction:
    """A transaction on a connection of the backend's own. `connection` is asyncpg's."""

    def __init__(self, calls: Calls, connection: asyncpg.Connection[Any]) -> None:
        self._calls = calls
        self._connection = connection

    @property
    def connection(self) -> asyncpg.Connection[Any]:
        return self._connection

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        return await Settler(settlements, self._call, self._free).settle()

    async def _call(self, arguments: tuple[object, ...]) -> Record:
        # A refusal must not undo what the user wrote.
        async with self._connection.transaction():
            return (await self._calls.on(self._connection, self._calls.sql(SETTLE), arguments))[0]

    async def _free(self, numbers: Sequence[int]) -> set[int]:
        rows = await self._calls.on(self._connection, self._calls.sql(FREE), (list(numbers),))
        return set(rows[0][0])


class Transactions(Verbs):
    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[PostgresTransaction, None]:
        begun = False
        try:
            async with self._calls.pool.connection() as connection, connection.transaction():
                begun = True
                yield PostgresTransaction(self._calls, connection)
        except TreadleError:
            raise
        except NothingSent as error:
            cause = error.__cause__ or error
            raise translated(cause) from cause
        except (*LOST, asyncpg.PostgresError) as error:
            # What the user's own statements raise is the user's.
            if not begun or is_away(error) or is_conflict(error):
                raise translated(error) from error
            raise
