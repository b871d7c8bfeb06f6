"""The connections of a PubSub: one for each event loop that uses it, made anew when it is lost.

A PubSub may be made before there is an event loop, outlive it (`asyncio.run` twice), and be carried into a
forked process. So nothing belongs to the PubSub itself: each event loop has its own `PubSubLink`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias

from treadle.base.loop_mark import LoopMark, keep_for_ever
from treadle.errors import StoreUnavailable
from treadle.retry import STORE_BACKOFF
from treadle.store.wakeups import MISSED

log = logging.getLogger("treadle")

PUBLISH_SECONDS: Final = 2.0
"""How long the server may take to accept a message. Then the connection is of no use."""
CLOSE_SECONDS: Final = 2.0
"""How long the server may take to close a connection."""


class PubSubConnection(Protocol):
    """A connection that is subscribed."""

    async def publish(self, message: bytes) -> None: ...

    async def close(self) -> None: ...

    def abandon(self) -> None:
        """Close the socket. The event loop is closed."""
        ...


Connect: TypeAlias = Callable[[Callable[[bytes], None], Callable[[], None]], Awaitable[PubSubConnection]]
"""Open a connection, and subscribe. It gets what to call for each message, and what to call, once or more
often, when the connection is lost."""


class LinkedPubSub(ABC):
    """The base of a PubSub on a server. Safe to use from several event loops."""

    def __init__(self) -> None:
        self._links: list[PubSubLink] = []

    @abstractmethod
    async def _connect(
        self, receive: Callable[[bytes], None], lost: Callable[[], None]
    ) -> PubSubConnection: ...

    @property
    @abstractmethod
    def address(self) -> str:
        """The URL of the server without its password, for logs."""

    async def publish(self, message: str, /) -> None:
        """Raises `StoreUnavailable` if the server cannot be reached."""
        await self._link().publish(message)

    async def subscribe(self, receive: Callable[[str], None], /) -> Callable[[], None]:
        """Raises `StoreUnavailable` if the server cannot be reached. Later losses are repaired: `receive` is
        called with an empty text then."""
        return await self._link().subscribe(receive)

    async def close(self) -> None:
        """Close the connection of this event loop and end its subscriptions. It is opened again when it is
        used again."""
        self.abandon()
        loop = asyncio.get_running_loop()
        for link in [each for each in self._links if each.mark.loop is loop]:
            self._links.remove(link)
            await link.close()

    def abandon(self) -> None:
        """Forget the connections of event loops that are gone."""
        for link in [each for each in self._links if each.mark.is_gone]:
            self._links.remove(link)
            link.abandon()

    def _link(self) -> PubSubLink:
        self.abandon()
        loop = asyncio.get_running_loop()
        for link in self._links:
            if link.mark.loop is loop:
                return link
        self._links.append(PubSubLink(self._connect, self.address))
        return self._links[-1]


class PubSubLink:
    """One connection on one event loop, and its receivers."""

    def __init__(self, connect: Connect, address: str) -> None:
        self.mark = LoopMark()
        self._connect = connect
        self._address = address
        self._receivers: dict[object, Callable[[str], None]] = {}
        self._connection: PubSubConnection | None = None
        self._connecting = asyncio.Lock()
        self._failures = 0
        self._failed: tuple[float, BaseException] | None = None
        """Until when nothing is tried, and the last error."""
        self._returning: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def publish(self, message: str) -> None:
        connection = await self._connected()
        try:
            async with asyncio.timeout(PUBLISH_SECONDS):
                await connection.publish(message.encode())
        except Exception as error:
            self._drop(connection)
            raise self._unavailable(error) from error

    async def subscribe(self, receive: Callable[[str], None]) -> Callable[[], None]:
        await self._connected()
        key = object()
        self._receivers[key] = receive

        def unsubscribe() -> None:
            self._receivers.pop(key, None)

        return unsubscribe

    async def close(self) -> None:
        self._receivers.clear()
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.wait([self._returning])
        if self._connection is not None:
            self._drop(self._connection)
        if self._closing:
            await asyncio.wait(self._closing)

    def abandon(self) -> None:
        connection, self._connection = self._connection, None
        self._receivers.clear()
        if connection is None:
            return
        if self.mark.is_inherited:  # the parent's socket: not a byte may be written into it
            keep_for_ever(connection)
        else:
            connection.abandon()

    async def _connected(self) -> PubSubConnection:
        """The connection. It fails at once for a while after the server could not be reached."""
        async with self._connecting:
            return await self._new() if self._connection is None else self._connection

    async def _new(self) -> PubSubConnection:
        if self._failed is not None and time.monotonic() < self._failed[0]:
            raise self._unavailable(self._failed[1])
        try:
            connection = self._connection = await self._open()
        except Exception as error:
            self._failures += 1
            self._failed = time.monotonic() + STORE_BACKOFF.delay(self._failures), error
            raise self._unavailable(error) from error
        self._failures, self._failed = 0, None
        return connection

    async def _open(self) -> PubSubConnection:
        opened: list[PubSubConnection] = []
        losses: list[None] = []

        def lost() -> None:
            losses.append(None)
            if opened:
                self._drop(opened[0])

        connection = await self._connect(self._receive, lost)
        opened.append(connection)
        if losses:
            self._close(connection)
            raise ConnectionResetError("the connection was lost at once")
        return connection

    def _drop(self, connection: PubSubConnection) -> None:
        """The connection is of no use. If there are receivers, come back."""
        if self._connection is not connection:
            return
        self._connection = None
        self._close(connection)
        if self._receivers and (self._returning is None or self._returning.done()):
            self._returning = asyncio.create_task(self._return(), name="treadle-pubsub")

    async def _return(self) -> None:
        """Connect again. The receivers learn that messages may have been lost."""
        failures = 0
        while True:
            try:
                await self._connected()
            except StoreUnavailable:
                failures += 1
                await asyncio.sleep(STORE_BACKOFF.delay(failures))
            else:
                break
        self._call_receivers(MISSED)

    def _close(self, connection: PubSubConnection) -> None:
        task = asyncio.create_task(_closed(connection))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _receive(self, message: bytes) -> None:
        text = message.decode(errors="replace")
        if text:  # an empty one has another meaning, and any client of the server can send it
            self._call_receivers(text)

    def _call_receivers(self, text: str) -> None:
        for receive in list(self._receivers.values()):
            try:
                receive(text)
            except Exception:
                log.exception("a receiver of messages raised")

    def _unavailable(self, error: BaseException) -> StoreUnavailable:
        reason = " ".join(str(error).split()) or type(error).__name__
        return StoreUnavailable(f"{self._address}: {reason}")


async def _closed(connection: PubSubConnection) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await connection.close()
    except Exception:
        log.debug("a connection could not be closed", exc_info=True)
