"""Background tasks with an owner, and calls that finish despite cancellation."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

from . import store_retry

T = TypeVar("T")


class Tasks:
    """The tasks that one object started. The owner ends them with `cancel`.

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

    async def cancel(self, names: Collection[str] | None = None, *, keep: Collection[str] = ()) -> None:
        """Cancel the tasks with these names, or all except those to `keep`, and wait up to `STOP_TIMEOUT` for
        them. A task that waits for the store ends when the store answers (see `finish`)."""
        tasks = {
            task
            for task in self._tasks
            if task is not asyncio.current_task()
            and (name := task.get_name().removeprefix("treadle ")) not in keep
            and (names is None or name in names)
        }
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=store_retry.STOP_TIMEOUT)


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
