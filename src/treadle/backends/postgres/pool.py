"""Pool: a bounded number of connections, some of which only settling and beating may use.

A connection goes back only if it is known to be idle. After a cancellation, a timeout or a lost connection
nobody knows what the server is doing with it, so it is closed, and the next caller gets a new one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from .failures import is_away

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[Any]


PATIENCE: Final = 2.0
"""Seconds that saying goodbye may take."""


class Pool:
    def __init__(self, connect: Callable[[], Awaitable[Connection]], *, size: int, reserved: int) -> None:
        if not 0 <= reserved < size:
            raise ValueError("a pool needs more connections than it reserves")
        self._connect = connect
        self._idle: dict[Connection, None] = {}
        """The last is the one that was put back last."""
        self._usual: dict[str, Connection] = {}
        """Where each statement was carried out last."""
        self._used: set[Connection] = set()
        self._all = asyncio.Semaphore(size)
        self._ordinary = asyncio.Semaphore(size - reserved)
        self._closing: set[asyncio.Future[None]] = set()
        self._pid = os.getpid()
        self._closed = False

    @asynccontextmanager
    async def connection(self, *, vital: bool = False) -> AsyncGenerator[Connection, None]:
        """A connection, for one use. `vital` ones may be taken from the reserve."""
        connection = await self.lend(vital)
        try:
            yield connection
        except BaseException as error:
            self.take_back(connection, vital, error)
            raise
        self.take_back(connection, vital)

    async def lend(self, vital: bool, statement: str = "") -> Connection:
        """The same in two steps, for calls: there the context manager took a quarter of the driver's time.

        A statement gets the connection that it had before, if that is idle: there the server has it at hand.
        (One after the other, submissions took 430 us each, and 500 when a NOTIFY took their connection now
        and then.)
        """
        if not vital:
            await self._ordinary.acquire()
        try:
            await self._all.acquire()
            try:
                connection = await self._take(statement)
            except BaseException:
                self._all.release()
                raise
        except BaseException:
            if not vital:
                self._ordinary.release()
            raise
        self._used.add(connection)
        return connection

    def take_back(self, connection: Connection, vital: bool, error: BaseException | None = None) -> None:
        """`error`: what became of its use. If the server refused, or the driver did before it sent anything,
        the connection is fine. A server that says goodbye has not hung up yet: whoever used that connection
        next would hear of it."""
        fine = error is None or (
            isinstance(error, (asyncpg.PostgresError, ValueError)) and not is_away(error)
        )
        (self._put_back if fine else self._discard)(connection)
        self._all.release()
        if not vital:
            self._ordinary.release()

    async def _take(self, statement: str) -> Connection:
        if os.getpid() != self._pid:
            # A forked child shares its parent's sockets: it must not write a byte into them, not even to
            # say goodbye.
            self._idle, self._usual, self._used, self._pid = {}, {}, set(), os.getpid()
        while self._idle:
            connection = self._usual.get(statement)
            if connection in self._idle:
                del self._idle[connection]
            else:
                connection, _ = self._idle.popitem()
            if not connection.is_closed():
                break
        else:
            connection = await self._connect()
        self._usual[statement] = connection
        return connection

    def _put_back(self, connection: Connection) -> None:
        self._used.discard(connection)
        if self._closed or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
        else:
            self._idle[connection] = None

    def _discard(self, connection: Connection) -> None:
        """Close it behind the caller's back: the driver may be telling the server to stop."""
        self._used.discard(connection)
        closing = asyncio.ensure_future(_close(connection, PATIENCE))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close what is idle, and end what is still used."""
        self._closed = True
        idle, self._idle = self._idle, {}
        self._usual.clear()
        await asyncio.gather(*self._closing, *(_close(connection, PATIENCE) for connection in idle))
        for connection in list(self._used):
            connection.terminate()


async def _close(connection: Connection, patience: float) -> None:
    try:
        await connection.close(timeout=patience)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
