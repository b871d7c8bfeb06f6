"""Natural batching of writes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from .tasks import Tasks

R = TypeVar("R")


class Combiner(Generic[R]):
    """Hands requests to `write` in batches of at most `limit`, one batch at a time, in order.

    Natural batching, without a timer: while one batch is being written, the next one collects. A single
    request is written at once; under load, batches grow to what arrives during a write.

    `pause` is awaited before each batch.

    `write` answers its requests itself and does not raise on their behalf. If it does raise, the error is
    reported and the next batch is written all the same.
    """

    __slots__ = ("_limit", "_name", "_pause", "_tasks", "_write", "_writer", "waiting")

    def __init__(
        self,
        write: Callable[[list[R]], Awaitable[None]],
        tasks: Tasks,
        *,
        name: str,
        limit: int = 500,
        pause: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._write = write
        self._pause = pause
        self._tasks = tasks
        self._name = name
        self._limit = limit
        self.waiting: deque[R] = deque()
        """The requests that are not yet part of a batch."""
        self._writer: asyncio.Task[None] | None = None

    def add(self, request: R) -> None:
        self.waiting.append(request)
        # A task that was cancelled before its first step could not reset `_writer`.
        if self._writer is None or self._writer.done():
            self._writer = self._tasks.start(self._run(), self._name)

    @property
    def busy(self) -> bool:
        return self._writer is not None and not self._writer.done()

    async def flush(self) -> None:
        """Return when nothing is left to write. Under load that includes what is added meanwhile."""
        while self._writer is not None and not self._writer.done():
            await asyncio.wait({self._writer})

    async def _run(self) -> None:
        try:
            while self.waiting:
                if self._pause is not None:
                    await self._pause()
                try:
                    await self._write(self.next_batch())
                except Exception as error:  # noqa: BLE001  later requests must not wait for ever
                    self._tasks.report(error, self._name)
        finally:
            self._writer = None

    def next_batch(self) -> list[R]:
        """Remove the next batch from `waiting`."""
        if len(self.waiting) <= self._limit:
            batch = list(self.waiting)
            self.waiting.clear()
            return batch
        return [self.waiting.popleft() for _ in range(self._limit)]
