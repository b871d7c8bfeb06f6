"""StartingDoer: tasks that start together share one asyncio task, the starter.

The starter runs them one after the other, as long as each ends without waiting for anything. The first one
that waits keeps the starter, and the tasks behind it get an asyncio task each. For handlers that never wait,
a task each would be a quarter of the engine's time.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from contextvars import copy_context

from treadle.item import Ref

from .base import BaseDoer
from .doer import Task

MANY = 50
LOOP_CYCLES = 3
"""Before `MANY` or more tasks start, the event loop turns this many times: by then the next claim is on its
way, and the store works while the tasks run. (A drain of no-ops on PostgreSQL is quicker by a tenth.)"""


class StartingDoer(BaseDoer):
    """A subclass keeps the tasks that wait, and says which is next."""

    def __init__(self) -> None:
        super().__init__()
        self._starter: asyncio.Task[None] | None = None

    @abstractmethod
    def _next(self) -> tuple[Task, Ref] | None:
        """Remove the task that starts next, with its lane. None: no task waits, or there is no room."""

    @abstractmethod
    def _waiting_count(self) -> int: ...

    def _ended(self, lane: Ref, took: float) -> None:
        """A task has ended. took: seconds."""

    def _start_soon(self) -> None:
        """Start what waits, when the loop goes on."""
        if self._starter is None or self._starter.done():
            self._starter = self._spawn(self._start())
            self._running.add(self._starter)

    async def _start(self) -> None:
        starter = self._starter
        assert starter is not None
        loop = starter.get_loop()
        clock = loop.time
        if self._waiting_count() >= MANY:
            for _ in range(LOOP_CYCLES):
                await asyncio.sleep(0)
        # Called when the loop goes on: after all of them have ended, or as soon as one of them waits.
        spread = loop.call_soon(self._spread)
        now, context = clock(), self._context
        try:
            # The last task must leave no cancellation and no context variable for the next one to find.
            while self._starter is starter and not starter.cancelling() and copy_context() == context:
                found = self._next()
                if found is None:
                    break
                task, lane = found
                began = now
                try:
                    await task()
                except Exception as error:  # noqa: BLE001  reported, never lost
                    self._report(error)
                finally:
                    now = clock()
                    self._ended(lane, now - began)
        finally:
            self._running.discard(starter)
            if self._starter is starter:
                spread.cancel()
                self._spread()

    def _spread(self) -> None:
        """Give each task that may start an asyncio task of its own."""
        self._starter = None
        while (found := self._next()) is not None:
            self._running.add(self._spawn(self._run_alone(*found)))

    async def _run_alone(self, task: Task, lane: Ref) -> None:
        # Discarded in here and not in a done callback: that would take one more turn of the loop per task.
        loop = self._loop or asyncio.get_running_loop()
        began = loop.time()
        try:
            await task()
        except Exception as error:  # noqa: BLE001  reported, never lost
            self._report(error)
        finally:
            self._running.discard(asyncio.current_task(loop))
            self._ended(lane, loop.time() - began)
