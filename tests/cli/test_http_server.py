"""The server of `--metrics` answers what it knows, and hostile requests do nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator

import pytest

from treadle.cli.metrics_server import CannotListen, HttpServer, Response


async def hello() -> Response:
    return Response(200, "hello \ud800\n")


async def broken() -> Response:
    raise RuntimeError("secret\x1b[31m\nsecond line")


@pytest.fixture
async def port() -> AsyncGenerator[int]:
    server = HttpServer({"/hello": hello, "/broken": broken})
    yield await server.start("127.0.0.1", 0)
    server.close()


async def ask(port: int, request: bytes, *, end: bool = False) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    if end:
        writer.write_eof()
    try:
        return (await reader.read()).decode()
    finally:
        writer.close()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def test_a_get_is_answered_and_the_connection_ends(port: int) -> None:
    head, _, body = (await ask(port, get("/hello?x=1"))).partition("\r\n\r\n")
    assert body == "hello ?\n"
    lines = head.split("\r\n")
    assert lines[0] == "HTTP/1.1 200 OK"
    assert {"Content-Length: 8", "Connection: close", "Cache-Control: no-store"} < set(lines)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/other"), 404),
        (get("/hello/../hello"), 404),
        (get("//hello"), 404),
        (b"POST /hello HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 405),
        (b"HEAD /hello HTTP/1.1\r\n\r\n", 405),
        (b"GET http://x/hello HTTP/1.1\r\n\r\n", 400),
        (b"GET /hel\x00lo HTTP/1.1\r\n\r\n", 400),
        (b"GET /h\xc3\xa9llo HTTP/1.1\r\n\r\n", 400),
        (b"GET /hello HTTP/2.0\r\n\r\n", 400),
        (b"GET /hello\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET /" + b"a" * 20_000, 431),
        (b"GET /hello HTTP/1.1\r\n" + b"X: y\r\n" * 4000 + b"\r\n", 431),
        (get("/broken"), 500),
    ],
)
async def test_other_requests_are_refused(port: int, request_bytes: bytes, status: int) -> None:
    # An answer that comes while the request is being sent may be lost with the connection.
    answer = await ask(port, request_bytes)
    assert answer.startswith(f"HTTP/1.1 {status} ") or (status == 431 and not answer)
    assert "secret" not in answer
    assert "200 OK" in await ask(port, get("/hello"))


async def test_an_error_is_logged_on_one_line(port: int, caplog: pytest.LogCaptureFixture) -> None:
    await ask(port, get("/broken"))
    assert r"secret\x1b[31m\nsecond line" in caplog.messages[-1]


async def test_a_request_that_does_not_end_is_given_up(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.cli.metrics_server.READ_SECONDS", 0.01)
    assert (await ask(port, b"GET /hello")).startswith("HTTP/1.1 408 ")
    assert await ask(port, b"GET /hello", end=True) in ("", await ask(port, b"GET /hello"))


async def test_connections_are_bounded(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.cli.metrics_server.MOST_CONNECTIONS", 2)
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    answer = ""
    with contextlib.suppress(ConnectionError):
        answer = await ask(port, get("/hello"))
    assert answer == ""
    for _, writer in idle:
        writer.close()


async def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(
            CannotListen, match=rf"^cannot listen on 127.0.0.1:{number}: address already in use$"
        ):
            await HttpServer({}).start("127.0.0.1", number)
    with pytest.raises(CannotListen, match=r"^cannot listen on no\.such\.host\.invalid:1: "):
        await HttpServer({}).start("no.such.host.invalid", 1)
