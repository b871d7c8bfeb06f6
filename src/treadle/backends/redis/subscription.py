"""Subscriptions: channels that are listened to on one connection, which is opened again when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import hiredis

from treadle.base.loop_mark import LoopMark
from treadle.errors import TreadleError
from treadle.store.listening import Listening

from .connection import RedisConnection
from .connector import OnPush, RedisConnector
from .errors import brief

SWITCHES: Final = (b"+switch-master", b"+promoted-slave")
"""Channels of Sentinels. The one that leads names the new primary on the second, and sends the first when all
replicas follow it. The others send the first only."""


class SubscribedConnection:
    """A connection that subscribes with these commands."""

    def __init__(self, connection: RedisConnection, commands: Sequence[tuple[bytes, bytes]]) -> None:
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
    connect: Callable[[OnPush], Awaitable[RedisConnection]],
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
