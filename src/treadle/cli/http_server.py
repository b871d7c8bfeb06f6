"""A small HTTP server for texts that machines read. It takes GET requests, one per connection.

It uses nothing but the first line of a request, and waits only briefly: a request that is too long, too slow
or malformed is answered with an error, and the number of connections is bounded. Nothing of a request gets
into an answer or into the log.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from treadle.logs.lines import WARNING, error_text, log_line

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
    """Serves `routes`, by path."""

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
