"""A proxy before a Redis server: it speaks TLS, and delays, splits and loses answers as networks do."""

import asyncio
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path


class RedisProxy:
    """Forwards between clients and the server at a socket.

    delay: seconds that each answer takes.
    """

    def __init__(self, server: Path, context: ssl.SSLContext | None = None, *, delay: float = 0.0) -> None:
        self._socket = server
        self._context = context
        self._delay = delay
        self._serving: set[asyncio.Task[None]] = set()
        self._loses: int | None = None
        self._accepted = 0
        self._held: int | None = None
        self._held_after = 0
        self._released = asyncio.Event()
        self.holding = asyncio.Event()
        """Set when there is an answer that is held back."""
        self.in_pieces = False
        """Forward answers byte by byte."""

    @property
    def port(self) -> int:
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> "RedisProxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)
        await self._server.wait_closed()

    def lose_answer(self, after: int = 0) -> None:
        """Break the connection instead of forwarding the next answer, or `after` its first bytes."""
        self._loses = after

    def hold(self, connection: int, after: int = 0) -> None:
        """Hold back the answers of one connection, by its place among those that were made, or `after` the
        first bytes of the next one."""
        self._held, self._held_after = connection, after

    def release(self) -> None:
        """Forward what is held back."""
        self._held = None
        self._released.set()

    async def cut(self) -> None:
        """Break all connections. What is on its way is lost."""
        cut = list(self._serving)
        for task in cut:
            task.cancel()
        if cut:
            await asyncio.wait(cut)

    def switch(self, server: Path) -> None:
        """Forward new connections to another server."""
        self._socket = server

    async def _serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        number, self._accepted = self._accepted, self._accepted + 1
        try:
            server, forth = await asyncio.open_unix_connection(str(self._socket))
        except OSError:
            back.close()
            self._serving.discard(task)
            return
        pumps = [
            asyncio.create_task(self._pump(client, forth)),
            asyncio.create_task(
                self._pump_late(server, back) if self._delay else self._pump(server, back, number)
            ),
        ]
        try:
            with suppress(asyncio.CancelledError):  # it is cut, and ends now
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for end in (forth, back):
                end.close()
                with suppress(OSError, asyncio.CancelledError):
                    await end.wait_closed()
            self._serving.discard(task)

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, answers_of: int | None = None
    ) -> None:
        """answers_of: the place of the connection. None: these are no answers."""
        with suppress(OSError):
            while data := await source.read(1 << 16):
                if answers_of is not None:
                    if self._loses is not None:
                        lost, self._loses = self._loses, None
                        target.write(data[:lost])
                        await target.drain()
                        return
                    if self._held == answers_of:
                        target.write(data[: self._held_after])
                        data = data[self._held_after :]
                        self.holding.set()
                        await self._released.wait()
                    if self.in_pieces:
                        for byte in data:
                            target.write(bytes((byte,)))
                            await asyncio.sleep(0)
                        continue
                target.write(data)
                await target.drain()

    async def _pump_late(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Forward everything later by the same time, however much is on its way."""
        clock = asyncio.get_running_loop().time
        on_its_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            with suppress(OSError):
                while True:
                    at, data = await on_its_way.get()
                    await asyncio.sleep(at - clock())
                    target.write(data)
                    await target.drain()

        delivery = asyncio.create_task(deliver())
        try:
            with suppress(OSError):
                while data := await source.read(1 << 16):
                    on_its_way.put_nowait((clock() + self._delay, data))
        finally:
            delivery.cancel()
            await asyncio.wait([delivery])


def certificate(directory: Path) -> Path:
    """A certificate for 127.0.0.1 that signs itself, and its key, in one file."""
    key, signed, both = (directory / name for name in ("key.pem", "cert.pem", "both.pem"))
    kind = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1")
    name = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(
        ["openssl", "req", *kind, *name, "-keyout", str(key), "-out", str(signed)],
        check=True,
        capture_output=True,
    )
    both.write_text(key.read_text() + signed.read_text())
    return both
