"""Sessions of PostgreSQL that outlive their clients: a pooler in session mode, for tests.

A new session reads the catalogue and plans each statement anew. For a test that submits, claims and settles
that is half of the server's work. Here a client gets a session that a client before it has closed. Nothing of
that client is left in it but what the server remembers of its catalogue and its plans.

A session is reused only if its client asked to close it while it was idle, and if the next client sends the
same startup message (role, database, settings). All else goes to the server and back as it is.
"""

import asyncio
import struct
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

PROJECT = Path(__file__).parents[2]

CLOSE = b"X\0\0\0\4"
"""The message by which a client ends its session."""
IDLE = b"Z\0\0\0\5I"
"""The last message of an answer, if no transaction is open."""
CANCEL_REQUEST = 80877102
RETURNED = "/* returned */"
"""The last statement of a session that waits for a client begins so."""
# What DISCARD ALL does, but for DISCARD PLANS.
RESET = f"""{RETURNED} close all; reset session authorization; reset role; reset all; deallocate all;
unlisten *; select pg_catalog.pg_advisory_unlock_all(); discard temp; discard sequences"""


class Sessions:
    """A pooler in a process of its own, for the server at `url`, which must have a unix socket. It ends with
    the process that made it."""

    def __init__(self, url: str, home: Path) -> None:
        place = parse_qs(urlsplit(url).query)
        self._place = (Path(mkdtemp(prefix="s", dir=home)), place["port"][0])
        directory, port = self._place
        name = f".s.PGSQL.{port}"
        program = [sys.executable, "-m", "tests.support.sessions"]
        self._process = subprocess.Popen(
            [*program, str(directory / name), str(Path(place["host"][0]) / name)],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("the pooler did not start")

    def __enter__(self) -> "Sessions":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()  # closes its input, so it ends

    def through(self, url: str) -> str:
        """The URL of the same database, by way of the pooler."""
        directory, port = self._place
        return urlunsplit(urlsplit(url)._replace(query=f"host={quote(str(directory))}&port={port}"))


class Session(asyncio.Protocol):
    """One connection to the server, and its client, if it has one."""

    def __init__(self, idle: "dict[bytes, list[Session]]", startup: bytes) -> None:
        self._idle = idle
        self._startup = startup
        self._greeting = b""
        self._is_greeted = False
        self._end = b""
        """The last bytes that the server sent."""
        self._answer: bytearray | None = None
        """What the server has answered to RESET."""
        self._client: asyncio.Transport | None = None
        self._server: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._server = transport
        transport.write(self._startup)

    def serve(self, client: asyncio.Transport) -> None:
        self._client = client
        client.write(self._greeting)

    def forward(self, data: bytes) -> None:
        """From the client to the server. The message that closes the session is not forwarded."""
        if data == CLOSE and self._end == IDLE:
            self._answer = bytearray()
            text = RESET.encode() + b"\0"
            data = b"Q" + struct.pack("!i", len(text) + 4) + text
        self._server.write(data)
        self._end = b""

    def data_received(self, data: bytes) -> None:
        self._end = (self._end + data)[-len(IDLE) :]
        if self._answer is not None:
            self._answer += data
            if self._end == IDLE:
                self._return()
            return
        if not self._is_greeted:
            self._greeting += data
            self._is_greeted = self._end == IDLE
        if self._client is not None:
            self._client.write(data)

    def _return(self) -> None:
        """Keep the session for the next client. The client that has closed it is told only now, so the next
        one finds it."""
        answer, self._answer = self._answer, None
        assert answer is not None
        if has_error(answer):
            self._server.abort()
        else:
            self._idle[self._startup].append(self)
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._idle[self._startup]:
            self._idle[self._startup].remove(self)
        if self._client is not None:
            self._client.close()

    def client_lost(self, client: asyncio.Transport) -> None:
        """Without a client, and not about to be kept: the server finds out by the end of its input. When a
        client is gone that returned the session, it may have another one."""
        if self._client is client:
            self._client = None
            if self._answer is None:
                self._server.close()


def has_error(answer: bytes | bytearray) -> bool:
    """Whether one of the messages of an answer is an error."""
    at = 0
    while at < len(answer):
        if answer[at : at + 1] == b"E":
            return True
        at += 1 + struct.unpack_from("!i", answer, at + 1)[0]
    return False


class Client(asyncio.Protocol):
    """A client. `session` is None until its startup message has come and the server is reached."""

    def __init__(self, server: str, idle: dict[bytes, list[Session]]) -> None:
        self._server = server
        self._idle = idle
        self._early = b""
        self._session: Session | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._session is not None:
            self._session.forward(data)
            return
        self._early += data
        if self._connecting is None and len(self._early) >= 8:
            length, code = struct.unpack_from("!ii", self._early)
            if len(self._early) >= length:
                self._begin(self._early, is_cancel=code == CANCEL_REQUEST)

    def _begin(self, startup: bytes, *, is_cancel: bool) -> None:
        idle = self._idle[startup]
        if idle and not is_cancel:
            self._session = idle.pop()
            self._session.serve(self._transport)
        else:
            self._connecting = asyncio.create_task(self._connect(startup))

    async def _connect(self, startup: bytes) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, session = await loop.create_unix_connection(lambda: Session(self._idle, startup), self._server)
        except OSError:
            self._transport.abort()
            return
        session.serve(self._transport)
        self._session = session
        if self._transport.is_closing():
            session.client_lost(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._session is not None:
            self._session.client_lost(self._transport)


async def main(place: str, server: str) -> None:
    """Serve until the input ends."""
    idle: dict[bytes, list[Session]] = defaultdict(list)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(0, ended.set)
    await loop.create_unix_server(lambda: Client(server, idle), place)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
