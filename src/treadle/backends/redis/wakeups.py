"""Wake-ups: PUBLISH behind the other calls, and SUBSCRIBE on one connection that is opened again when lost.

PUBLISH goes out on the connection for work, and no caller waits for its answer: it costs no round trip. In a
cluster wake-ups are sharded (SPUBLISH): only the node with the namespace handles them.

They are JSON that a user of the server can read or send only if the rules (ACL) grant the channel to it. The
channel has the same name as the keys, which are granted with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

import hiredis

from treadle.base.loop_mark import LoopMark
from treadle.errors import TreadleError
from treadle.item import Wake
from treadle.store.listening import Listening, WakeListener
from treadle.store.wakeups import EVERYTHING, WakePublisher, decode_wake, encode_wake

from .connection import OnPush, RedisConnection
from .connector import RedisConnector
from .errors import brief
from .nodes import Listener

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


Connect: TypeAlias = Callable[[OnPush], Awaitable[RedisConnection | Listener]]


class RedisListener(WakeListener):
    """Delivers the wake-ups of a channel to the subscribers. `sharded`: it is a channel of a cluster."""

    def __init__(self, connect: Connect, channel: bytes, *, sharded: bool) -> None:
        command = b"SSUBSCRIBE" if sharded else b"SUBSCRIBE"
        super().__init__(subscription(connect, [(command, channel)], self._on_push, self._began))
        self.deliver = self._receivers.deliver

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


# -- subscriptions: channels on one connection -------------------------------------------------------


SWITCHES: Final = (b"+switch-master", b"+promoted-slave")
"""Channels of Sentinels. The one that leads names the new primary on the second, and sends the first when all
replicas follow it. The others send the first only."""


class SubscribedConnection:
    """A connection that subscribes with these commands."""

    def __init__(
        self, connection: RedisConnection | Listener, commands: Sequence[tuple[bytes, bytes]]
    ) -> None:
        self._connection = connection
        self._commands = commands
        self.close = connection.close
        self.abort = connection.abort

    @property
    def lost(self) -> asyncio.Event:
        return self._connection.lost

    async def begin(self) -> None:
        for command in self._commands:
            await self._connection.call(*command)

    async def probe(self) -> None:
        await self._connection.call(b"PING")

    def abandon(self, _mark: LoopMark) -> None:
        self._connection.abandon()


def subscription(
    connect: Connect,
    commands: Sequence[tuple[bytes, bytes]],
    on_push: OnPush,
    on_begin: Callable[[bool], Awaitable[None]],
    **words: str,
) -> Listening:
    """commands: what subscribes. on_push: called with each message. The rest: see `Listening`."""

    async def subscribed() -> SubscribedConnection:
        return SubscribedConnection(await connect(on_push), commands)

    return Listening(subscribed, on_begin, (TreadleError, hiredis.ReplyError, TimeoutError), brief, **words)


def primary_switches(connector: RedisConnector) -> Listening | None:
    """Follow the primary that Sentinels name, also while the old one answers. None: there are no Sentinels.

    After `SENTINEL FAILOVER` the old primary takes writes for about ten seconds, and loses them when it
    becomes a replica. So each link listens at one Sentinel, and leaves the old primary when the Sentinel
    names another.
    """
    if not connector.has_sentinels:
        return None
    service = connector.address.service.encode()

    def on_push(message: list[Any]) -> None:
        if message[0] == b"message" and service in message[2].split():
            switches.renew()  # it begins with the question that has to be asked now

    switches = subscription(
        connector.connect_sentinel,
        [(b"SUBSCRIBE", channel) for channel in SWITCHES],
        on_push,
        lambda _: connector.follow(),
        listens_for="a planned failover",
        instead="it may lose what is stored meanwhile",
    )
    return switches
