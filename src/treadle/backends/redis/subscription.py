"""Subscriptions: channels that are listened to on one connection, which is opened again when it is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import hiredis

from treadle.base.loop_mark import LoopMark
from treadle.errors import TreadleError
from treadle.retry import STORE_BACKOFF

from .connection import RedisConnection
from .connector import OnPush
from .errors import brief

log = logging.getLogger("treadle.redis")

PROBE_SECONDS: Final = 20.0
"""After this time a silent listening connection is checked."""
ANSWER_SECONDS: Final = 3.0
"""How long the server may take to answer on the listening connection."""
ABSENCE_SECONDS: Final = 60.0
"""Only an absence of the listener that lasts so long is logged."""


class RedisSubscription:
    """Listens while it is started.

    commands: what subscribes.
    on_push: called with each message.
    on_begin: called whenever it has subscribed, with whether messages may have been missed before.
    listens_for, instead: words for the log, for an absence.
    """

    def __init__(
        self,
        connect: Callable[[OnPush], Awaitable[RedisConnection]],
        commands: Sequence[tuple[bytes, bytes]],
        on_push: OnPush,
        on_begin: Callable[[bool], Awaitable[None]],
        *,
        listens_for: str,
        instead: str,
    ) -> None:
        self._connect = connect
        self._commands = commands
        self._on_push = on_push
        self._on_begin = on_begin
        self._words = (listens_for, instead)
        self._task: asyncio.Task[None] | None = None
        self._mark: LoopMark | None = None
        """Where the task runs."""
        self._connection: RedisConnection | None = None
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
                self._connection.abandon()
            self._task = self._mark = self._connection = None

    async def _run(self) -> None:
        failures = 0
        absence = ListenerOutage(*self._words)
        while True:
            missed = self.tried.is_set()
            try:
                connection = self._connection = await self._connect(self._on_push)
                try:
                    await self._listen(connection, missed, absence)
                finally:
                    self._connection = None
                    await connection.close()
                failures = 0
            except (TreadleError, hiredis.ReplyError, TimeoutError) as error:
                failures += 1
                absence.failed(error, first_ever=not missed)
            self.tried.set()
            await asyncio.sleep(STORE_BACKOFF.delay(max(1, failures)))

    async def _listen(self, connection: RedisConnection, missed: bool, absence: ListenerOutage) -> None:
        """Listen until the connection is lost."""
        async with asyncio.timeout(ANSWER_SECONDS):
            for command in self._commands:
                await connection.call(*command)
        absence.over()
        self.tried.set()
        await self._on_begin(missed)
        while not connection.lost.is_set():
            try:
                await asyncio.wait_for(connection.lost.wait(), PROBE_SECONDS)
            except TimeoutError:
                # A connection can be dead without a sign of it.
                async with asyncio.timeout(ANSWER_SECONDS):
                    await connection.call(b"PING")


class ListenerOutage:
    """Logs, once, that messages have not been received for a while. The calls of the engine tell of an outage
    of the server sooner: only what lasts longer, or is there from the beginning, is worth a line."""

    def __init__(self, listens_for: str, instead: str) -> None:
        self._listens_for = listens_for
        self._instead = instead
        self._since: float | None = None
        self._logged = False

    def failed(self, error: BaseException, *, first_ever: bool) -> None:
        now = time.monotonic()
        self._since = self._since or now
        if not self._logged and (first_ever or now - self._since >= ABSENCE_SECONDS):
            self._logged = True
            log.warning("cannot listen for %s, %s: %s", self._listens_for, self._instead, brief(error))

    def over(self) -> None:
        if self._logged:
            log.warning("listening for %s again", self._listens_for)
        self._since, self._logged = None, False
