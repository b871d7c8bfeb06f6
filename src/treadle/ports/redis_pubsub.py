"""RedisPubSub: a `PubSub` on Redis or Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from treadle.logs.masking import masked

from .pubsub_link import LinkedPubSub, PubSubConnection

try:
    import hiredis

    from treadle.backends.redis.address import parse_address
    from treadle.backends.redis.connection import RedisConnection
    from treadle.backends.redis.connector import RedisConnector
    from treadle.backends.redis.errors import translated
    from treadle.backends.redis.nodes import Listener
except ModuleNotFoundError as error:
    if error.name != "hiredis":
        raise
    raise ModuleNotFoundError(
        "Redis needs its driver: pip install 'treadle[redis]'", name="hiredis"
    ) from None


class RedisPubSub(LinkedPubSub):
    """Messages on a channel of Redis: nothing is stored.

    - `url`: as for a store, so `redis://[user:password@]host[:port]`, `rediss://...` with TLS, and others.
    - `channel`: apps on one server need channels of their own, also if they use different databases of it.
    - `connect_timeout`: in seconds.

    It has two connections for each event loop: one that is subscribed can only listen.
    """

    def __init__(self, url: str, *, channel: str = "treadle", connect_timeout: float = 3.0) -> None:
        super().__init__()
        address = parse_address(url)
        self._url = address.url
        self._channel = channel
        self._timeout = connect_timeout
        self._connector = RedisConnector(address, channel, timeout=connect_timeout)

    @property
    def address(self) -> str:
        return masked(self._url.url)

    def __repr__(self) -> str:
        return f"RedisPubSub({self._url!r}, channel={self._channel!r})"

    async def _connect(self, receive: Callable[[bytes], None], lost: Callable[[], None]) -> PubSubConnection:
        publisher = await self._connector.connect()
        try:
            subscriber = await self._subscribed(receive)
        except BaseException:
            publisher.abort()
            raise
        return RedisPubSubConnection(publisher, subscriber, self._channel, lost)

    async def _subscribed(self, receive: Callable[[bytes], None]) -> RedisConnection | Listener:
        def on_push(message: list[Any]) -> None:
            if message[0] == b"message":
                receive(message[2])

        connection = await self._connector.listen(on_push)
        try:
            async with asyncio.timeout(self._timeout):
                await connection.call(b"SUBSCRIBE", self._channel)
        except BaseException as error:
            connection.abort()
            if isinstance(error, hiredis.ReplyError):
                raise translated(error) from None
            raise
        return connection


class RedisPubSubConnection:
    """The two connections: if one is lost, so is the other."""

    def __init__(
        self,
        publisher: RedisConnection,
        subscriber: RedisConnection | Listener,
        channel: str,
        lost: Callable[[], None],
    ) -> None:
        self._publisher = publisher
        self._subscriber = subscriber
        self._channel = channel
        self._watch = asyncio.create_task(self._watching(lost))

    async def _watching(self, lost: Callable[[], None]) -> None:
        await _first(self._publisher.lost, self._subscriber.lost)
        lost()

    async def publish(self, message: bytes) -> None:
        try:
            await self._publisher.call(b"PUBLISH", self._channel, message)
        except hiredis.ReplyError as error:
            raise translated(error) from None

    async def close(self) -> None:
        self._watch.cancel()
        await asyncio.wait([self._watch])
        await self._publisher.close()
        await self._subscriber.close()

    def abandon(self) -> None:
        self._publisher.abandon()
        self._subscriber.abandon()


async def _first(*events: asyncio.Event) -> None:
    """Return when one of them is set."""
    tasks = [asyncio.create_task(each.wait()) for each in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
