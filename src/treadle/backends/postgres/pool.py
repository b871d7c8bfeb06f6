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
        self._idle: list[Connection] = []
        self._used: set[Connection] = set()
        self._all = asyncio.Semaphore(size)
        self._ordinary = asyncio.Semaphore(size - reserved)
        self._closing: set[asyncio.Future[None]] = set()
        self._pid = os.getpid()
        self._closed = False

    @asynccontextmanager
    async def connection(self, *, vital: bool = False) -> AsyncGenerator[Connection, None]:
        """A connection, for one use. `vital` ones may be taken from the reserve."""
        if vital:
            async with self._all, self._lent() as connection:
                yield connection
        else:
            async with self._ordinary, self._all, self._lent() as connection:
                yield connection

    @asynccontextmanager
    async def _lent(self) -> AsyncGenerator[Connection, None]:
        connection = await self._take()
        self._used.add(connection)
        try:
            yield connection
        except (asyncpg.PostgresError, ValueError) as error:
            # The server refused, or the driver did before it sent anything. A server that says goodbye has
            # not hung up yet: whoever used that connection next would hear of it.
            (self._discard if is_away(error) else self._put_back)(connection)
            raise
        except BaseException:
            self._discard(connection)
            raise
        else:
            self._put_back(connection)

    async def _take(self) -> Connection:
        if os.getpid() != self._pid:
            # A forked child shares its parent's sockets: it must not write a byte into them, not even to
            # say goodbye.
            self._idle, self._used, self._pid = [], set(), os.getpid()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await self._connect()

    def _put_back(self, connection: Connection) -> None:
        self._used.discard(connection)
        if self._closed or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
        else:
            self._idle.append(connection)

    def _discard(self, connection: Connection) -> None:
        """Close it behind the caller's back: the driver may be telling the server to stop."""
        self._used.discard(connection)
        closing = asyncio.ensure_future(_close(connection, PATIENCE))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close what is idle, and end what is still used."""
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*self._closing, *(_close(connection, PATIENCE) for connection in idle))
        for connection in list(self._used):
            connection.terminate()


async def _close(connection: Connection, patience: float) -> None:
    try:
        await connection.close(timeout=patience)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
