"""Calls to PostgreSQL, with retries.

A call is one statement and one round trip. A conflict (a deadlock, or a lock that was not granted in time)
was rolled back by the server and is tried again at once, with jitter. If the server does not answer, the
outcome is unknown: verbs that may be repeated are tried a few times, for about two seconds, before the caller
gets `StoreUnavailable`; the others are repeated only if nothing was sent.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import asyncpg

from treadle.errors import NotStarted, StoreTooSlow, TreadleError
from treadle.retry import Retry

from .errors import (
    CONNECTION_ERRORS,
    NothingSent,
    cause_of,
    is_away,
    is_conflict,
    is_for_caller,
    is_locked,
    is_missing,
    translated,
)
from .pool import PostgresPool
from .schema import Connection, PostgresSchema, refusal
from .statements import statement, text

Record: TypeAlias = asyncpg.Record

T = TypeVar("T")

CONFLICT: Final = Retry(attempts=12, base=0.004, factor=1.7, max=0.25, jitter=1.0)
AWAY: Final = Retry(attempts=4, base=0.05, factor=2.0, max=1.0, jitter=0.5)
AWAY_SECONDS: Final = 2.0
"""Seconds after which a call is not repeated: the caller would wait too long."""


class AnswerRow(Protocol):
    """A row of an answer, from any driver."""

    def __getitem__(self, name: str, /) -> Any: ...


class PostgresCalls:
    """Carries out statements while the backend is open."""

    def __init__(
        self, schema: PostgresSchema, *, prepare: bool, patience: float, durable_claims: bool = False
    ) -> None:
        self.schema = schema
        self.prepare = prepare
        self.patience = patience
        self.durable_claims = durable_claims
        self.store_identity = ""
        """Tells this store from that of another database. Known while the backend is open."""
        self.wake_channel: str | None = None
        """Where submits inside a user's transaction send their wake-ups. None: nowhere."""
        self._pool: PostgresPool | None = None
        self._texts: dict[str, str] = {}
        self._random = random.Random()
        self.sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    @property
    def pool(self) -> PostgresPool:
        if self._pool is None:
            raise NotStarted("the PostgreSQL backend")
        return self._pool

    @property
    def is_open(self) -> bool:
        return self._pool is not None

    def start(self, pool: PostgresPool) -> None:
        self._pool = pool

    def abandon(self) -> None:
        if self._pool is not None and self._pool.mark.is_gone:
            self._pool.abandon()
            self._pool = None

    async def stop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    def sql(self, text: str) -> str:
        """A statement, which names the schema `treadle`, for the schema in use."""
        found = self._texts.get(text)
        if found is None:
            found = self._texts[text] = self.schema.sql(text)
        return found

    async def rows(
        self,
        text: str,
        *arguments: object,
        vital: bool = False,
        repeatable: bool = True,
        conflict: Retry = CONFLICT,
        locks: bool = True,
        within: float | None = None,
    ) -> list[Record]:
        """All rows that a statement answers. `locks`: wait for other transactions by trying again. `within`:
        seconds after which the server is told to stop it, for good."""
        attempt = partial(self._attempt, self.sql(text), arguments, vital, within)
        return await self.call_with_retries(attempt, repeatable=repeatable, conflict=conflict, locks=locks)

    async def row(
        self,
        text: str,
        *arguments: object,
        vital: bool = False,
        repeatable: bool = True,
        locks: bool = True,
    ) -> Record:
        """The one row that a statement answers."""
        return (await self.rows(text, *arguments, vital=vital, repeatable=repeatable, locks=locks))[0]

    async def value(self, text: str, *arguments: object, vital: bool = False, repeatable: bool = True) -> Any:
        return (await self.row(text, *arguments, vital=vital, repeatable=repeatable))[0]

    async def call_with_retries(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        repeatable: bool,
        conflict: Retry = CONFLICT,
        locks: bool = True,
    ) -> T:
        """Repeat until it succeeds, is refused, or the retries are used up."""
        conflicts = absences = 0
        began = time.monotonic()
        while True:
            try:
                return await attempt()
            except TreadleError:
                raise
            except Exception as error:
                cause = cause_of(error)
                if is_locked(cause) and not locks:
                    delay = None
                elif is_conflict(cause):
                    conflicts += 1
                    delay = None if conflict.exhausted(conflicts) else conflict.delay(conflicts, self._draw)
                elif isinstance(error, NothingSent) or (is_away(cause) and repeatable):
                    absences += 1
                    is_over = AWAY.exhausted(absences) or time.monotonic() - began > AWAY_SECONDS
                    delay = None if is_over else AWAY.delay(absences, self._draw)
                else:
                    delay = None
                if delay is None:
                    if is_for_caller(cause):
                        raise
                    raise await self._explained(cause) from cause
                await self.sleep(delay)

    async def _explained(self, cause: BaseException) -> TreadleError:
        """The error to raise. If the schema is out of sight, its mark says why."""
        if is_missing(cause) and self._pool is not None:
            try:
                async with self._pool.connection() as connection:
                    mark = await self.schema.mark(connection)
            except (*CONNECTION_ERRORS, NothingSent, asyncpg.PostgresError):
                mark = None
            if mark is not None:
                return refusal(mark)
        return translated(cause)

    def _draw(self) -> float:
        return self._random.random()

    async def _attempt(
        self, sql: str, arguments: tuple[object, ...], vital: bool, within: float | None
    ) -> list[Record]:
        pool = self.pool
        connection = await pool.lend(vital, sql)
        pool.begin(connection)
        try:
            rows = await self.on(connection, sql, arguments, within)
        except BaseException as error:
            pool.take_back(connection, vital, error)
            if within is not None and isinstance(error, asyncio.TimeoutError):
                raise StoreTooSlow(
                    f"PostgreSQL did not answer this read within {within:g} s, and was told to stop it"
                ) from error
            raise
        pool.take_back(connection, vital)
        return rows

    async def on(
        self,
        connection: Connection,
        sql: str,
        arguments: tuple[object, ...],
        within: float | None = None,
    ) -> list[Record]:
        """Carry out a statement on this connection."""
        timeout = self.patience if within is None else within
        if self.prepare or connection.is_in_transaction():
            return await connection.fetch(sql, *arguments, timeout=timeout)
        # A pooler in transaction mode may change the server after each transaction, so preparing and
        # executing a statement have to be in one.
        async with connection.transaction():
            return await connection.fetch(sql, *arguments, timeout=timeout)


