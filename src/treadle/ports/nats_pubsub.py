"""NatsPubSub: a `PubSub` on a NATS server, or on a cluster of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote

from treadle.errors import InputError
from treadle.logs.masking import Address, masked

from .pubsub_link import LinkedPubSub, PubSubConnection

try:
    from nats.aio.client import Client as NatsClient
    from nats.aio.msg import Msg
    from nats.errors import NoServersError
except ModuleNotFoundError as error:
    if error.name != "nats":
        raise
    raise ModuleNotFoundError("NATS needs its driver: pip install 'treadle[nats]'", name="nats") from None

SCHEMES: Final = ("nats", "tls", "ws", "wss")
_SUBJECT = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
CLOSE_SECONDS: Final = 0.5
"""How long the driver may take to close a connection."""
PING_SECONDS: Final = 10
"""After two pings without an answer a connection is closed."""


class NatsPubSub(LinkedPubSub):
    """Messages on a subject of NATS (core NATS: nothing is stored).

    - `url`: `nats://[user:password@]host[:port]`, `tls://...`; several servers of a cluster with commas.
    - `subject`: without wildcards. Apps on one server need subjects of their own.
    - `connect_timeout`: in seconds. `options`: of `nats.connect`, as `user_credentials="app.creds"`.
    """

    def __init__(
        self, url: str, *, subject: str = "treadle", connect_timeout: float = 3.0, **options: Any
    ) -> None:
        super().__init__()
        self._servers = Address(url)
        _check_url(url)
        if not _SUBJECT.fullmatch(subject):
            raise InputError.of("subject", subject, "must be words with dots between them, as 'shop.wake'")
        self._subject = subject
        self._timeout = connect_timeout
        self._options = options

    @property
    def address(self) -> str:
        return ",".join(masked(each) for each in self._servers.url.split(","))

    def __repr__(self) -> str:
        return f"NatsPubSub({self.address!r}, subject={self._subject!r})"

    async def _connect(self, receive: Callable[[bytes], None], lost: Callable[[], None]) -> PubSubConnection:
        async def on_closed() -> None:
            lost()

        async def on_message(message: Msg) -> None:
            receive(message.data)

        client = NatsClient()
        connection = NatsConnection(client, self._subject)
        causes: list[Exception] = []
        try:
            await self._log_in(client, on_closed, causes)
            await client.subscribe(self._subject, cb=on_message)  # pyright: ignore[reportUnknownMemberType]
            async with asyncio.timeout(self._timeout):
                await client.flush()  # its PING may overtake the subscription, which is sent by then
                await client.flush()
            if causes:  # it may not subscribe
                raise causes[-1]
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _log_in(
        self, client: NatsClient, on_closed: Callable[[], Awaitable[None]], causes: list[Exception]
    ) -> None:
        """`causes` gets the last error. Those after the subscription need no handling: the connection is
        lost, or what is published does not arrive."""

        async def on_error(error: Exception) -> None:
            causes[:] = [error]

        try:
            async with asyncio.timeout(2 * self._timeout):
                await client.connect(
                    servers=self._servers.url.split(","),
                    name="treadle",
                    allow_reconnect=False,  # `PubSubLink` does it
                    max_reconnect_attempts=1,  # of each server, before it is connected; 0 would be no limit
                    reconnect_time_wait=0,
                    connect_timeout=self._timeout,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
                    ping_interval=PING_SECONDS,
                    error_cb=on_error,
                    closed_cb=on_closed,
                    **self._options,
                )
        except NoServersError:
            raise (causes or [ConnectionRefusedError("no server answers")])[-1] from None
        causes.clear()  # another server has answered


class NatsConnection:
    def __init__(self, client: NatsClient, subject: str) -> None:
        self._client = client
        self._subject = subject

    async def publish(self, message: bytes) -> None:
        await self._client.publish(self._subject, message)

    async def close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._client.close()
        except TimeoutError:  # after TLS was refused the driver waits for ever
            self.abandon()

    def abandon(self) -> None:
        """The driver closes nothing without its event loop. The destructors of what is not closed warn."""
        writer = getattr(getattr(self._client, "_transport", None), "_io_writer", None)
        outer = getattr(writer, "transport", None)
        inner = getattr(getattr(outer, "_ssl_protocol", None), "_transport", None)
        for transport in (outer, inner):
            if transport is None:
                continue
            socket = getattr(transport, "_sock", None)
            if socket is not None:
                socket.close()
                transport._sock = None
            transport._closing = transport._closed = True


def nats_subject(prefix: str) -> str:
    """The subject of the wake-ups of one namespace."""
    word = quote(prefix, safe="").replace(".", "%2E")
    return f"treadle.{word}"


def _check_url(url: str) -> None:
    for each in url.split(","):
        if each.partition("://")[0].lower() not in SCHEMES:
            raise InputError(
                f"{masked(each)!r} is not a URL of NATS: write nats://host:4222", parameters=("url",)
            )
