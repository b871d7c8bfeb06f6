"""AnswerStream: an answer of the dashboard that is read part by part, on another event loop.

The dashboard runs on the event loop of its app. A server such as that of Django under ASGI has its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Any

from starlette.types import ASGIApp, Message, Scope

from treadle.operate.server_stop import ServerStop
from treadle.operate.sync_loop import SyncLoop

__all__ = ["AnswerStream"]


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
