"""Simulated threads: real ones, of which one runs at a time, or the event loop.

The loop gives its turn to a thread, which gives it back when it waits or ends. So a seed has one history. A
thread waits as its process does: longer if the process is paused, and for ever if it was killed. Nothing else
can stop it.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from tests.simulation.loop import SimLoop
from treadle.engine.run import step_calls
from treadle.engine.run.handler_pools import HandlerThreads


class Abandoned(BaseException):
    """The simulation has ended, and a thread of it had not."""


class SimThread:
    """One call in a thread. It runs while the loop waits for it."""

    _current = threading.local()

    def __init__(self, loop: SimLoop, call: Callable[[], Any], future: Future[Any]) -> None:
        self._loop = loop
        self._call = call
        self._future = future
        self._context = contextvars.copy_context()
        self._turn = threading.Semaphore(0)
        self._loops_turn = threading.Semaphore(0)
        self._waits = False
        self._is_abandoned = False

    @classmethod
    def current(cls) -> SimThread:
        found: SimThread = cls._current.thread
        return found

    # -- on the loop ---------------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop.threads.append(self)
        threading.Thread(target=self._run, daemon=True).start()
        self._loops_turn.acquire()

    def go_on(self) -> None:
        """Let it run until it waits again."""
        if self._waits:
            self._waits = False
            self._turn.release()
            self._loops_turn.acquire()

    def abandon(self) -> None:
        self._is_abandoned = True
        self.go_on()

    # -- in the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._current.thread = self
        result = self._call()
        if not self._is_abandoned:
            self._loop.call_soon(_resolve, self._future, result, context=self._context)
        self._loop.threads.remove(self)
        self._loops_turn.release()

    def wait(self, ready: Callable[[], bool]) -> None:
        while not ready():
            if self._is_abandoned:
                raise Abandoned
            self._waits = True
            self._loops_turn.release()
            self._turn.acquire()

    def sleep(self, seconds: float) -> None:
        end = self._loop.now + seconds
        self._loop.call_at(end, self.go_on, context=self._context)
        self.wait(lambda: self._loop.now >= end)

    # -- in both -------------------------------------------------------------------------------------------

    def wake(self, *_: object) -> None:
        self._loop.call_soon(self.go_on, context=self._context)


class SimQueue:
    """A queue that its thread reads."""

    def __init__(self) -> None:
        self._thread = SimThread.current()
        self._entries: deque[Any] = deque()

    def put(self, entry: Any) -> None:
        self._entries.append(entry)
        self._thread.wake()

    def get(self, timeout: float) -> Any:
        self._thread.wait(lambda: bool(self._entries))
        return self._entries.popleft()

    def empty(self) -> bool:
        return not self._entries


@contextmanager
def simulated_threads() -> Generator[None]:
    """Sync handlers run in simulated threads, and wait there."""
    with (
        patch.object(HandlerThreads, "start", _start_thread),
        patch.object(step_calls, "SimpleQueue", SimQueue),
        patch.object(asyncio, "run_coroutine_threadsafe", partial(_ask, asyncio.run_coroutine_threadsafe)),
    ):
        yield


def _start_thread(self: Any, call: Callable[[], Any]) -> Future[Any]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    future: Future[Any] = Future()
    self._unfinished.add(future)
    future.add_done_callback(self._ended)
    future.set_running_or_notify_cancel()
    SimThread(loop, call, future).start()
    return future


def _resolve(future: Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _ask(
    real: Callable[..., Future[Any]], request: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop
) -> Future[Any]:
    """Ask the loop. The thread gives its turn back until it is answered."""
    thread, answer = SimThread.current(), real(request, loop)
    result = answer.result

    def wait(timeout: float | None = None) -> Any:
        thread.wait(answer.done)
        return result()

    answer.result = wait  # type: ignore[method-assign]
    answer.add_done_callback(thread.wake)
    return answer
