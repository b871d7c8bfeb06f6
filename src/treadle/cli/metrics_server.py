"""`treadle worker --metrics`: the supervisor answers for all its processes, at one address.

- `/metrics`: the numbers of all children that there were, added up, and how the store stands;
- `/health/live`: the supervisor runs;
- `/health/ready`: the store answers, and the event loop of every child has turned lately.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from treadle.backend import Backend
from treadle.cli.child_process import ChildProcess
from treadle.cli.reports import ChildReport
from treadle.errors import InputError
from treadle.logs.lines import INFO, WARNING, error_text, log_line
from treadle.metrics.prometheus import CONTENT_TYPE, exposition
from treadle.store_metrics import KeptAnswer, StoreMetrics, store_exposition

LOOP_SECONDS: Final = 10.0
"""A child whose event loop has not turned for so long is not ready."""
STORE_SECONDS: Final = 2.0
"""For so long the store has time to answer, and its answer is used."""
_ADDRESS: Final = re.compile(r"(?:(?P<host>[^:\[\]/\s]*):|\[(?P<six>[0-9A-Fa-f:.%\w]+)\]:)?(?P<port>\d{1,5})")


class ListenAddress(NamedTuple):
    """Where to listen. host: None for all addresses of this machine."""

    host: str | None
    port: int


def read_address(text: str) -> ListenAddress:
    """The address that `--metrics` names: `:9100`, `127.0.0.1:9100`, `[::1]:9100`."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise InputError.of("--metrics", text, "must be host:port or :port, as in :9100 or 127.0.0.1:9100")
    return ListenAddress(match["host"] or match["six"] or None, int(match["port"]))


class Supervised(Protocol):
    """What the server needs to know of a supervisor."""

    @property
    def children(self) -> Sequence[ChildProcess]: ...

    @property
    def is_stopping(self) -> bool: ...

    def report(self) -> ChildReport: ...


class Health:
    """Whether a supervisor and its children can work."""

    def __init__(self, supervisor: Supervised, backend: Backend) -> None:
        self._supervisor = supervisor
        self._backend = backend
        self._store_answers = KeptAnswer(self._ask)

    async def problem(self) -> str | None:
        """Why it is not ready. None: it is."""
        if self._supervisor.is_stopping:
            return "it is being stopped"
        children = self._supervisor.children
        if not children:
            return "no process has been started"
        for child in children:
            blocked_for = child.liveness.blocked_for()
            if blocked_for is None:
                return f"process {child.pid} is starting"
            if blocked_for > LOOP_SECONDS:
                return f"the event loop of process {child.pid} has been blocked for {blocked_for:.0f} s"
        return None if await self._store_answers.get(STORE_SECONDS) else "the store does not answer"

    async def _ask(self) -> bool:
        try:
            async with asyncio.timeout(STORE_SECONDS):
                await self._backend.now()
        except Exception:  # noqa: BLE001  the heartbeats log it
            return False
        return True


class MetricsServer:
    """store: reads how the store stands. None: the store of this process is not that of its children."""

    def __init__(self, supervisor: Supervised, health: Health, store: StoreMetrics | None) -> None:
        self._supervisor = supervisor
        self._health = health
        self._store = store

    async def metrics(self) -> Response:
        text = exposition(self._supervisor.report().rows)
        if self._store is not None and self._supervisor.children:
            text += store_exposition(await self._store.rows())
        return Response(200, text, CONTENT_TYPE)

    async def live(self) -> Response:
        return Response(200, "live\n")

    async def ready(self) -> Response:
        problem = await self._health.problem()
        return Response(200, "ready\n") if problem is None else Response(503, f"not ready: {problem}\n")

    @contextlib.asynccontextmanager
    async def serve(self, address: ListenAddress) -> AsyncGenerator[None]:
        """Answer requests meanwhile. Raises `CannotListen`."""
        server = HttpServer(
            {"/metrics": self.metrics, "/health/live": self.live, "/health/ready": self.ready}
        )
        port = await server.start(*address)
        where = f"[{address.host}]" if address.host and ":" in address.host else address.host or "*"
        log_line(INFO, f"metrics at http://{where}:{port}/metrics, and /health/live, /health/ready")
        try:
            yield
        finally:
            server.close()


MOST_BYTES: Final = 8192
"""Of a request."""
READ_SECONDS: Final = 5.0
WRITE_SECONDS: Final = 10.0
MOST_CONNECTIONS: Final = 50
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,20}) (/[!-~]*) HTTP/1\.[01]\r\n")
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Response(NamedTuple):
    status: int
    text: str
    content_type: str = "text/plain; charset=utf-8"

    def encoded(self) -> bytes:
        body = self.text.encode(errors="replace")
        head = [
            f"HTTP/1.1 {self.status} {_REASONS[self.status]}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        ]
        if self.status == 405:
            head.append("Allow: GET")
        return "\r\n".join([*head, "", ""]).encode() + body


Route: TypeAlias = Callable[[], Awaitable[Response]]


class CannotListen(Exception):
    """The address is in use, or is not one of this machine. The message says which."""


class HttpServer:
    """A small HTTP server for texts that machines read: `routes`, by path. It takes GET requests, one per
    connection.

    It uses nothing but the first line of a request, and waits only briefly: a request that is too long, too
    slow or malformed is answered with an error, and the number of connections is bounded. Nothing of a
    request gets into an answer or into the log.
    """

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = routes
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    async def start(self, host: str | None, port: int) -> int:
        """Listen. host: None for all addresses of this machine. Returns the port."""
        try:
            self._server = await asyncio.start_server(self._connected, host, port, limit=MOST_BYTES)
        except OSError as error:
            # The text of asyncio repeats the address. Errors of a name have negative numbers.
            number = error.errno or 0
            reason = os.strerror(number) if number > 0 else error.strerror or str(error)
            raise CannotListen(f"cannot listen on {host or ''}:{port}: {reason.lower()}") from error
        address: tuple[str, int] = self._server.sockets[0].getsockname()
        return address[1]

    def close(self) -> None:
        """Stop listening, and end all connections."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._connections):
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections.add(writer)
        try:
            await self._answer(reader, writer)
        except (OSError, EOFError, TimeoutError):  # the other side is gone, or does not read
            writer.transport.abort()
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        response = await self._read_and_respond(reader)
        writer.write(response.encoded())
        async with asyncio.timeout(WRITE_SECONDS):
            await writer.drain()

    async def _read_and_respond(self, reader: asyncio.StreamReader) -> Response:
        try:
            async with asyncio.timeout(READ_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return Response(431, "the request is too long\n")
        except TimeoutError:
            return Response(408, "the request did not come in time\n")
        return await self._respond(request)

    async def _respond(self, request: bytes) -> Response:
        match = _REQUEST_LINE.match(request)
        if match is None:
            return Response(400, "this is not a request of HTTP/1.1\n")
        if match[1] != b"GET":
            return Response(405, "only GET\n")
        route = self._routes.get(match[2].partition(b"?")[0].decode("ascii"))
        if route is None:
            return Response(404, f"not found; there are {', '.join(self._routes)}\n")
        try:
            return await route()
        except Exception as error:  # noqa: BLE001  the next request may be answered
            log_line(WARNING, f"a request for metrics or health failed: {error_text(error)}")
            return Response(500, "an error, see the log\n")
