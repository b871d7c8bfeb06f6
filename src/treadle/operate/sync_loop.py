"""SyncLoop: runs coroutines of an app for threads that are not async, and waits for them.

They run on the app's event loop. An app that has no event loop yet gets its own, in a background thread. All
clients of one app share it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from typing import Any, TypeVar

from treadle.base.callables import runs_here
from treadle.base.loop_mark import forks
from treadle.engine.core import Core
from treadle.engine.store_retry import STOP_TIMEOUT
from treadle.errors import InputError, Stopped

T = TypeVar("T")

GRACE = 1.0
"""Seconds that calls of other threads have to end before the loop is ended."""


class SyncLoop:
    def __init__(self, core: Core) -> None:
        self.core = core
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ending = False
        """The background loop is being ended."""
        self._calls: set[Future[Any]] = set()
        """Those that other threads wait for."""
        self._forks = forks()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the app's loop, and wait for it here."""
        self._leave_parent()
        try:
            with self._lock:  # after `_ending` is set, nothing more is started on the loop
                loop = self._usable_loop(coroutine)
                answer = asyncio.run_coroutine_threadsafe(coroutine, loop)
                self._calls.add(answer)
        except BaseException:
            coroutine.close()
            raise
        try:
            return answer.result()
        except CancelledError:
            raise Stopped("the app") from None
        finally:
            self._calls.discard(answer)

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the app's loop, and do not wait for it. The end of the loop cancels it."""
        self._leave_parent()
        try:
            with self._lock:
                loop = self._usable_loop(coroutine)
                return asyncio.run_coroutine_threadsafe(coroutine, loop)
        except BaseException:
            coroutine.close()
            raise

    @property
    def has_loop(self) -> bool:
        """Whether the app is in use on an event loop, its own or another."""
        return (self.core.live_loop() or self._loop) is not None

    @property
    def connected(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that the app is connected on."""
        return self.core.loop

    def close(self) -> None:
        """End the background loop, if there is one, and close the app on it. An app on the user's own loop is
        not closed. Calls of other threads may end first: a submit that is under way is answered. Those that
        take longer, as the wait for a result, raise `Stopped`."""
        self._leave_parent()
        with self._lock:
            loop, thread = self._loop, self._thread
            if loop is None or thread is None or self._ending:
                return
            self._ending = True
        try:
            wait(self._calls.copy(), timeout=GRACE)
            asyncio.run_coroutine_threadsafe(self.core.close(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            self._loop = self._thread = None
            self._ending = False

    def _usable_loop(self, call: object) -> asyncio.AbstractEventLoop:
        """The app's loop, or one of its own. call: the coroutine that shall run there, for the error."""
        if self._ending:
            raise Stopped("the app")
        loop = self.core.live_loop() or self._loop
        if loop is None:
            loop = self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run_loop, args=(loop,), name="treadle sync", daemon=True)
            self._thread.start()
        if runs_here(loop):
            method = getattr(call, "__name__", "enqueue")
            raise RuntimeError(
                f"app.sync would block the event loop it runs on: use await {method}(...) of the app itself, "
                "without .sync"
            )
        return loop

    def _leave_parent(self) -> None:
        """In a forked process the thread of the parent does not exist."""
        if self._forks != forks():
            self._forks = forks()
            self._lock = threading.Lock()
            self._loop, self._thread, self._ending = None, None, False
            self._calls = set()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run until the loop is stopped. Then end its tasks: callers wait for them."""
    loop.run_forever()
    loop.run_until_complete(asyncio.sleep(0))  # what was started last becomes a task
    if tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks, timeout=STOP_TIMEOUT))
    loop.close()


def run_without_loop(awaitable: Awaitable[T]) -> T:
    """Return the value of an awaitable that waits for nothing, as a submit with a sync driver."""

    async def waited() -> T:
        return await awaitable

    coroutine = waited()
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    except RuntimeError as error:
        if "no running event loop" not in str(error):
            raise
    coroutine.close()
    raise InputError(
        "tx: app.sync takes a connection of a driver that is not async, and submit middlewares that wait for "
        "nothing",
        parameters=("tx",),
    )
