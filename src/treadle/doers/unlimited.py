"""Everything starts at once."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import copy_context

from .base import BaseDoer, Task, whole

MANY = 50
TURNS = 3
"""Before so many are begun, the loop turns so often: by then the next claim is on its way, and the store
works while they run. (A drain of no-ops on PostgreSQL is quicker by a tenth.)"""


class UnlimitedDoer(BaseDoer):
    """No bound on what runs. `batch` only bounds a single claim, so that workers share a burst.

    What is handed over together is begun by one asyncio task, the starter, one after the other for as long
    as each ends without having waited for anything. The first that waits keeps the starter for itself, and
    those behind it get a task each. For handlers that never wait, a task each would be a quarter of all the
    time that the engine takes for them (31 us instead of 40 for a no-op, on memory).
    """

    def __init__(self, batch: int) -> None:
        super().__init__()
        self._batch = whole(batch, "batch")
        self._waiting: deque[Task] = deque()
        self._starter: asyncio.Task[None] | None = None

    def available(self) -> int:
        return self._batch

    def submit(
        self,
        task: Task,
        *,
        lane: str = "",
        priority: int = 0,
        queued_at: float = 0.0,
        tenant: str = "",
        place: float | None = None,
    ) -> None:
        self._waiting.append(task)
        if self._starter is None or self._starter.done():
            self._starter = self._spawn(self._start())
            self._running.add(self._starter)

    def cancel_pending(self) -> list[Task]:
        tasks = list(self._waiting)
        self._waiting.clear()
        return tasks

    async def _start(self) -> None:
        starter, waiting = self._starter, self._waiting
        assert starter is not None
        if len(waiting) >= MANY:
            for _ in range(TURNS):
                await asyncio.sleep(0)
        # It comes when the loop goes on: after all of them, or as soon as one of them waits.
        spread = starter.get_loop().call_soon(self._spread)
        try:
            while waiting and self._starter is starter and self._is_clean(starter):
                try:
                    await waiting.popleft()()
                except Exception as error:  # noqa: BLE001  reported, never lost
                    self._report(error)
        finally:
            self._running.discard(starter)
            if self._starter is starter:
                spread.cancel()
                self._spread()

    def _is_clean(self, starter: asyncio.Task[None]) -> bool:
        """Whether the last one has left nothing behind in the task that the next one would find."""
        return not starter.cancelling() and copy_context() == self._context

    def _spread(self) -> None:
        """A task each, for those that have not begun."""
        self._starter = None
        while self._waiting:
            self._running.add(self._spawn(self._run(self._waiting.popleft())))

    def __repr__(self) -> str:
        return f"unlimited(batch={self._batch})"


def unlimited(batch: int = 500) -> UnlimitedDoer:
    """Start everything at once; claim up to `batch` at a time."""
    return UnlimitedDoer(batch)
