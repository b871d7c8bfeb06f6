"""Handler pools: the threads and processes in which sync handlers run.

A handler takes a place in its pool before it begins, and keeps it until its thread or process is free again.
So a handler that has begun never waits for a thread, and its timeout counts no time that it waited.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from .handler_threads import HandlerThreads

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
