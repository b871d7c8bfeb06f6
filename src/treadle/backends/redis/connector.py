"""Connecting: find the server that has the keys of a namespace, log in, and choose the database."""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import hiredis

from treadle.errors import BackendError, InputError, StoreUnavailable

from .address import Endpoint, Login, RedisAddress, Tls
from .connection import OnPush, RedisConnection
from .errors import ELSEWHERE, NotConnected, code_of, is_refused_client, translated, unreachable
from .nodes import ClusterNodes, Listener
from .topology import RedisTopology, check_primary

OLDEST: Final = (7, 0)
"""The oldest version of Redis that has what the scripts need."""
ASK_SECONDS: Final = 1.0
"""Seconds that a Sentinel, or a node that is asked for another, may take to be reached."""
SWITCHED: Final = "another server has become the primary: the call may or may not have happened"

_OTHER_CAUSES: Final = (ConnectionRefusedError, socket.gaierror, ssl.SSLCertVerificationError)
"""Errors that have nothing to do with a URL that should have TLS, or should not."""
_CLOSED: Final = ": if it takes no more connections, raise maxclients"
"""Hint for a server that closed the connection before it was used."""


class RedisConnector:
    """Opens connections to the server that has the keys `{prefix}:...`.

    timeout: seconds that connecting may take.
    nodes: the connections that the partitions of an app share. None: it has none.
    """

    def __init__(
        self, address: RedisAddress, prefix: str, *, timeout: float, nodes: ClusterNodes | None = None
    ) -> None:
        self.address = address
        self._nodes = nodes
        self._timeout = timeout
        self._context = None if address.tls is None else _context(address.tls)
        self._topology = RedisTopology(address, prefix, self._ask)
        self._has_connected = False
        self._opened: WeakKeyDictionary[RedisConnection, Endpoint] = WeakKeyDictionary()
        """The connections to primaries that Sentinels have named."""

    @property
    def has_sentinels(self) -> bool:
        return self.address.kind == "sentinel"

    @property
    def is_cluster(self) -> bool:
        return self.address.kind == "cluster"

    @property
    def looks_up(self) -> bool:
        """Whether other servers are asked which one has the keys."""
        return self.address.kind in ("sentinel", "cluster")

    def is_elsewhere(self, error: hiredis.ReplyError) -> bool:
        """Whether the server has refused a call, and done nothing, and another one may be found for it."""
        return self.looks_up and code_of(error) in ELSEWHERE

    def learn(self, error: hiredis.ReplyError) -> None:
        """Ask the node first that a refusal names."""
        if self.is_cluster:
            self._topology.learn(str(error))

    async def connect(self, kind: str = "work") -> RedisConnection:
        """Open a connection, or share one of this kind. `StoreUnavailable` if that is not possible at the
        moment."""
        endpoint = await self._topology.find()
        if self._nodes is not None:
            return await self._nodes.connect(endpoint, kind, partial(self._connect, endpoint))
        return await self._connect(endpoint)

    async def listen(self, on_push: OnPush) -> RedisConnection | Listener:
        """The same, for what the server sends on its own."""
        endpoint = await self._topology.find()
        if self._nodes is not None:
            return await self._nodes.listen(endpoint, partial(self._connect, endpoint), on_push)
        return await self._connect(endpoint, on_push)

    def leave(self, connection: RedisConnection) -> bool:
        """Whether it is to be closed: no other partition uses it."""
        return self._nodes is None or self._nodes.leave(connection)

    async def _connect(self, endpoint: Endpoint, on_push: OnPush | None = None) -> RedisConnection:
        connection = await self._open(endpoint, self.address.login, self._timeout, on_push)
        if self.has_sentinels:
            self._opened[connection] = endpoint
            if endpoint != self._topology.found:
                connection.abort()
                raise NotConnected(f"{endpoint} was replaced as the primary while it was connected to")
        return connection

    async def connect_sentinel(self, on_push: OnPush) -> RedisConnection:
        """Open a connection to a Sentinel. `StoreUnavailable` if none is there at the moment."""
        return await self._topology.first(partial(self._ask, on_push=on_push))

    async def follow(self) -> None:
        """Drop the connections to a former primary, if the one that is named now can be connected to."""
        primary = await self._topology.find()
        left = [
            connection
            for connection, endpoint in self._opened.items()
            if endpoint != primary and not connection.mark.is_gone and connection.is_usable
        ]
        if left:
            (await self.connect()).abort()
            for connection in left:
                connection.abort(SWITCHED)

    async def _ask(self, endpoint: Endpoint, on_push: OnPush | None = None) -> RedisConnection:
        """A connection for a question about the topology."""
        timeout = min(ASK_SECONDS, self._timeout)
        login = self.address.login if self.is_cluster else self.address.sentinel_login
        return await self._open(endpoint, login, timeout, on_push, is_question=True)

    async def _open(
        self,
        endpoint: Endpoint,
        login: Login,
        timeout: float,
        on_push: OnPush | None,
        is_question: bool = False,
    ) -> RedisConnection:
        try:
            async with asyncio.timeout(timeout):
                connection = await self._reach(endpoint, on_push, timeout)
                try:
                    await _log_in(connection, login)
                    await _greet(connection)
                    if not is_question:
                        await self._prepare(connection, endpoint)
                except BaseException:
                    connection.abort()
                    raise
                self._has_connected = True
                return connection
        except hiredis.ReplyError as error:
            raise translated(error) from None
        except (OSError, TimeoutError) as error:
            raise unreachable(endpoint, error, await self._hint(endpoint, error)) from error
        except StoreUnavailable as error:  # it was closed during the login
            if type(error) is not StoreUnavailable:
                raise
            hint = await self._hint(endpoint, error) or _CLOSED
            raise unreachable(endpoint, error, hint) from error

    async def _hint(self, endpoint: Endpoint, error: Exception) -> str:
        """What may be wrong with the URL, if no connection was opened before."""
        if self._has_connected or isinstance(error, _OTHER_CAUSES):
            return ""
        return await tls_hint(endpoint, with_tls=self._context is not None)

    async def _reach(self, endpoint: Endpoint, on_push: OnPush | None, timeout: float) -> RedisConnection:
        loop = asyncio.get_running_loop()

        def made() -> RedisConnection:
            return RedisConnection(self.address.patience, on_push)

        if endpoint.port == 0:
            _, connection = await loop.create_unix_connection(made, endpoint.host)
        else:
            _, connection = await loop.create_connection(
                made,
                endpoint.host,
                endpoint.port,
                ssl=self._context,
                # Shorter than what cancels it: a TLS greeting that is cancelled leaves its socket open.
                ssl_handshake_timeout=None if self._context is None else timeout * 0.9,
            )
        return connection

    async def _prepare(self, connection: RedisConnection, endpoint: Endpoint) -> None:
        if self.has_sentinels:
            await check_primary(connection, endpoint)
        if self.address.db:
            await connection.call(b"SELECT", self.address.db)


