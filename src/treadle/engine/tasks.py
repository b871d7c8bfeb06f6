"""Background tasks with an owner, calls that finish despite cancellation, and writes in natural batches."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Sized
from typing import Any, Generic, TypeAlias, TypeVar, cast

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
        self._tasks: dict[asyncio.Task[Any], None] = {}  # cancelled in this order

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
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.report(error, task.get_name().removeprefix("treadle "))

    def report(self, error: BaseException, name: str) -> None:
        """Pass on an error of the task `name` that no caller receives."""
        self._on_error(error, name)

    async def cancel(self, names: Collection[str] | None = None, *, keep: Collection[str] = ()) -> None:
        """Cancel the tasks with these names, or all except those to `keep`, and wait up to `STOP_TIMEOUT` for
        them. A task that waits for the store ends when the store answers (see `finish`)."""
        tasks = [
            task
            for task in self._tasks
            if task is not asyncio.current_task()
            and (name := task.get_name().removeprefix("treadle ")) not in keep
            and (names is None or name in names)
        ]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=store_retry.STOP_TIMEOUT)


class _Begun(Generic[T]):
    """A coroutine that has begun, and waits for a future: what is awaited is the rest of it."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, T]:
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
            except StopIteration as end:
                return cast("T", end.value)


async def _rest(coroutine: Coroutine[Any, Any, T], waits_for: Any) -> T:
    return await _Begun(coroutine, waits_for)


async def finish(coroutine: Coroutine[Any, Any, T], *, at_once: bool = False) -> T:
    """Run to the end even if the caller is cancelled, then pass the cancellation on. at_once: run up to the
    first wait now, as `Tasks.start_at_once` does, not in the next turn of the event loop.

    Cancelling a commit says nothing about whether it happened. A bare `shield` would return to the caller
    while the commit is still under way.
    """
    context = contextvars.copy_context()
    if at_once:
        try:
            waits_for = context.run(coroutine.send, None)
        except StopIteration as end:
            return cast("T", end.value)
        coroutine = _rest(coroutine, waits_for)
    task = asyncio.get_running_loop().create_task(coroutine, context=context)
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


R = TypeVar("R")
P = TypeVar("P")

MOST_IN_A_ROW = 25
"""Batches that are written at once before one gets a task: then the event loop turns, and what else there is
to do is done. In memory that is about a millisecond."""


