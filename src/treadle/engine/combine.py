"""Natural batching: while one batch is being written, the next collects.

No timer: alone, a request is written at once; under load, batches grow to what arrives during a write.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from .tasks import Tasks

R = TypeVar("R")


class Combiner(Generic[R]):
    """Hands requests to `write` in batches of at most `limit`, one batch at a time, in order.

    `write` answers its requests itself, and does not raise for their sake. If it does, that is reported, and
    the next batch is written all the same.
    """

    __slots__ = ("_limit", "_name", "_tasks", "_waiting", "_write", "_writer")

    def __init__(
        self, write: Callable[[list[R]], Awaitable[None]], tasks: Tasks, *, name: str, limit: int = 500
    ) -> None:
        self._write = write
        self._tasks = tasks
        self._name = name
        self._limit = limit
        self._waiting: deque[R] = deque()
        self._writer: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: R) -> None:
        self._waiting.append(request)
        if self._writer is None:
            self._writer = self._tasks.start(self._run(), self._name)

    async def flush(self) -> None:
        """Return when all that was added so far has been written."""
        while self._writer is not None:
            await asyncio.wait({self._writer})

    async def _run(self) -> None:
        try:
            while self._waiting:
                try:
                    await self._write(self._take())
                except Exception as error:  # noqa: BLE001  whoever comes after must not wait for ever
                    self._tasks.report(error, self._name)
        finally:
            self._writer = None

    def _take(self) -> list[R]:
        if len(self._waiting) <= self._limit:
            batch = list(self._waiting)
            self._waiting.clear()
            return batch
        return [self._waiting.popleft() for _ in range(self._limit)]
