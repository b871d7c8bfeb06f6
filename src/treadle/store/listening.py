"""Listening: one connection on which a server sends messages, opened again when it is lost. And `keep_alive`,
for connections to servers."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from treadle.base.loop_mark import LoopMark
from treadle.item import Wake
from treadle.retry import STORE_BACKOFF

from .wakeups import WakeReceivers

log = logging.getLogger("treadle")

PROBE_SECONDS: Final = 20.0
"""Seconds of silence after which a connection is checked."""
ANSWER_SECONDS: Final = 3.0
"""Seconds that the server may take to answer."""
ABSENCE_SECONDS: Final = 60.0
"""Seconds after which an absence is logged."""


class ListeningConnection(Protocol):
    @property
    def lost(self) -> asyncio.Event: ...

    async def begin(self) -> None:
        """Listen."""
        ...

    async def probe(self) -> None:
        """Raise if the server does not answer."""
        ...

    async def close(self) -> None: ...

    def abort(self) -> None:
        """Close it without a word to the server."""
        ...

    def abandon(self, mark: LoopMark, /) -> None:
        """Free what it has. Its event loop is gone."""
        ...


class Listening:
    """Listens while it is started.

    on_begin: called whenever it has begun, with whether messages may have been missed before.
    errors: what `connect`, and a connection, raise while the server is away.
    listens_for, instead: words for the log, for an absence.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[ListeningConnection]],
        on_begin: Callable[[bool], Awaitable[None]],
        errors: tuple[type[BaseException], ...],
        brief: Callable[[BaseException], str],
        *,
        listens_for: str = "wake-ups",
        instead: str = "polling goes on",
    ) -> None:
        self._connect = connect
        self._on_begin = on_begin
        self._errors = errors
        self._absence = ListenerAbsence(brief, listens_for, instead)
        self._task: asyncio.Task[None] | None = None
        self._mark: LoopMark | None = None
        """Where the task runs."""
        self._connection: ListeningConnection | None = None
        self.tried = asyncio.Event()
        """Whether the first try to connect is over."""

    def start(self) -> None:
        if self._task is None:
            self.tried, self._mark = asyncio.Event(), LoopMark()
            self._task = asyncio.create_task(self._run(), name="treadle-listen")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def renew(self) -> None:
        """Drop the connection: the next one begins anew."""
        if self._connection is not None:
            self._connection.abort()

    def abandon(self) -> None:
        """Forget the connection if its event loop is gone."""
        if self._mark is not None and self._mark.is_gone:
            if self._connection is not None:
                self._connection.abandon(self._mark)
            self._task = self._mark = self._connection = None

    async def _run(self) -> None:
        failures = 0
        while True:
            missed = self.tried.is_set()
            try:
                connection = self._connection = await self._connect()
                try:
                    await self._listen(connection, missed)
                finally:
                    self._connection = None
                    await connection.close()
                failures = 0
            except self._errors as error:
                failures += 1
                self._absence.failed(error, first_ever=not self.tried.is_set())
            self.tried.set()
            await asyncio.sleep(STORE_BACKOFF.delay(max(1, failures)))

    async def _listen(self, connection: ListeningConnection, missed: bool) -> None:
        """Listen until the connection is lost."""
        async with asyncio.timeout(ANSWER_SECONDS):
            await connection.begin()
        self._absence.over()
        self.tried.set()
        await self._on_begin(missed)
        while not connection.lost.is_set():
            try:
                await asyncio.wait_for(connection.lost.wait(), PROBE_SECONDS)
            except TimeoutError:
                # A connection can be dead without a sign of it.
                async with asyncio.timeout(ANSWER_SECONDS):
                    await connection.probe()


class ListenerAbsence:
    """Logs, once, that messages have not been received for a while. The calls of the engine tell of an outage
    of the server sooner: only what lasts longer, or is there from the beginning, is worth a line."""

    def __init__(self, brief: Callable[[BaseException], str], listens_for: str, instead: str) -> None:
        self._brief = brief
        self._listens_for = listens_for
        self._instead = instead
        self._since: float | None = None
        self._logged = False

    def failed(self, error: BaseException, *, first_ever: bool) -> None:
        now = time.monotonic()
        self._since = self._since or now
        if not self._logged and (first_ever or now - self._since >= ABSENCE_SECONDS):
            self._logged = True
            log.warning("cannot listen for %s, %s: %s", self._listens_for, self._instead, self._brief(error))

    def over(self) -> None:
        if self._logged:
            log.warning("listening for %s again", self._listens_for)
        self._since, self._logged = None, False


class WakeListener:
    """Receivers of wake-ups, and the connection on which these arrive."""

    def __init__(self, listening: Listening) -> None:
        self._receivers = WakeReceivers()
        self._listening = listening

    async def subscribe(self, receive: Callable[[Wake], None], *, listen: bool = True) -> Callable[[], None]:
        """If `listen`, the first try to connect is over when this returns."""
        unsubscribe = self._receivers.add(receive)
        if listen:
            self._listening.start()
            await self._listening.tried.wait()
        return unsubscribe

    async def close(self) -> None:
        self._receivers.clear()
        await self._listening.stop()

    def abandon(self) -> None:
        """Forget the receivers whose event loops are gone, and the connection if its loop is."""
        self._receivers.abandon()
        self._listening.abandon()


def keep_alive(transport: asyncio.BaseTransport | None, options: Mapping[str, int]) -> None:
    """Let the kernel end a connection if the other side does not acknowledge anything.

    options: those of TCP, by name.
    """
    link = None if transport is None else transport.get_extra_info("socket")
    if link is None or link.family not in (socket.AF_INET, socket.AF_INET6):
        return
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options.items():
        option = getattr(socket, name, None)  # not every system has all of them
        if option is not None:
            link.setsockopt(socket.IPPROTO_TCP, option, value)
