"""Transactions: the user's writes and settlements, committed together."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import asyncpg

from treadle.errors import TreadleError
from treadle.item import ItemState, Loss, Settled, Settlement, Submission
from treadle.item import Record as StepsRecord

from .connection import ConnectionCalls, PostgresCalls, PostgresVerbs, Record
from .errors import CONNECTION_ERRORS, NothingSent, cause_of, is_away, is_conflict, translated
from .limits import PostgresLimits
from .read import PostgresRead
from .settle import UNLOCKED_ITEMS, PostgresSettler
from .steps import PostgresSteps
from .submit import Answer, PostgresSubmit


class PostgresTransaction:
    """A transaction on a connection of the backend. `connection` is asyncpg's.

    Each request has a savepoint: a refusal must not undo what the user wrote.
    """

    def __init__(self, calls: PostgresCalls, connection: asyncpg.Connection[Any]) -> None:
        self._calls = ConnectionCalls(calls, connection)
        self._connection = connection
        self._read = PostgresRead(self._calls)
        self._limits = PostgresLimits(self._calls)
        self._submit = PostgresSubmit(self._calls)
        self._steps = PostgresSteps(self._calls)

    @property
    def connection(self) -> asyncpg.Connection[Any]:
        return self._connection

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        return await PostgresSettler(settlements, self._settle, self._unlocked, wait=True).settle()

    async def submit(self, submissions: Sequence[Submission]) -> Sequence[Answer]:
        attempt = partial(self._submit_once, submissions)
        return await self._calls.call_with_retries(attempt, repeatable=False)

    async def _submit_once(self, submissions: Sequence[Submission]) -> Sequence[Answer]:
        async with self._connection.transaction():
            return await self._submit.submit(submissions, tx=self._connection)

    async def record(self, records: Sequence[StepsRecord]) -> Sequence[Loss | None]:
        return await self._steps.record(records)

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        return await self._read.get(ids, tenant=tenant)

    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        return await self._limits.claim_key(key, owner, ttl, tenant=tenant)

    async def _settle(self, sql: str, arguments: tuple[object, ...]) -> Record:
        async with self._connection.transaction():
            return (await self._calls.on(self._connection, self._calls.sql(sql), arguments))[0]

    async def _unlocked(self, numbers: Sequence[int]) -> set[int]:
        rows = await self._calls.on(self._connection, self._calls.sql(UNLOCKED_ITEMS), (list(numbers),))
        return set(rows[0][0])


class PostgresTransactions(PostgresVerbs):
    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[PostgresTransaction, None]:
        begun = False
        try:
            async with self._calls.pool.transaction() as connection:
                begun = True
                yield PostgresTransaction(self._calls, connection)
        except TreadleError:
            raise
        except NothingSent as error:
            cause = cause_of(error)
            raise translated(cause) from cause
        except (*CONNECTION_ERRORS, asyncpg.PostgresError) as error:
            # Errors of the user's own statements are not translated.
            if not begun or is_away(error) or is_conflict(error):
                raise translated(error) from error
            raise
