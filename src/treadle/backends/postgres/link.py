"""The network between this process and the server: notice that it drops everything, without closing anything.

A call that is not answered may be slow, or its answer may never come: from here both look the same. So when
a call takes long, the server is asked for a sign of life: a new login. If there is none, the calls are ended,
and their callers learn within three seconds that the server is away. A slow call of a server that answers
goes on. Idle connections, and those of handlers' transactions, are watched by the kernel.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg

from .errors import CONNECTION_ERRORS
from .schema import Connection

LATE: Final = 1.0
"""Seconds without an answer after which the server is asked for a sign of life."""
AGAIN_SECONDS: Final = 2.0
"""Seconds after which it is asked again."""
CHECK_SECONDS: Final = 0.5
"""Seconds between two looks for late calls."""


class LinkWatch:
    """Watches the calls of a pool.

    greet: returns if the server gave a sign of life, or raises.
    away: called when it gave none.
    """

    def __init__(self, greet: Callable[[], Awaitable[None]], away: Callable[[], None]) -> None:
        self._greet = greet
        self._away = away
        self._begun: dict[Connection, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._probe: asyncio.Task[None] | None = None
        self._probe_at = 0.0
        """Not before this time the server is asked again."""

    def begin(self, connection: Connection) -> None:
        """A call begins on this connection."""
        self._begun[connection] = time.monotonic()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)

    def end(self, connection: Connection) -> None:
        self._begun.pop(connection, None)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._probe is not None:
            self._probe.cancel()

    def _check(self) -> None:
        self._timer = None
        if not self._begun:
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(CHECK_SECONDS, self._check)
        if self._probe is None and time.monotonic() >= self._probe_at and self._late():
            self._probe = loop.create_task(self._look(), name="treadle-link")

    def _late(self) -> list[Connection]:
        now = time.monotonic()
        return [connection for connection, begun in self._begun.items() if now - begun >= LATE]

    async def _look(self) -> None:
        try:
            if not await self._has_sign_of_life():
                for connection in self._late():
                    connection.terminate()
                self._away()
        finally:
            self._probe, self._probe_at = None, time.monotonic() + AGAIN_SECONDS

    async def _has_sign_of_life(self) -> bool:
        try:
            await self._greet()
        except asyncpg.PostgresError:
            return True  # it refuses, so it lives
        except CONNECTION_ERRORS:
            return False
        return True
