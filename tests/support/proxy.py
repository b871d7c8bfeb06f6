"""A proxy between clients and a PostgreSQL server that fails as networks do."""

import asyncio
from contextlib import suppress
from urllib.parse import parse_qs, quote, urlsplit

READY_FOR_QUERY = b"Z\x00\x00\x00\x05I"
"""The server's message that a transaction is over."""


class Proxy:
    """Forwards between clients and the server at `url`. It can lose an answer after the server has committed,
    or stop forwarding anything without closing a connection, like a network that drops all packets."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        where = parse_qs(self._parts.query)
        self._socket = f"{where['host'][0]}/.s.PGSQL.{where['port'][0]}"
        self._lose = 0
        self._forwards = asyncio.Event()
        self._forwards.set()
        self._serving: set[asyncio.Task[None]] = set()
        self.lost = 0
        self.connecting_takes = 0.0
        """Seconds until a new connection is forwarded."""
        self.delay = 0.0
        """Seconds that what a client sends waits."""

    @property
    def url(self) -> str:
        port = self._server.sockets[0].getsockname()[1]
        user = quote(self._parts.username or "postgres")
        return f"postgresql://{user}@127.0.0.1:{port}{self._parts.path}?sslmode=disable"

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)
        await self._server.wait_closed()

    def lose_answers(self, count: int = 1) -> None:
        """Lose the next `count` answers, on any connection: the connection breaks instead."""
        self._lose = count

    def stall(self) -> None:
        """Forward nothing until `resume`. Connections stay open, and new ones are accepted."""
        self._forwards.clear()

    def resume(self) -> None:
        """Forward again, also what came meanwhile."""
        self._forwards.set()

    async def _serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._forward(client, back)
        finally:
            back.close()
            self._serving.discard(task)

    async def _forward(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self.connecting_takes)
        await self._forwards.wait()
        try:
            server, forth = await asyncio.open_unix_connection(self._socket)
        except OSError:  # it is down
            return
        pumps = [
            asyncio.create_task(self._pump(client, forth)),
            asyncio.create_task(self._pump(server, back, answers=True)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            forth.close()

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, answers: bool = False
    ) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                await self._forwards.wait()
                if not answers and self.delay:
                    await asyncio.sleep(self.delay)
                if answers and self._lose and data.endswith(READY_FOR_QUERY):
                    self._lose -= 1
                    self.lost += 1
                    return
                target.write(data)
                await target.drain()