class Combiner(Generic[R]):
    """Hands requests to `write` in batches of at most `limit`, one batch at a time, in order.

    Natural batching, without a timer: while one batch is being written, the next one collects. A single
    request is written at once; under load, batches grow to what arrives during a write. The task that writes
    stays for one turn of the event loop: a caller that was answered often comes back with the next request.

    `pause` is awaited before each batch. `at_once`: `write` seldom waits, so that a batch is written without
    a task as far as that goes. See `Tasks.start_at_once`. `may_begin`: whether a full batch may be begun in
    the task of a caller. Many callers in one turn of the event loop then do not delay it until the next turn.

    `on_cancel` is called if the task that writes was cancelled: what it had to write stays unanswered.

    `write` answers its requests itself and does not raise on their behalf. If it does raise, the error is
    reported and the next batch is written all the same.
    """

    __slots__ = (
        "_at_once",
        "_first",
        "_has_begun",
        "_in_a_row",
        "_is_beginning",
        "_limit",
        "_may_begin",
        "_name",
        "_on_cancel",
        "_pause",
        "_tasks",
        "_write",
        "_writer",
        "waiting",
    )

    def __init__(
        self,
        write: Callable[[list[R]], Awaitable[None]],
        tasks: Tasks,
        *,
        name: str,
        limit: int = 500,
        pause: Callable[[], Awaitable[None]] | None = None,
        at_once: bool = False,
        may_begin: Callable[[], bool] | None = None,
        on_cancel: Callable[[], None] | None = None,
    ) -> None:
        self._write = write
        self._on_cancel = on_cancel
        self._pause = pause
        self._tasks = tasks
        self._name = name
        self._limit = limit
        self.waiting: deque[R] = deque()
        """The requests that are not yet part of a batch."""
        self._writer: asyncio.Task[None] | None = None
        self._at_once = at_once
        self._in_a_row = 0
        """How many batches were begun without a task since the last one that was not."""
        self._is_beginning = False
        self._may_begin = may_begin
        self._has_begun = False
        """Whether the task that writes has had a turn, or has been given its first batch."""
        self._first: asyncio.Task[None] | None = None
        """Writes the batch that was begun before the task that writes has had a turn."""

    def add(self, request: R) -> None:
        self.waiting.append(request)
        # A task that was cancelled before its first step could not reset `_writer`.
        if self._is_beginning or not (self._writer is None or self._writer.done()):
            if len(self.waiting) == self._limit and not self._has_begun and self._first is None:
                self._begin_first()
            return
        self._has_begun = False
        if not self._at_once or self._in_a_row == MOST_IN_A_ROW:
            self._in_a_row = 0
            self._writer = self._tasks.start(self._run(), self._name)
            if self._on_cancel is not None:
                self._writer.add_done_callback(self._tell_cancelled)
            return
        self._in_a_row += 1
        self._is_beginning = True
        try:
            self._writer = self._tasks.start_at_once(self._run(), self._name)
        finally:
            self._is_beginning = False

    def _tell_cancelled(self, writer: asyncio.Task[None]) -> None:
        if writer.cancelled() and self._on_cancel is not None:
            self._on_cancel()

    def _begin_first(self) -> None:
        if self._may_begin is not None and self._may_begin():
            self._has_begun = True
            self._first = self._tasks.start_at_once(self._write_batch(self.next_batch()), self._name)

    @property
    def busy(self) -> bool:
        return self._writer is not None and not self._writer.done()

    async def flush(self) -> None:
        """Return when nothing is left to write. Under load that includes what is added meanwhile."""
        while self._writer is not None and not self._writer.done():
            await asyncio.wait({self._writer})

    async def _run(self) -> None:
        self._has_begun = True
        try:
            if self._first is not None:
                await asyncio.wait({self._first})
                self._first = None
            while self.waiting:
                if self._pause is not None:
                    await self._pause()
                await self._write_batch(self.next_batch())
                if not self._at_once:
                    await asyncio.sleep(0)
        finally:
            self._writer = None

    async def _write_batch(self, batch: list[R]) -> None:
        try:
            await self._write(batch)
        except Exception as error:  # noqa: BLE001  later requests must not wait for ever
            self._tasks.report(error, self._name)

    def next_batch(self) -> list[R]:
        """Remove the next batch from `waiting`."""
        if len(self.waiting) <= self._limit:
            batch = list(self.waiting)
            self.waiting.clear()
            return batch
        return [self.waiting.popleft() for _ in range(self._limit)]


class PlacedCombiner(Generic[R]):
    """A `Combiner` for each of several stores, so that one that does not answer holds up only its own
    requests. `place`: the number of the store that a request is for, or None."""

    def __init__(self, make: Callable[[], Combiner[R]], place: Callable[[R], int | None]) -> None:
        self._make = make
        self._place = place
        self._combiners: dict[int | None, Combiner[R]] = {}

    def add(self, request: R) -> None:
        place = self._place(request)
        found = self._combiners.get(place)
        if found is None:
            found = self._combiners[place] = self._make()
        found.add(request)

    @property
    def waiting(self) -> Sized:
        """The requests that are not yet part of a batch."""
        return self

    def __len__(self) -> int:
        return sum([len(each.waiting) for each in self._combiners.values()])

    @property
    def busy(self) -> bool:
        return any(each.busy for each in self._combiners.values())

    async def flush(self) -> None:
        """Return when nothing is left to write."""
        while self.busy:
            for each in [*self._combiners.values()]:
                await each.flush()


AnyCombiner: TypeAlias = Combiner[R] | PlacedCombiner[R]


def combined(
    make: Callable[[], Combiner[R]], several: P | None, place: Callable[[P, R], int | None]
) -> AnyCombiner[R]:
    """A combiner, or one for each store if there are several. place: the store of a request."""
    return make() if several is None else PlacedCombiner(make, functools.partial(place, several))