class ConnectionCalls(PostgresCalls):
    """Carries out statements on one connection that is in a transaction, each with a savepoint."""

    def __init__(self, calls: PostgresCalls, connection: Connection) -> None:
        super().__init__(calls.schema, prepare=calls.prepare, patience=calls.patience)
        self.store_identity, self.wake_channel = calls.store_identity, calls.wake_channel
        self._connection = connection

    async def _attempt(
        self, sql: str, arguments: tuple[object, ...], vital: bool, within: float | None
    ) -> list[Record]:
        async with self._connection.transaction():
            return await self.on(self._connection, sql, arguments, within)


def leasing(file: str, name: str) -> Mapping[bool, str]:
    """A statement that grants or renews leases, by whether its commit waits for the disk (`durable_claims`).

    It need not. A crash of the server forgets the end of its log. A submit or a settlement that was answered
    has taken all before it to the disk. So only leases that came after it are forgotten, and are lost, as if
    their workers had died. Their tokens are never handed out again: see tokens.sql.
    """
    return {
        False: statement(file, name, unflushed=text("connection", "unflushed")),
        True: statement(file, name, unflushed=""),
    }


class PostgresVerbs:
    """Base of the classes that hold the backend's verbs."""

    def __init__(self, calls: PostgresCalls) -> None:
        self._calls = calls
