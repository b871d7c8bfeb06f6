"""A pooler in transaction mode, at least as strict as PgBouncer, for tests.

A client gets one of a few server connections for the length of a transaction. After each transaction the
state of the session is discarded (`DISCARD ALL`). Settings in the startup message that a session would have
to keep are refused, with PgBouncer's error message.
"""

from __future__ import annotations

import asyncio
import random
import struct
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

SSL_REQUEST = 80877103
PROTOCOL = 196608
KNOWN = {"user", "database", "client_encoding", "application_name"}
"""What a client may set in the startup message."""


class Message(NamedTuple):
    kind: bytes
    body: bytes

    @property
    def data(self) -> bytes:
        return self.kind + struct.pack("!i", len(self.body) + 4) + self.body

    @property
    def ends_a_transaction(self) -> bool:
        return (self.kind, self.body) == (b"Z", b"I")


async def read(stream: asyncio.StreamReader) -> Message:
    kind = await stream.readexactly(1)
    (length,) = struct.unpack("!i", await stream.readexactly(4))
    return Message(kind, await stream.readexactly(length - 4))


class Server:
    """One connection to the real server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.greeting: list[Message] = []
        self.served: set[int] = set()

    @classmethod
    async def connect(cls, socket: str, user: str, database: str) -> Server:
        server = cls(*await asyncio.open_unix_connection(socket))
        words = [b"user", user.encode(), b"database", database.encode(), b""]
        start = struct.pack("!i", PROTOCOL) + b"\0".join(words) + b"\0"
        server._writer.write(struct.pack("!i", len(start) + 4) + start)
        server.greeting = await server.answers()
        return server

    def send(self, message: Message) -> None:
        self._writer.write(message.data)

    async def receive(self) -> Message:
        return await read(self._reader)

    async def answers(self) -> list[Message]:
        """All messages until the server is ready again."""
        messages = [await self.receive()]
        while messages[-1].kind != b"Z":
            messages.append(await self.receive())
        return messages

    async def execute(self, sql: str) -> None:
        self.send(Message(b"Q", sql.encode() + b"\0"))
        await self.answers()

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


class Pooler:
    """`servers` connections to the server at `url`, for any number of clients."""

    def __init__(self, url: str, servers: int = 3, seed: int = 0) -> None:
        self._parts = urlsplit(url)
        where = parse_qs(self._parts.query)
        self._socket = f"{where['host'][0]}/.s.PGSQL.{where['port'][0]}"
        self._size = servers
        self._random = random.Random(seed)
        self._idle: list[Server] = []
        self._servers: list[Server] = []
        self._freed = asyncio.Condition()
        self._clients = 0
        self._serving: set[asyncio.Task[None]] = set()
        self.refused: list[str] = []
        self.transactions = 0

    @property
    def url(self) -> str:
        port = self._listening.sockets[0].getsockname()[1]
        return f"postgresql://{quote(self._user)}@127.0.0.1:{port}{self._parts.path}?sslmode=disable"

    @property
    def shared(self) -> bool:
        """Whether some server connection has served several clients."""
        return any(len(server.served) > 1 for server in self._servers)

    @property
    def used(self) -> int:
        """How many server connections have served a client."""
        return sum(bool(server.served) for server in self._servers)

    @property
    def _user(self) -> str:
        return self._parts.username or "postgres"

    async def __aenter__(self) -> Pooler:
        for _ in range(self._size):
            self._servers.append(await Server.connect(self._socket, self._user, self._parts.path[1:]))
        self._idle = list(self._servers)
        self._listening = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        """A stream that is still open would be found as garbage in a later test."""
        self._listening.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)
        for server in self._servers:
            await server.close()
        await self._listening.wait_closed()

    def _begin(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(client, back))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                if await self._welcome(client, back):
                    await self._transactions(client, back, self._clients)
        finally:
            back.close()
            with suppress(OSError):
                await back.wait_closed()

    async def _welcome(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> bool:
        (length, code) = struct.unpack("!ii", await client.readexactly(8))
        if code == SSL_REQUEST:
            back.write(b"N")
            (length, code) = struct.unpack("!ii", await client.readexactly(8))
        body = await client.readexactly(length - 8)
        if code != PROTOCOL:  # a cancel request
            return False
        for name in body.split(b"\0")[:-2:2]:
            if name.decode() not in KNOWN:
                self.refused.append(name.decode())
                back.write(refusal(f"unsupported startup parameter: {name.decode()}"))
                return False
        back.write(b"".join(message.data for message in self._servers[0].greeting))
        return True

    async def _transactions(
        self, client: asyncio.StreamReader, back: asyncio.StreamWriter, number: int
    ) -> None:
        pump: asyncio.Task[None] | None = None
        server: Server | None = None
        try:
            while (message := await read(client)).kind != b"X":
                if server is None or pump is None or pump.done():
                    server = await self._lend(number)
                    pump = asyncio.create_task(self._pump(server, back))
                server.send(message)
        finally:
            if server is not None and pump is not None and not pump.done():
                # The client closed the connection within a transaction.
                pump.cancel()
                await asyncio.wait([pump])
                server.send(Message(b"S", b""))
                await server.answers()
                await server.execute("rollback")
                await self._take_back(server)

    async def _pump(self, server: Server, back: asyncio.StreamWriter) -> None:
        """Forward answers until the transaction is over. The client gets the last message after the server
        connection has been taken back."""
        while not (message := await server.receive()).ends_a_transaction:
            back.write(message.data)
        await self._take_back(server)
        asyncio.get_running_loop().call_soon(back.write, message.data)

    async def _lend(self, client: int) -> Server:
        async with self._freed:
            await self._freed.wait_for(lambda: self._idle)
            server = self._idle.pop(self._random.randrange(len(self._idle)))
        server.served.add(client)
        self.transactions += 1
        return server

    async def _take_back(self, server: Server) -> None:
        await server.execute("discard all")
        async with self._freed:
            self._idle.append(server)
            self._freed.notify()


def refusal(text: str) -> bytes:
    fields = b"SFATAL\0C08P01\0M" + text.encode() + b"\0\0"
    return Message(b"E", fields).data
