"""Live: tell open pages that something has changed, by server-sent events.

One subscription per process serves all pages. An event says only that something has changed: the page then
asks for its own content. Where nothing is published, pages look every few seconds all the same: numbers and
ages change without an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from treadle.backend import Backend
from treadle.errors import TreadleError
from treadle.item import Wake
from treadle.operate.server_stop import ServerStop

DEBOUNCE: Final = 0.5
"""Seconds between two events at least."""
LOOK_EVERY: Final = 2.0
"""Seconds after which pages look without an event."""
MOST_PAGES: Final = 500
"""Limit on the pages that are told. Others look by themselves."""
MOST_OF_ACTOR: Final = 50
"""Limit on those of one actor."""
ASK_EVERY: Final = 60.0
"""Seconds after which it is asked again whether a visitor has access."""
STREAMS: Final = "treadle.streams"
"""In the scope of a request of WSGI: its answer may be a stream."""


class PageStream(StreamingResponse):
    """The events of one page. on_end: called once, also if the visitor is gone before the first event."""

    def __init__(self, events: AsyncIterator[str], on_end: Callable[[], None]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


class Live:
    """The pages that are open now."""

    def __init__(self, backend: Backend, stop: ServerStop) -> None:
        self._backend = backend
        self._stop = stop
        self._pages: dict[asyncio.Event, str] = {}
        """With the actor of each."""
        self._unsubscribe: Callable[[], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, request: Request, actor: str, allowed: Callable[[], Awaitable[bool]]) -> Response:
        """An answer that ends when the visitor goes or is not allowed any more, and when the server stops."""
        full = len(self._pages) >= MOST_PAGES or list(self._pages.values()).count(actor) >= MOST_OF_ACTOR
        # WSGI would need a thread for each open page.
        waits = "environ" not in request.scope or STREAMS in request.scope
        if full or request.method == "HEAD" or not waits:
            return Response(status_code=204)  # the browser does not try again
        # It counts from now on: many may come before the first of them sends something.
        changed = asyncio.Event()
        self._pages[changed] = actor
        return PageStream(self._events(request, changed, allowed), lambda: self._end(changed))

    async def _events(
        self, request: Request, changed: asyncio.Event, allowed: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[str]:
        await self._subscribe()
        asked_at = time.monotonic()
        self._stop.watch()
        stopping = self._stop.future()
        stopping.add_done_callback(lambda _: changed.set())
        try:
            yield "retry: 3000\n\n"
            while not await request.is_disconnected():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY):
                        await changed.wait()
                changed.clear()
                if stopping.done():
                    return
                if time.monotonic() - asked_at >= ASK_EVERY:
                    if not await allowed():
                        return
                    asked_at = time.monotonic()
                yield "event: changed\ndata: \n\n"
                await asyncio.sleep(DEBOUNCE)
        finally:
            stopping.cancel()

    async def _subscribe(self) -> None:
        loop = asyncio.get_running_loop()
        if self._unsubscribe is not None and self._loop is loop:
            return
        self._loop = loop
        self._unsubscribe = _nothing  # until it is subscribed, for pages that are opened meanwhile
        try:
            self._unsubscribe = await self._backend.subscribe(self._receive)
        except TreadleError:
            self._unsubscribe = None

    def _receive(self, wake: Wake) -> None:
        self.changed()

    def changed(self) -> None:
        """Tell all pages."""
        for page in self._pages:
            page.set()

    def _end(self, page: asyncio.Event) -> None:
        del self._pages[page]
        if not self._pages and self._unsubscribe is not None:
            unsubscribe, self._unsubscribe = self._unsubscribe, None
            unsubscribe()


def _nothing() -> None:
    pass
