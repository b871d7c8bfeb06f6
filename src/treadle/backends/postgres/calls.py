"""Calls: one statement, one round trip, on a connection of the pool; and what to do when it fails.

A conflict (a deadlock, or a lock that did not come in time) was rolled back by the server and is tried again
at once, with jitter. When the store does not answer, the outcome is unknown: verbs that may be repeated are,
a few times, before the caller hears `StoreUnavailable`; the others are only if nothing can have been sent.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import asyncpg

from treadle.errors import NotStarted, TreadleError
from treadle.retry import Retry

from .failures import LOST, is_away, is_conflict, translated
from .pool import Pool
from .schema import Schema

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[Any]
    Record: TypeAlias = asyncpg.Record
else:
    Connection = asyncpg.Connection
    Record = asyncpg.Record

T = TypeVar("T")


class Fields(Protocol):
    """A row of an answer, whatever driver it came from."""

    def __getitem__(self, name: str, /) -> Any: ...


CONFLICT: Final = Retry(attempts=12, base=0.004, factor=1.7, max=0.25, jitter=1.0)
AWAY: Final = Retry(attempts=4, base=0.05, factor=2.0, max=1.0, jitter=0.5)
PATIENCE: Final = 30.0
"""Seconds that a call may take before its connection is given up."""


class NothingSent(Exception):
    """No connection was to be had: whatever was to happen did not."""


class Calls:
    """The way to the server, while the backend is open."""

    def __init__(self, schema: Schema, *, prepare: bool, patience: float = PATIENCE) -> None:
        self.schema = schema
        self._prepare = prepare
        self._patience = patience
        self._pool: Pool | None = None
        self._texts: dict[str, str] = {}
        self._random = random.Random()
        self.sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    @property
    def pool(self) -> Pool:
        if self._pool is None:
            raise NotStarted("the PostgreSQL backend")
        return self._pool

    @property
    def is_open(self) -> bool:
        return self._pool is not None

    def start(self, pool: Pool) -> None:
        self._pool = pool

    async def stop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    def sql(self, text: str) -> str:
        """A statement that was written for the schema `treadle`."""
        found = self._texts.get(text)
        if found is None:
            found = self._texts[text] = self.schema.sql(text)
        return found

    # -- calling ---------------------------------------------------------------------------------------

    async def rows(
        self,
        text: str,
        *arguments: object,
        vital: bool = False,
        repeatable: bool = True,
        conflict: Retry = CONFLICT,
    ) -> list[Record]:
        """All rows that a statement answers."""
        once = partial(self._once, self.sql(text), arguments, vital)
        return await self.persist(once, repeatable=repeatable, conflict=conflict)

    async def row(
        self, text: str, *arguments: object, vital: bool = False, repeatable: bool = True
    ) -> Record:
        """The one row that a statement answers."""
        return (await self.rows(text, *arguments, vital=vital, repeatable=repeatable))[0]

    async def value(self, text: str, *arguments: object, vital: bool = False, repeatable: bool = True) -> Any:
        return (await self.row(text, *arguments, vital=vital, repeatable=repeatable))[0]

    async def persist(
        self, attempt: Callable[[], Awaitable[T]], *, repeatable: bool, conflict: Retry = CONFLICT
    ) -> T:
        """Try until it is done, refused, or no longer worth it."""
        conflicts = absences = 0
        while True:
            try:
                return await attempt()
            except TreadleError:
                raise
            except Exception as error:
                cause = error.__cause__ if isinstance(error, NothingSent) and error.__cause__ else error
                if is_conflict(cause):
                    conflicts += 1
                    delay = None if conflict.exhausted(conflicts) else conflict.delay(conflicts, self._draw)
                elif is_away(cause) and (repeatable or isinstance(error, NothingSent)):
                    absences += 1
                    delay = None if AWAY.exhausted(absences) else AWAY.delay(absences, self._draw)
                else:
                    delay = None
                if delay is None:
                    if _ours(cause):
                        raise
                    raise translated(cause) from cause
                await self.sleep(delay)

    def _draw(self) -> float:
        return self._random.random()

    async def _once(self, sql: str, arguments: tuple[object, ...], vital: bool) -> list[Record]:
        pool = self.pool
        connection = await pool.lend(vital, sql)
        try:
            rows = await self.on(connection, sql, arguments)
        except BaseException as error:
            pool.take_back(connection, vital, error)
            raise
        pool.take_back(connection, vital)
        return rows

    async def on(self, connection: Connection, sql: str, arguments: tuple[object, ...]) -> list[Record]:
        """Carry out a statement on this connection."""
        if self._prepare or connection.is_in_transaction():
            return await connection.fetch(sql, *arguments, timeout=self._patience)
        # Behind a pooler that hands the server on after each transaction, preparing and executing a
        # statement have to be in one.
        async with connection.transaction():
            return await connection.fetch(sql, *arguments, timeout=self._patience)


def connector(connect: Callable[[], Awaitable[Connection]]) -> Callable[[], Awaitable[Connection]]:
    """`connect`, saying that nothing was sent if it fails."""

    async def connecting() -> Connection:
        try:
            return await connect()
        except (*LOST, asyncpg.PostgresError) as error:
            raise NothingSent from error

    return connecting


def _ours(error: BaseException) -> bool:
    """For the verb that called to read: raised by our own functions, or because something is taken."""
    if isinstance(error, asyncpg.UniqueViolationError):
        return True
    return isinstance(error, asyncpg.PostgresError) and (error.sqlstate or "").startswith("TR")
