"""The dashboard as a WSGI app, for Flask, and for Django under a WSGI server.

    from treadle.dashboard import Access, dashboard_wsgi

    board = dashboard_wsgi(app, access=access)

The pages run on the app's event loop (see `treadle.sync`), the access function in the thread of the
request: it may use the session, and the database, of the site. There are no server-sent events: pages look
every few seconds. Django under ASGI has them, by `WsgiDashboard.stream`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from http import HTTPStatus
from inspect import isawaitable
from typing import Any, Final, NamedTuple
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Scope

from treadle.base.callables import check_callable
from treadle.client import Client, sync_loop_of
from treadle.operate.server_stop import ServerStop, server_stop
from treadle.operate.sync_loop import SyncLoop
from treadle.sync import SyncClient

from .access import AccessAnswer, AccessFn
from .app import make_site, web_of
from .forms import MOST_BYTES
from .live import STREAMS

__all__ = ["AnswerStream", "WsgiDashboard", "dashboard_wsgi"]

_ANSWER: Final = "treadle.access"
"""Where a scope carries what the access function has answered."""


def dashboard_wsgi(
    app: Client,
    *,
    access: AccessFn,
    title: str = "treadle",
    links: Mapping[str, str] | None = None,
    mask: Collection[str] = (),
    origins: Collection[str] = (),
) -> WSGIApplication:
    """Return the dashboard of an app as a WSGI app. Mount it under any path: it is at `SCRIPT_NAME`.

    The parameters are those of `treadle.dashboard.dashboard`. `access` gets a request of Starlette, with the
    cookies and headers. `request.scope["environ"]` is the WSGI environment.
    """
    return WsgiDashboard(app, access, title=title, links=links, mask=mask, origins=origins)


class WsgiDashboard:
    """The dashboard as a WSGI app. `stream` answers a request part by part, for servers that can."""

    def __init__(
        self,
        app: Client,
        access: AccessFn,
        *,
        title: str,
        links: Mapping[str, str] | None,
        mask: Collection[str] = (),
        origins: Collection[str] = (),
    ) -> None:
        check_callable(access, "access")
        self._access = access
        self._web = web_of(make_site(app, _answered, title=title, links=links, mask=mask, origins=origins))
        self._sync = app.sync
        self._loop = sync_loop_of(app)
        self._stop = server_stop(app)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        answer = self._sync.call(_run(self._web, self._scope(environ), _body(environ)))
        start_response(answer.status, answer.headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer.body]

    def stream(self, environ: WSGIEnvironment) -> AnswerStream:
        """The answer to a request without a body. It may be a stream of events. That ends after a minute: the
        browser asks again, and with that request the access function is asked again."""
        scope = self._scope(environ)
        scope[STREAMS] = True
        return AnswerStream(self._web, self._loop, self._stop, scope)

    def _scope(self, environ: WSGIEnvironment) -> Scope:
        scope = scope_of(environ)
        if not _decoded(environ.get("PATH_INFO", "")).startswith("/static/"):
            scope[_ANSWER] = _ask(self._access, self._sync, Request(scope))
        return scope


def _ask(access: AccessFn, sync: SyncClient, request: Request) -> AccessAnswer | Exception:
    """What the access function answers, or raises. A plain function runs in this thread."""
    try:
        answer = access(request)
        return sync.call(_value(answer)) if isawaitable(answer) else answer
    except Exception as error:  # noqa: BLE001  the site answers it as any error
        return error


async def _value(answer: Awaitable[AccessAnswer]) -> AccessAnswer:
    return await answer


def _answered(request: Request) -> AccessAnswer:
    """What was answered, once. A stream that asks again gets None, and ends."""
    answer: AccessAnswer | Exception = request.scope.pop(_ANSWER, None)
    if isinstance(answer, Exception):
        raise answer
    return answer


# ------------------------------------------------------------------------------------------- WSGI and ASGI


def scope_of(environ: WSGIEnvironment) -> Scope:
    """A request of WSGI as the scope of ASGI. WSGI has bytes as texts of Latin-1; paths are UTF-8."""
    root = _decoded(environ.get("SCRIPT_NAME", "")).rstrip("/")
    path = root + _decoded(environ.get("PATH_INFO", ""))
    port = str(environ.get("SERVER_PORT", ""))
    address = environ.get("REMOTE_ADDR")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},  # a stream does not wait for a disconnect
        "http_version": str(environ.get("SERVER_PROTOCOL", "HTTP/1.1")).partition("/")[2],
        "method": environ["REQUEST_METHOD"],
        "scheme": environ.get("wsgi.url_scheme", "http"),
        "root_path": root,
        "path": path,
        "raw_path": path.encode("utf-8", "replace"),
        "query_string": environ.get("QUERY_STRING", "").encode("latin-1", "replace"),
        "headers": list(_headers(environ)),
        "server": (environ.get("SERVER_NAME", ""), int(port) if port.isdecimal() else None),
        "client": (address, 0) if address else None,
        "environ": environ,
    }


def _decoded(text: str) -> str:
    return text.encode("latin-1", "replace").decode("utf-8", "replace")


def _headers(environ: WSGIEnvironment) -> Iterator[tuple[bytes, bytes]]:
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            key = name[5:]
        elif name in ("CONTENT_TYPE", "CONTENT_LENGTH") and value:
            key = name
        else:
            continue
        yield key.replace("_", "-").lower().encode("latin-1"), str(value).encode("latin-1", "replace")


def _body(environ: WSGIEnvironment) -> bytes:
    """The body, as far as the forms of the dashboard read it: a larger one is refused there."""
    length, most = str(environ.get("CONTENT_LENGTH") or ""), MOST_BYTES + 1
    if length.isdecimal() and len(length) < 20:
        most = min(int(length), most)
    elif not environ.get("wsgi.input_terminated"):
        return b""
    body: bytes = environ["wsgi.input"].read(most)
    return body


class _Answer(NamedTuple):
    status: str
    headers: list[tuple[str, str]]
    body: bytes


async def _run(web: Starlette, scope: Scope, body: bytes) -> _Answer:
    """One request. An error that the app does not answer is raised, for the server to log."""
    start: dict[str, Any] = {}
    parts: list[bytes] = []
    asked = False

    async def receive() -> Message:
        nonlocal asked
        if asked:
            return {"type": "http.disconnect"}
        asked = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    await web(scope, receive, send)
    status = HTTPStatus(start["status"])
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
    if status not in (204, 304) and all(name != "content-type" for name, _ in headers):
        headers.append(("content-type", "text/plain"))  # servers of WSGI expect one
    return _Answer(f"{status.value} {status.phrase}", headers, b"".join(parts))


class AnswerStream:
    """The answer to one request. Iterate over it on the event loop of the server, once. `close()` ends it.

    It may be made in any thread that is not that of the app's event loop.
    """

    def __init__(self, web: ASGIApp, loop: SyncLoop, stop: ServerStop, scope: Scope) -> None:
        self._stop = stop
        self._started: Future[Message] = Future()
        self._parts: deque[bytes] = deque()
        self._ended = False
        self._reader: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._running = loop.begin(self._run(web, scope))

    def head(self) -> tuple[int, list[tuple[str, str]]]:
        """The status and the headers. Waits for them."""
        start = self._started.result()
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
        return start["status"], headers

    def close(self) -> None:
        """The visitor is gone."""
        self._running.cancel()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._stop.watch()
        news = asyncio.Event()
        self._reader = (asyncio.get_running_loop(), news)
        try:
            while True:
                news.clear()
                while self._parts:
                    yield self._parts.popleft()
                if self._ended and not self._parts:
                    return
                await news.wait()
        finally:
            self.close()

    # -- on the event loop of the app ------------------------------------------------------------------

    async def _run(self, web: ASGIApp, scope: Scope) -> None:
        try:
            await web(scope, _receive_nothing, self._send)
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            raise
        finally:
            self._ended = True
            self._tell()

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started.set_result(message)
        elif message.get("body"):
            self._parts.append(message["body"])
            self._tell()

    def _tell(self) -> None:
        if self._reader is not None:
            loop, news = self._reader
            with contextlib.suppress(RuntimeError):  # the server is gone
                loop.call_soon_threadsafe(news.set)


async def _receive_nothing() -> Any:
    """No body, and the visitor stays: `close` tells otherwise."""
    await asyncio.Event().wait()
