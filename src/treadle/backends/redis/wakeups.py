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

import msgspec

from treadle.base.loop_mark import LoopMark
from treadle.item import Wake

from .connection import RedisConnection
from .connector import OnPush
from .subscription import RedisSubscription

log = logging.getLogger("treadle.redis")

EVERYTHING: Final = Wake(ready=True, everything=True)
MOST_BYTES: Final = 32_000
"""A longer wake-up is replaced by one that says that everything may have changed."""
PER_SECOND: Final = 500
WHEN_BUSY: Final = 100
"""Per second, when each stands for several occasions: the receivers are busy then."""
AT_ONCE: Final = 3
"""So many lone wake-ups are sent without a wait in between."""

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
        self._receivers: dict[object, tuple[Callable[[Wake], None], LoopMark]] = {}
        self._subscription = RedisSubscription(
            connect,
            [(b"SSUBSCRIBE" if sharded else b"SUBSCRIBE", channel)],
            self._on_push,
            self._began,
            listens_for="wake-ups",
            instead="polling goes on",
        )

    async def subscribe(self, receive: Callable[[Wake], None], *, listen: bool) -> Callable[[], None]:
        """If `listen`, the first try to connect is over when this returns."""
        key = object()
        self._receivers[key] = (receive, LoopMark())
        if listen:
            self._subscription.start()
            await self._subscription.tried.wait()

        def unsubscribe() -> None:
            self._receivers.pop(key, None)

        return unsubscribe

    async def close(self) -> None:
        self._receivers.clear()
        await self._subscription.stop()

    def abandon(self) -> None:
        """Forget the receivers whose event loops are gone, and the connection if its loop is."""
        self._receivers = {key: each for key, each in self._receivers.items() if not each[1].is_gone}
        self._subscription.abandon()

    async def _began(self, missed: bool) -> None:
        if missed:
            self.deliver(EVERYTHING)

    def _on_push(self, message: list[Any]) -> None:
        if message[0] in (b"message", b"smessage"):
            wake = decode_wake(message[2])
            if wake is not None:
                self.deliver(wake)
        else:  # the slot has moved, and the channel with it
            self._subscription.renew()

    def deliver(self, wake: Wake) -> None:
        here = asyncio.get_running_loop()
        for receive, mark in list(self._receivers.values()):
            if mark.loop is here:
                _receive(receive, wake)
            elif not mark.is_gone:
                mark.loop.call_soon_threadsafe(_receive, receive, wake)


def _receive(receive: Callable[[Wake], None], wake: Wake) -> None:
    try:
        receive(wake)
    except Exception:
        log.exception("a receiver of wake-ups raised")
