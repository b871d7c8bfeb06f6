"""Wake-ups: PUBLISH behind the other calls, and SUBSCRIBE on one connection that is opened again when lost.

PUBLISH goes out on the connection for work, and no caller waits for its answer: it costs no round trip. In a
cluster wake-ups are sharded (SPUBLISH): only the node with the namespace handles them.

They are JSON that a user of the server can read or send only if the rules (ACL) grant the channel to it. The
channel has the same name as the keys, which are granted with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from treadle.item import Wake
from treadle.store.wakeups import EVERYTHING, WakePublisher, WakeReceivers, decode_wake, encode_wake

from .connection import RedisConnection
from .connector import OnPush
from .subscription import subscription

MOST_BYTES: Final = 32_000
"""Length from which a wake-up is replaced by one that says that everything may have changed."""
PER_SECOND: Final = 500
WHEN_BUSY: Final = 100
"""Wake-ups per second, when each stands for several occasions: the receivers are busy then."""
AT_ONCE: Final = 3
"""Lone wake-ups that are sent without a wait in between."""


def short_wake(wake: Wake) -> bytes:
    payload = encode_wake(wake)
    if len(payload) > MOST_BYTES:
        payload = encode_wake(Wake(sender=wake.sender, ready=True, everything=True))
    return payload


def redis_publisher(send: Callable[[bytes], Awaitable[None]]) -> WakePublisher:
    return WakePublisher(
        lambda wake: send(short_wake(wake)),
        lone=PER_SECOND,
        per_second=PER_SECOND,
        when_busy=WHEN_BUSY,
        at_once=AT_ONCE,
    )


class RedisListener:
    """Delivers the wake-ups of a channel to the subscribers. `sharded`: it is a channel of a cluster."""

    def __init__(
        self, connect: Callable[[OnPush], Awaitable[RedisConnection]], channel: bytes, *, sharded: bool
    ) -> None:
        self._receivers = WakeReceivers()
        self.deliver = self._receivers.deliver
        self._listening = subscription(
            connect,
            [(b"SSUBSCRIBE" if sharded else b"SUBSCRIBE", channel)],
            self._on_push,
            self._began,
        )

    async def subscribe(self, receive: Callable[[Wake], None], *, listen: bool) -> Callable[[], None]:
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

    async def _began(self, missed: bool) -> None:
        if missed:
            self.deliver(EVERYTHING)

    def _on_push(self, message: list[Any]) -> None:
        if message[0] in (b"message", b"smessage"):
            wake = decode_wake(message[2]) if isinstance(message[2], bytes) else None
            if wake is not None:
                self.deliver(wake)
        else:  # the slot has moved, and the channel with it
            self._listening.renew()
