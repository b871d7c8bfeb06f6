"""Server stop: whether the server of this process was told to stop.

A server that stops waits for the requests that are under way, and only then ends the lifespan. A stream of
events and a long poll would keep it waiting. So they are ended when the process gets SIGINT or SIGTERM. The
handlers of the server are called as before.

A lifespan uses `watching`. Code without one calls `watch` with each request: the first call on an event loop
sets the handlers.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from treadle.client import Client
from treadle.engine.core import Core

from .operator import core_of

STOP_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)


class ServerStop:
    """Ends the waits of one app's requests when the server stops."""

    def __init__(self) -> None:
        self._stopping = False
        self._waiting: set[asyncio.Future[None]] = set()

    def future(self) -> asyncio.Future[None]:
        """A future that ends when the server is told to stop. Cancel it when it is of no use any more."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._stopping:
            future.set_result(None)
        else:
            self._waiting.add(future)
            future.add_done_callback(self._waiting.discard)
        return future

    def tell(self) -> None:
        """The server stops. The waits may be on several event loops."""
        self._stopping = True
        for future in tuple(self._waiting):
            with suppress(RuntimeError):  # its loop is closed
                future.get_loop().call_soon_threadsafe(_end, future)

    def watch(self) -> None:
        """From now on SIGINT and SIGTERM end the waits. Call it on the event loop of the server. In another
        thread than the main one it does nothing: only that one may set handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        stops = _watched.get(loop)
        if stops is None:
            stops = _watched[loop] = WeakSet()
            for number in STOP_NUMBERS:
                handler = _chained(number, loop, partial(_tell_all, stops))
                if handler is not None:
                    signal.signal(number, handler)
        if self not in stops:
            self._stopping = False
            stops.add(self)

    @contextmanager
    def watching(self) -> Generator[None]:
        """While it is entered, SIGINT and SIGTERM end the waits. Only the main thread can do that."""
        self._stopping = False
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        ours = {number: _chained(number, loop, self.tell) for number in STOP_NUMBERS}
        before = {number: signal.getsignal(number) for number in STOP_NUMBERS}
        for number, handler in ours.items():
            if handler is not None:
                signal.signal(number, handler)
        try:
            yield
        finally:
            for number, handler in ours.items():
                if handler is not None and signal.getsignal(number) is handler:
                    signal.signal(number, before[number])


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _tell_all(stops: WeakSet[ServerStop]) -> None:
    for each in tuple(stops):
        each.tell()


def _chained(
    number: int, loop: asyncio.AbstractEventLoop, tell: Callable[[], None]
) -> Callable[[int, FrameType | None], Any] | None:
    """A handler that tells, and calls the one that is set now. None if none is: then the signal ends the
    process at once."""
    previous = signal.getsignal(number)
    if not callable(previous):
        return None

    def handler(number: int, frame: FrameType | None) -> Any:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell)
        return previous(number, frame)

    return handler


_stops: WeakKeyDictionary[Core, ServerStop] = WeakKeyDictionary()
_watched: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakSet[ServerStop]] = WeakKeyDictionary()
"""The event loops of servers, and what is told when a server stops."""


def server_stop(app: Client) -> ServerStop:
    """The one of an app. All its clients share it."""
    return _stops.setdefault(core_of(app), ServerStop())
