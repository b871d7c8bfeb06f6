"""Transactions: the user's writes and settlements, committed together."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from treadle.errors import TreadleError
from treadle.item import Settled, Settlement

from .connection import PostgresCalls, PostgresVerbs, Record
from .errors import LOST, NothingSent, cause_of, is_away, is_conflict, translated
from .settle import SETTLE, UNLOCKED_ITEMS, PostgresSettler


class PostgresTransaction:
    """A transaction on a connection of the backend. `connection` is asyncpg's."""

    def __init__(self, calls: PostgresCalls, connection: asyncpg.Connection[Any]) -> None:
        self._calls = calls
        self._connection = connection

    @property
    def connection(self) -> asyncpg.Connection[Any]:
        return self._connection

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        return await PostgresSettler(settlements, self._settle, self._unlocked).settle()

    async def _settle(self, arguments: tuple[object, ...]) -> Record:
        # A savepoint: a refusal must not undo what the user wrote.
        async with self._connection.transaction():
            return (await self._calls.on(self._connection, self._calls.sql(SETTLE), arguments))[0]

    async def _unlocked(self, numbers: Sequence[int]) -> set[int]:
        rows = await self._calls.on(self._connection, self._calls.sql(UNLOCKED_ITEMS), (list(numbers),))
        return set(rows[0][0])


class PostgresTransactions(PostgresVerbs):
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
            cause = cause_of(error)
            raise translated(cause) from cause
        except (*LOST, asyncpg.PostgresError) as error:
            # Errors of the user's own statements are not translated.
            if not begun or is_away(error) or is_conflict(error):
                raise translated(error) from error
            raise
