"""Background tasks with an owner, and calls that finish despite cancellation."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable, Collection, Coroutine, Generator
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
        loop = asyncio.get_running_loop()
        return self._own(loop.create_task(coroutine, name=f"treadle {name}", context=context))

    def start_at_once(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None] | None:
        """Run the coroutine up to its first wait now, and the rest in a task. None: it has ended.

        Until then it runs in the caller's task. So it must not ask for its task, as `asyncio.timeout` does.
        """
        context = self._context.copy()
        try:
            waits_for = context.run(coroutine.send, None)
        except StopIteration:
            return None
        rest = _rest(coroutine, waits_for)
        return self._own(
            asyncio.get_running_loop().create_task(rest, name=f"treadle {name}", context=context)
        )

    def _own(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
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


class _Begun:
    """A coroutine that has begun, and waits for a future: what is awaited is the rest of it."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        waits_for = self._waits_for
        while True:
            try:
                value = yield waits_for
            except BaseException as error:  # noqa: BLE001  the coroutine gets it
                resume = functools.partial(self._coroutine.throw, error)
            else:
                resume = functools.partial(self._coroutine.send, value)
            try:
                waits_for = resume()
            except StopIteration:
                return


async def _rest(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
    await _Begun(coroutine, waits_for)


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
        except GeneratorExit:  # it is thrown away with its loop
            raise
        except BaseException:  # noqa: BLE001  the task holds it; it is raised below
            break
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()
