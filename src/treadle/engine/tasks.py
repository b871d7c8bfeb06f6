"""Background tasks with an owner, calls that finish despite cancellation, and batching of writes."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Generic, TypeVar

from . import store_retry

T = TypeVar("T")
R = TypeVar("R")


class Tasks:
    """The tasks that one object started. The owner ends them with `cancel` or waits with `join`.

    Every task runs in a copy of the context in which this object was made: context variables that a handler
    sets do not leak into tasks that it starts indirectly.
    """

    __slots__ = ("_context", "_on_error", "_tasks")

    def __init__(self, on_error: Callable[[BaseException, str], None]) -> None:
        self._context = contextvars.copy_context()
        self._on_error = on_error
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        context = self._context.copy()
        task = asyncio.get_running_loop().create_task(coroutine, name=f"treadle {name}", context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.report(error, task.get_name().removeprefix("treadle "))

    def report(self, error: BaseException, name: str) -> None:
        """Pass on an error of the task `name` that no caller receives."""
        self._on_error(error, name)

    async def cancel(self, names: Collection[str] | None = None) -> None:
        """Cancel the tasks with these names, or all, and wait up to `STOP_TIMEOUT` for them. A task that
        waits for the store ends when the store answers (see `finish`)."""
        tasks = {
            task
            for task in self._tasks
            if task is not asyncio.current_task()
            and (names is None or task.get_name().removeprefix("treadle ") in names)
        }
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=store_retry.STOP_TIMEOUT)

    async def join(self) -> None:
        while self._tasks:
            await asyncio.wait(set(self._tasks))


async def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end even if the caller is cancelled, then pass the cancellation on.

    Cancelling a commit says nothing about whether it happened. A bare `shield` would return to the caller
    while the commit is still under way.
    """
    task = asyncio.ensure_future(coroutine)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            # Also if the task has ended meanwhile: a cancellation is never swallowed.
            if not task.cancelled():
                cancelled = error
        except BaseException:  # noqa: BLE001  the task holds it; it is raised below
            break
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()


class Combiner(Generic[R]):
    """Hands requests to `write` in batches of at most `limit`, one batch at a time, in order.

    Natural batching, without a timer: while one batch is being written, the next one collects. A single
    request is written at once; under load, batches grow to what arrives during a write.

    `write` answers its requests itself and does not raise on their behalf. If it does raise, the error is
    reported and the next batch is written all the same.
    """

    __slots__ = ("_limit", "_name", "_tasks", "_write", "_writer", "waiting")

    def __init__(
        self, write: Callable[[list[R]], Awaitable[None]], tasks: Tasks, *, name: str, limit: int = 500
    ) -> None:
        self._write = write
        self._tasks = tasks
        self._name = name
        self._limit = limit
        self.waiting: deque[R] = deque()
        """The requests that are not yet part of a batch."""
        self._writer: asyncio.Task[None] | None = None

    def add(self, request: R) -> None:
        self.waiting.append(request)
        if self._writer is None:
            self._writer = self._tasks.start(self._run(), self._name)

    async def flush(self) -> None:
        """Return when everything added so far has been written."""
        while self._writer is not None:
            await asyncio.wait({self._writer})

    async def _run(self) -> None:
        try:
            while self.waiting:
                try:
                    await self._write(self.next_batch())
                except Exception as error:  # noqa: BLE001  later requests must not wait for ever
                    self._tasks.report(error, self._name)
        finally:
            self._writer = None

    def next_batch(self) -> list[R]:
        """Remove the next batch from `waiting`. Public: a mutant replaces it."""
        if len(self.waiting) <= self._limit:
            batch = list(self.waiting)
            self.waiting.clear()
            return batch
        return [self.waiting.popleft() for _ in range(self._limit)]
