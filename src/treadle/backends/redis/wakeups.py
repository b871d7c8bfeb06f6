"""Wake-ups: PUBLISH behind the other calls, and SUBSCRIBE on one connection that is opened again when lost.

PUBLISH goes out on the connection for work, and no caller waits for its answer: it costs no round trip.
Losing a wake-up costs latency, never work: after the listener was away, it delivers one that says that
everything may have changed. In a cluster they are sharded (SPUBLISH): only the node with the namespace
handles them.

They are not sealed. A user of the server can read or send them only if the rules (ACL) grant the channel to
it, and the channel has the same name as the keys, which are granted with it. What cannot be read is ignored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import hiredis
import msgspec

from treadle.errors import TreadleError
from treadle.item import Wake
from treadle.loop_mark import LoopMark
from treadle.retry import STORE_BACKOFF

from .connection import RedisConnection
from .connector import OnPush
from .errors import brief

log = logging.getLogger("treadle.redis")

EVERYTHING: Final = Wake(ready=True, everything=True)
MOST_BYTES: Final = 32_000
"""A longer wake-up is replaced by one that says that everything may have changed."""
PER_SECOND: Final = 500
WHEN_BUSY: Final = 100
"""Per second, when each stands for several occasions: the receivers are busy then."""
AT_ONCE: Final = 3
"""So many lone wake-ups are sent without a wait in between."""
PROBE_SECONDS: Final = 20.0
"""After this time a silent listening connection is checked."""
ANSWER_SECONDS: Final = 3.0
"""How long the server may take to answer on the listening connection."""
ABSENCE_SECONDS: Final = 60.0
"""Only an absence of the listener that lasts so long is logged."""

_decode = msgspec.json.Decoder(Wake).decode
_encode = msgspec.json.Encoder().encode


def encode_wake(wake: Wake) -> bytes:
    payload = _encode(wake)
    if len(payload) > MOST_BYTES:
        payload = _encode(Wake(sender=wake.sender, ready=True, everything=True))
    return payload


def decode_wake(payload: object) -> Wake | None:
    """None for what no publisher of wake-ups has sent."""
    try:
        return _decode(payload) if isinstance(payload, bytes) else None
    except (msgspec.MsgspecError, RecursionError):
        return None


class RedisPublisher:
    """Sends wake-ups, but not too often: the caller collects those that come meanwhile."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send
        self._free_at = 0.0

    async def publish(self, wake: Wake) -> None:
        """Returns when it was sent, or could not be."""
        if wake == Wake():
            return
        now = time.monotonic()
        wait = self._free_at - now
        spacing = min(wake.times / PER_SECOND, 1 / WHEN_BUSY)
        self._free_at = max(self._free_at, now - AT_ONCE / PER_SECOND) + spacing
        if wait > 0:
            await asyncio.sleep(wait)
        try:
            await self._send(encode_wake(wake))
        except Exception:
            log.debug("a wake-up was not sent", exc_info=True)


class RedisListener:
    """Delivers the wake-ups of a channel to the subscribers. `sharded`: it is a channel of a cluster."""

    def __init__(
        self, connect: Callable[[OnPush], Awaitable[RedisConnection]], channel: bytes, *, sharded: bool
    ) -> None:
        self._connect = connect
        self._subscribe = (b"SSUBSCRIBE" if sharded else b"SUBSCRIBE", channel)
        self._receivers: dict[object, tuple[Callable[[Wake], None], LoopMark]] = {}
        self._task: asyncio.Task[None] | None = None
        self._mark: LoopMark | None = None
        """Where the task runs."""
        self._connection: RedisConnection | None = None
        self._tried = asyncio.Event()

    async def subscribe(self, receive: Callable[[Wake], None], *, listen: bool) -> Callable[[], None]:
        """If `listen`, the first try to connect is over when this returns."""
        key = object()
        self._receivers[key] = (receive, LoopMark())
        if listen:
            if self._task is None:
                self._tried, self._mark = asyncio.Event(), LoopMark()
                self._task = asyncio.create_task(self._run(), name="treadle-listen")
            await self._tried.wait()

        def unsubscribe() -> None:
            self._receivers.pop(key, None)

        return unsubscribe

    async def close(self) -> None:
        task, self._task = self._task, None
        self._receivers.clear()
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def abandon(self) -> None:
        """Forget the receivers whose event loops are gone, and the connection if its loop is."""
        self._receivers = {key: each for key, each in self._receivers.items() if not each[1].is_gone}
        if self._mark is not None and self._mark.is_gone:
            if self._connection is not None:
                self._connection.abandon()
            self._task = self._mark = self._connection = None

    async def _run(self) -> None:
        failures = 0
        absence = ListenerOutage()
        while True:
            missed = self._tried.is_set()
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
            self._tried.set()
            await asyncio.sleep(STORE_BACKOFF.delay(max(1, failures)))

    async def _listen(self, connection: RedisConnection, missed: bool, absence: ListenerOutage) -> None:
        """Listen until the connection is lost."""
        async with asyncio.timeout(ANSWER_SECONDS):
            await connection.call(*self._subscribe)
        absence.over()
        self._tried.set()
        if missed:
            self.deliver(EVERYTHING)
        while not connection.lost.is_set():
            try:
                await asyncio.wait_for(connection.lost.wait(), PROBE_SECONDS)
            except TimeoutError:
                # A connection can be dead without a sign of it.
                async with asyncio.timeout(ANSWER_SECONDS):
                    await connection.call(b"PING")

    def _on_push(self, message: list[Any]) -> None:
        if message[0] in (b"message", b"smessage"):
            wake = decode_wake(message[2])
            if wake is not None:
                self.deliver(wake)
        elif self._connection is not None:  # the slot has moved, and the channel with it
            self._connection.abort()

    def deliver(self, wake: Wake) -> None:
        here = asyncio.get_running_loop()
        for receive, mark in list(self._receivers.values()):
            if mark.loop is here:
                _receive(receive, wake)
            elif not mark.is_gone:
                mark.loop.call_soon_threadsafe(_receive, receive, wake)


class ListenerOutage:
    """Logs, once, that wake-ups have not been received for a while. The calls of the engine tell of an outage
    of the server sooner: only what lasts longer, or is there from the beginning, is worth a line."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._logged = False

    def failed(self, error: BaseException, *, first_ever: bool) -> None:
        now = time.monotonic()
        self._since = self._since or now
        if not self._logged and (first_ever or now - self._since >= ABSENCE_SECONDS):
            self._logged = True
            log.warning("cannot listen for wake-ups, polling goes on: %s", brief(error))

    def over(self) -> None:
        if self._logged:
            log.warning("listening for wake-ups again")
        self._since, self._logged = None, False


def _receive(receive: Callable[[Wake], None], wake: Wake) -> None:
    try:
        receive(wake)
    except Exception:
        log.exception("a receiver of wake-ups raised")
