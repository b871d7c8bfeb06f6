"""A dashboard on a real port: uvicorn, the app and its worker on an event loop in a thread.

Playwright's sync API occupies the thread of the test, so what happens on the server's side is asked for with
`site.call(app.enqueue(...))`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

from starlette.applications import Starlette
from starlette.routing import Mount

from tests.browser.serving import background_loop, listening
from tests.dashboard.compiled import compiled_once
from treadle import Treadle
from treadle.dashboard import Access, dashboard, live

T = TypeVar("T")

PATH = "/ops/treadle"
"""Mounted below another path, as a host's app would have it."""


def everyone(_: object) -> Access:
    return Access(actor="ada@example.com", can="all")


class Site:
    """A dashboard that is being served."""

    def __init__(self, app: Treadle, loop: asyncio.AbstractEventLoop, origin: str) -> None:
        self.app = app
        self.origin = origin
        self._loop = loop

    def url(self, path: str = "/") -> str:
        """The address of one of its pages."""
        return f"{self.origin}{PATH}{path}"

    def call(self, coroutine: Coroutine[Any, Any, T], timeout: float = 30) -> T:
        """Run a coroutine where the app runs."""
        return self.begin(coroutine).result(timeout)

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """The same, without waiting for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


@contextmanager
def serve(
    app: Treadle, *, works: bool = True, access: Callable[..., Any] = everyone, **options: Any
) -> Iterator[Site]:
    """Serve the dashboard of an app. works: run its worker too. Pages look more often than usual."""
    with compiled_once():
        web = Starlette(routes=[Mount(PATH, app=dashboard(app, access=access, **options))])
    often = patch.multiple(live, LOOK_EVERY=0.5, DEBOUNCE=0.2)
    with often, background_loop() as loop, listening(web, loop) as origin:
        site = Site(app, loop, origin)
        site.call(app.start() if works else app.connect())
        try:
            yield site
        finally:
            site.call(app.stop(drain=0))