async def _log_in(connection: RedisConnection, login: Login) -> None:
    if login.user:
        await connection.call(b"AUTH", login.user, login.password)
    elif login.password:
        await connection.call(b"AUTH", login.password)


async def _greet(connection: RedisConnection) -> None:
    """Wait for a sign of life: the system accepts connections for a server that hangs."""
    try:
        await connection.call(b"PING")
    except hiredis.ReplyError as error:
        if code_of(error) == "NOAUTH" or is_refused_client(error):
            raise
        # It refuses, so it lives. The call for which the connection is opened will get its own answer.


def _context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except (OSError, ssl.SSLError) as error:
        raise InputError.of("ca", tls.ca, "is no file of certificates") from error
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def check_version(connection: RedisConnection) -> None:
    """`BackendError` if the server is too old. One that does not tell its version is taken as it is."""
    try:
        text = await connection.call(b"INFO", b"server")
    except hiredis.ReplyError:
        return
    check_version_text(info_fields(text).get("redis_version", ""))


def check_version_text(version: str) -> None:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if len(numbers) == 2 and numbers < OLDEST:
        raise BackendError(f"the server is Redis {version}: treadle needs Redis 7.0 or newer, or Valkey")


def info_fields(text: bytes) -> dict[str, str]:
    """The answer of INFO."""
    lines = text.decode(errors="replace").splitlines()
    pairs = (line.partition(":") for line in lines if not line.startswith("#"))
    return {name: value for name, colon, value in pairs if colon}


PROBE_SECONDS: Final = 1.0
"""Seconds that the other way may take."""
_PING: Final = b"PING\r\n"


async def tls_hint(endpoint: Endpoint, *, with_tls: bool) -> str:
    """What to change in the URL. Empty: it is not that. `with_tls`: how it was tried in vain.

    A plain server waits for the end of a line when it gets a TLS greeting, and a TLS server closes
    connections that do not begin with one. Neither says why, so it is asked the other way. The question has
    no password.
    """
    if endpoint.port == 0:
        return ""
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            if with_tls:
                answers, change = await _answers(endpoint, None), "without TLS: write redis"
            else:
                answers, change = await _answers(endpoint, _unchecked()), "with TLS: write rediss"
    except (OSError, TimeoutError):
        return ""
    return f"; it answers {change} at the beginning of the URL" if answers else ""


async def _answers(endpoint: Endpoint, context: ssl.SSLContext | None) -> bool:
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
    try:
        writer.write(_PING)
        answer = await reader.read(1)
        # With TLS the greetings were exchanged. It may want a certificate before it answers.
        return context is not None or answer in (b"+", b"-")
    finally:
        writer.transport.abort()


def _unchecked() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the default one loads certificates, which blocks
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
