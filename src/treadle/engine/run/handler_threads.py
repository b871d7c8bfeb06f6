"""Handler threads: where sync handlers run.

A thread cannot be stopped. These are daemon threads, so that a process can end while a handler still runs; an
executor of the standard library would wait for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeAlias

from treadle.logs.lines import ERROR, error_text, log_line

Call: TypeAlias = Callable[[], Any]


class ThreadNotStarted(Exception):
    """The system could not start a thread for a handler, and none runs that could take its call."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"no thread could be started for the handler: {cause}")
        self.__cause__ = cause


class HandlerThreads:
    """Up to `most` threads. They are started when they are needed, and end with `close`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: SimpleQueue[tuple[Future[Any], Call] | None] = SimpleQueue()
        """None: the end of a thread."""
        self._threads = 0
        self._unfinished: set[Future[Any]] = set()
        self._on_idle: Callable[[], None] | None = None
        self._short = False
        """The last thread could not be started."""
        self._lock = threading.Lock()

    def start(self, call: Call) -> Future[Any]:
        """Run the call in a thread, as soon as one is free. `ThreadNotStarted` if there is none, and none can
        be started: then the call was not taken."""
        future: Future[Any] = Future()
        with self._lock:
            self._unfinished.add(future)
            more = self._threads < min(len(self._unfinished), self._most)
        if more:
            try:
                self._start_thread()
            except BaseException:
                self._ended(future)
                raise
        future.add_done_callback(self._ended)
        self._calls.put((future, call))
        return future

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._run, name="treadle handler", daemon=True).start()
        except (RuntimeError, MemoryError) as error:
            if not self._short:
                why = error_text(error)
                log_line(ERROR, f"{self._threads} threads run handlers, and no more can be started: {why}")
            self._short = True
            if not self._threads:
                raise ThreadNotStarted(error) from error
            return  # a thread that runs takes the call later
        self._short = False
        self._threads += 1

    def _run(self) -> None:
        while (waiting := self._calls.get()) is not None:
            future, call = waiting
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001  the caller gets it
                    future.set_exception(error)
            del future, call, waiting  # a thread that waits keeps nothing alive

    def _ended(self, future: Future[Any]) -> None:
        with self._lock:
            self._unfinished.discard(future)
            callback = None if self._unfinished else self._on_idle
        if callback is not None:
            callback()

    @property
    def busy(self) -> bool:
        """Whether a call runs or waits."""
        return bool(self._unfinished)

    def cancel_waiting(self) -> None:
        """Cancel the calls that have not begun."""
        with self._lock:
            futures = list(self._unfinished)
        for future in futures:
            future.cancel()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback`, in any thread, when no call runs or waits. At once if that is so now."""
        with self._lock:
            self._on_idle = callback
            idle = not self._unfinished
        if idle:
            callback()

    def close(self) -> None:
        """End each thread when its call has ended. No call may be started any more."""
        for _ in range(self._threads):
            self._calls.put(None)


def caught(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What a call returned or raised. Futures do not carry every error (StopIteration, GeneratorExit)."""
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001
        return None, error


async def wait_for_end(future: asyncio.Future[Any]) -> None:
    """Wait until a thread has ended, and ignore its outcome."""
    while not future.done():
        await asyncio.wait({future})
    if not future.cancelled():
        future.exception()
