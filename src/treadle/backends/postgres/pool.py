"""A bounded pool of connections to PostgreSQL."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from treadle.base.loop_mark import LoopMark, keep_for_ever

from .errors import CONNECTION_ERRORS, NothingSent, is_away
from .link import LinkWatch
from .schema import Connection
from .statements import statements

_sql = statements("connection")
RESET_SESSION: Final = _sql("reset_session")

CLOSE_SECONDS: Final = 2.0
"""Seconds that the server may take to close a connection."""


class PostgresPool:
    """At most `size` connections, `reserved` of them for settling and heartbeats only.

    A transaction of a handler keeps its connection for as long as the handler likes, so at most half of the
    others are lent for that. If there is only one other, a transaction gets a connection beyond `size`.

    A connection is used again only if it is known to be idle. After a cancellation, a timeout or a lost
    connection the state of the server is unknown, so the connection is closed and the next caller gets a new
    one. `greet` asks the server for a sign of life; `away` is called when it gave none.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        greet: Callable[[], Awaitable[None]],
        *,
        size: int,
        reserved: int,
        away: Callable[[], None] = lambda: None,
    ) -> None:
        if not 0 <= reserved < size:
            raise ValueError("a pool needs more connections than it reserves")
        self._connect = connect
        self._idle: dict[Connection, None] = {}
        """The last is the one that was put back last."""
        self._usual: dict[str, Connection] = {}
        """Where each statement was carried out last."""
        self._used: set[Connection] = set()
        self._all = asyncio.Semaphore(size)
        ordinary = size - reserved
        self._ordinary = asyncio.Semaphore(ordinary)
        self._transactions = asyncio.Semaphore(max(1, ordinary // 2))
        self._is_small = ordinary == 1
        self._background: dict[asyncio.Task[None], Connection] = {}
        """The tasks that close connections, or reset them."""
        self._closed = False
        self._away = away
        self._watch = LinkWatch(greet, self._drop)
        self._failed: tuple[float, BaseException] | None = None
        """When the server could not be reached last, and the error."""
        self.mark = LoopMark()
        _pools.add(self)

    @asynccontextmanager
    async def connection(
        self, *, vital: bool = False, statement: str = ""
    ) -> AsyncGenerator[Connection, None]:
        """A connection, for one use. `vital`: it may be one of the reserved ones. `statement`: see `lend`."""
        connection = await self.lend(vital, statement)
        try:
            yield connection
        except BaseException as error:
            self.take_back(connection, vital, error)
            raise
        self.take_back(connection, vital)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Connection, None]:
        """A connection in a transaction of a handler."""
        async with self._transactions:
            manager = self._beyond_size() if self._is_small else self._for_handler()
            async with manager as connection, connection.transaction():
                yield connection

    @asynccontextmanager
    async def _for_handler(self) -> AsyncGenerator[Connection, None]:
        """A connection whose session a handler may change. No other handler, and no other tenant, must find
        it changed: it is reset before its next use, after the handler has gone on."""
        connection = await self.lend(vital=False)
        try:
            yield connection
        except BaseException as error:
            if _is_usable_after(error):
                self._start(self._reset(connection), connection)
            else:
                self.take_back(connection, False, error)
            raise
        self._start(self._reset(connection), connection)

    async def _reset(self, connection: Connection) -> None:
        try:
            await connection.execute(RESET_SESSION, timeout=CLOSE_SECONDS)
        except Exception:  # noqa: BLE001  after any error the session may still be changed
            connection.terminate()
        except BaseException as error:
            self.take_back(connection, False, error)
            raise
        self.take_back(connection, False)

    @asynccontextmanager
    async def _beyond_size(self) -> AsyncGenerator[Connection, None]:
        connection = await self._idle_or_new("", time.monotonic())
        self._used.add(connection)
        try:
            yield connection
        finally:
            self._discard(connection)

    async def lend(self, vital: bool, statement: str = "") -> Connection:
        """The same in two steps, for calls: there the context manager took a quarter of the driver's time.

        A statement gets the connection that it had before, if that is idle: there the server has it prepared.
        (One after the other, submissions took 430 us each, and 500 when a NOTIFY took their connection now
        and then.)
        """
        asked = time.monotonic()
        if not vital:
            await self._ordinary.acquire()
        try:
            await self._all.acquire()
            try:
                connection = await self._idle_or_new(statement, asked)
            except BaseException:
                self._all.release()
                raise
        except BaseException:
            if not vital:
                self._ordinary.release()
            raise
        self._used.add(connection)
        return connection

    def has_idle(self) -> bool:
        """Whether `lend` would answer at once."""
        free = not (self._ordinary.locked() or self._all.locked())
        return free and bool(self._idle) and not any(each.is_closed() for each in self._idle)

    def take_back(self, connection: Connection, vital: bool, error: BaseException | None = None) -> None:
        """Put a connection back, or close it if `error`, raised by its use, leaves its state unknown.

        If the server refused, or the driver did before it sent anything, the connection is fine. A server
        that is shutting down has not closed the connection yet, so that one is closed here."""
        self._watch.end(connection)
        if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
            # At once: it may be the loop that is ending, and then no task would get to its end.
            self._used.discard(connection)
            connection.terminate()
        else:
            (self._put_back if _is_usable_after(error) else self._discard)(connection)
        self._all.release()
        if not vital:
            self._ordinary.release()

    async def _idle_or_new(self, statement: str, asked: float) -> Connection:
        while self._idle:
            connection = self._usual.get(statement)
            if connection in self._idle:
                del self._idle[connection]
            else:
                connection, _ = self._idle.popitem()
            if not connection.is_closed():
                break
        else:
            connection = await self._new(asked)
        self._usual[statement] = connection
        return connection

    async def _new(self, asked: float) -> Connection:
        """A new connection. It fails at once if the server could not be reached since the caller asked:
        callers that wait for each other would otherwise fail one after the other."""
        if self._failed is not None and self._failed[0] > asked:
            raise NothingSent from self._failed[1]
        try:
            return await self._connect()
        except (*CONNECTION_ERRORS, asyncpg.PostgresError) as error:
            self._failed = time.monotonic(), error
            raise NothingSent from error

    def _put_back(self, connection: Connection) -> None:
        self._used.discard(connection)
        if self._closed or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
        else:
            self._idle[connection] = None

    def _discard(self, connection: Connection) -> None:
        """Close it in the background: the driver may be telling the server to stop the statement."""
        self._used.discard(connection)
        self._start(_close(connection), connection)

    def _start(self, coroutine: Coroutine[Any, Any, None], connection: Connection) -> None:
        task = asyncio.create_task(coroutine)
        self._background[task] = connection
        task.add_done_callback(self._background.pop)

    def begin(self, connection: Connection) -> None:
        """A statement is sent on this connection: watch it until the connection is taken back."""
        self._watch.begin(connection)

    def _drop(self) -> None:
        """The server gave no sign of life: idle connections are as dead as those that wait for an answer."""
        self._failed = time.monotonic(), TimeoutError("the server gives no sign of life")
        idle, self._idle = self._idle, {}
        self._usual.clear()
        for connection in idle:
            connection.terminate()
        self._away()

    async def close(self) -> None:
        """Close the idle connections, and terminate those in use."""
        self._closed = True
        self._watch.stop()
        _pools.discard(self)
        idle, self._idle = self._idle, {}
        self._usual.clear()
        await asyncio.gather(*self._background, *(_close(connection) for connection in idle))
        for connection in list(self._used):
            connection.terminate()

    def abandon(self) -> None:
        """End the connections: their event loop is closed. A forked process keeps those of its parent."""
        self._closed = True
        _pools.discard(self)
        for connection in (*self._idle, *self._used, *self._background.values()):
            abandon_connection(connection, self.mark, self._background)
        self._idle, self._usual, self._used, self._background = {}, {}, set(), {}


def _is_usable_after(error: BaseException | None) -> bool:
    """Whether a connection is idle again although its use raised this error."""
    if error is None:
        return True
    return isinstance(error, (asyncpg.PostgresError, ValueError)) and not is_away(error)


_pools: Final[set[PostgresPool]] = set()
"""Those that are open."""


@atexit.register
def abandon_dead_pools() -> None:
    """End the connections that closed event loops of this process have left open."""
    for pool in [each for each in _pools if each.mark.is_gone]:
        pool.abandon()


def abandon_connection(
    connection: Connection, mark: LoopMark, closing: Iterable[asyncio.Task[None]] = ()
) -> None:
    """End a connection whose event loop is gone, and the tasks that were closing it. A forked process shares
    its parent's sockets: it must not write a byte into them, not even to end the connection."""
    if mark.is_inherited:
        keep_for_ever((connection, *closing))
        return
    for task in (*closing, *getattr(connection, "_cancellations", ())):
        _abandon_task(task)
    transport: Any = getattr(connection, "_transport", None)
    with contextlib.suppress(RuntimeError):  # the driver has told the server, and then needs the loop
        connection.terminate()
    socket = getattr(transport, "_sock", None)
    if socket is not None:
        socket.close()
        transport._sock = None  # else its destructor warns that it was not closed


def _abandon_task(task: asyncio.Task[None]) -> None:
    """End the coroutine of a task that cannot go on. Destroyed as it is, it would log errors."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    with contextlib.suppress(RuntimeError):  # what it does at its end may need the loop
        task.get_coro().close()


async def _close(connection: Connection) -> None:
    try:
        await connection.close(timeout=CLOSE_SECONDS)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
