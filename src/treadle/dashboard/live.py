"""Live: what goes on beside requests.

`Live` tells open pages that something has changed, by server-sent events. One subscription per process serves
all pages. An event says only that something has changed: the page then asks for its own content. Where
nothing is published, pages look every few seconds all the same: numbers and ages change without an event.

`KeptReads` reads what a page shows once for all who look at it. `BulkRuns` runs the portions of bulk actions,
as long as some wait: in a fleet without workers they would wait for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from treadle.backend import Backend
from treadle.bulk_runner import BulkRunner
from treadle.client import Client
from treadle.errors import LifecycleError, TreadleError
from treadle.item import Wake
from treadle.logs.lines import log_error
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


# -- reads that visitors share -----------------------------------------------------------------------


KEPT_SECONDS: Final = 1.0
MOST_KEPT: Final = 200


class KeptReads:
    """Shares reads among requests.

    seconds: for how long what was read is kept.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, seconds: float = KEPT_SECONDS) -> None:
        self._clock = clock
        self._seconds = seconds
        self._reads: dict[Hashable, tuple[float, asyncio.Task[object]]] = {}
        self._running: set[asyncio.Task[object]] = set()

    async def get(self, key: Hashable, read: Callable[[], Awaitable[object]]) -> object:
        """What a read of this key returns. It is not repeated within `seconds`, and requests at the same time
        share one. It goes on if the request that began it is given up."""
        kept = self._reads.get(key)
        if kept is None or self._is_old(*kept):
            self._forget_old()
            task = asyncio.ensure_future(_read(read))
            self._running.add(task)
            task.add_done_callback(self._ended)
            kept = self._reads[key] = (self._clock(), task)
        return await asyncio.shield(kept[1])

    def put(self, key: Hashable, found: object) -> None:
        """Keep what was found on another way, as if it had been read now."""
        ready = asyncio.get_running_loop().create_task(_read(lambda: _given(found)))
        self._reads[key] = (self._clock(), ready)

    def forget(self) -> None:
        """Read everything anew: something was changed here. A read that has begun may not show it. Those who
        wait for it get it."""
        self._reads = {}

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # an error is no news if everyone who asked has left

    def _is_old(self, at: float, task: asyncio.Task[object]) -> bool:
        if task.get_loop() is not asyncio.get_running_loop():
            return True
        return task.done() and (task.cancelled() or self._clock() - at >= self._seconds)

    def _forget_old(self) -> None:
        self._reads = {key: kept for key, kept in self._reads.items() if not self._is_old(*kept)}
        for key in list(self._reads)[: len(self._reads) - MOST_KEPT + 1]:
            del self._reads[key]


async def _given(found: object) -> object:
    return found


async def _read(read: Callable[[], Awaitable[object]]) -> object:
    return await read()


# -- bulk actions ------------------------------------------------------------------------------------


class BulkRuns:
    """Runs beside requests, and ends when no portion waits, or with its event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless it runs already."""
        task, loop = self._task, asyncio.get_running_loop()
        if task is None or task.done() or task.get_loop() is not loop:
            self._task = loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            await BulkRunner(self._client).run(until_done=True)
        except LifecycleError:
            pass  # the app has stopped
        except Exception as error:  # noqa: BLE001  no request waits for it; the next look at the page starts it again
            log_error("the dashboard could not run a bulk action", error)
