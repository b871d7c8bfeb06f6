"""Handler pools: the threads and processes in which sync handlers run.

A handler takes a place in its pool before it begins, and keeps it until its thread or process is free again.
So a handler that has begun never waits for a thread, and its timeout counts no time that it waited.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from treadle.logs.lines import ERROR, error_text, log_line

if TYPE_CHECKING:
    from .process_pool import ProcessPool

POOLS: Final = ("thread", "process")
"""The pools, by the `run_in` of work types."""


class Places:
    """The places of a pool. They are given out in order of arrival."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = asyncio.Semaphore(count)
        self._wanted = 0
        """How many are taken or waited for."""

    def room(self) -> int:
        """How many more handlers could begin now."""
        return max(0, self.count - self._wanted)

    async def __aenter__(self) -> None:
        self._wanted += 1
        try:
            await self._free.acquire()
        except BaseException:
            self._wanted -= 1
            raise

    async def __aexit__(self, *_: object) -> None:
        self._wanted -= 1
        self._free.release()


class HandlerPools:
    """Both pools of one worker. Their threads and processes are started when first needed."""

    def __init__(self, threads: int, processes: int | None) -> None:
        self._process_count = processes or os.cpu_count() or 1
        self._processes: ProcessPool | None = None
        self.threads = HandlerThreads(threads)
        self._places = {"thread": Places(threads), "process": Places(self._process_count)}
        """By the name of their pool."""
        self.stopped = False
        """The worker has stopped. No handler begins, and no task waits for a thread that still runs."""
        self.loop_ends: Callable[[], bool] = bool
        """Whether the event loop ends, after the worker has: what would begin now would never end."""

    def processes(self) -> ProcessPool:
        if self._processes is None:
            from .process_pool import ProcessPool  # it takes time to load, and few apps need it

            self._processes = ProcessPool(self._process_count)
        return self._processes

    def place(self, run_in: str) -> AbstractAsyncContextManager[None]:
        """A place for one handler, while it runs. A handler on the loop needs none."""
        return self._places.get(run_in, nullcontext())

    def room(self, run_in: str) -> int:
        """How many more handlers could begin now in a `thread`, or in a `process`."""
        return self._places[run_in].room()

    def size(self, run_in: str) -> int:
        """How many handlers may run at once in a `thread`, or in a `process`."""
        return self._places[run_in].count

    def stop(self) -> None:
        """The worker stops: cancel the calls that have not begun."""
        self.stopped = True
        self.threads.cancel_waiting()

    async def close(self) -> None:
        self.threads.close()
        if self._processes is not None:
            await self._processes.close()
            self._processes = None


Call: TypeAlias = Callable[[], Any]


class ThreadNotStarted(Exception):
    """The system could not start a thread for a handler, and none runs that could take its call."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"no thread could be started for the handler: {cause}")
        self.__cause__ = cause


class HandlerThreads:
    """Up to `most` threads. They are started when they are needed, and end with `close`.

    A thread cannot be stopped. These are daemon threads: a process can end while a handler still runs. An
    executor of the standard library would wait for it.
    """

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
