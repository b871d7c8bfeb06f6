"""What doers with fleet-wide limits share: calls for permits, tasks that hold permits, and a timer."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Callable, Sequence
from math import inf

from treadle.base.clock import Clock
from treadle.item import PermitReply, PermitRequest

from .base import PermitStore
from .doer import Task

# After an error of the store: the waits double from the first to the last.
ERROR_FIRST, ERROR_LAST = 0.1, 5.0


class WakeTimer:
    """Calls `wake` at the earliest of the times that were set."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._at = inf
        self.task: asyncio.Task[None] | None = None

    def set(self, at: float, clock: Clock) -> None:
        if at < self._at:
            self.cancel()
            self._at = at
            self.task = get_running_loop().create_task(self._sleep(at, clock))

    def cancel(self) -> None:
        self._at = inf
        if self.task is not None:
            self.task.cancel()
            self.task = None

    async def _sleep(self, at: float, clock: Clock) -> None:
        await clock.sleep(at - clock.monotonic())
        self._at, self.task = inf, None
        self._wake()


class PermittedTask:
    """A task that holds permits of concurrency limits until it ends."""

    __slots__ = ("_ended", "return_permits", "task")

    def __init__(self, task: Task, return_permits: Callable[[], None], ended: Callable[[], None]) -> None:
        self.task = task
        self.return_permits = return_permits
        """Returns its permits to its doer. Several doers with limits may have one inner doer."""
        self._ended = ended

    async def __call__(self) -> None:
        try:
            await self.task()
        finally:
            self.return_permits()
            self._ended()


def without_permits(task: Task) -> Task:
    """A task that a doer does not run, as it was submitted. The permits that it may have are returned."""
    if not isinstance(task, PermittedTask):
        return task
    task.return_permits()
    return task.task


def is_over_inside(task: Task, is_over: Callable[[Task], bool]) -> bool:
    """Whether a task is over that waits in a doer, which may be the inner one of others. Then its permits are
    returned."""
    over = is_over(task.task if isinstance(task, PermittedTask) else task)
    if over:
        without_permits(task)
    return over


class PermitCalls:
    """The calls of one worker to the store. After an error, no call is allowed for a while."""

    def __init__(
        self, store: PermitStore, clock: Clock, worker: str, report: Callable[[Exception], None]
    ) -> None:
        self.store = store
        self.clock = clock
        self.worker = worker
        self._report = report
        self.retry_at = -inf
        self._wait = ERROR_FIRST

    @property
    def allowed(self) -> bool:
        return self.clock.monotonic() >= self.retry_at

    async def return_permits(self, requests: Sequence[PermitRequest]) -> bool:
        """Whether the store has answered."""
        try:
            await self.store.return_permits(requests, worker=self.worker)
        except Exception as error:  # noqa: BLE001  any error of a driver
            self._back_off(error)
            return False
        self._wait = ERROR_FIRST
        return True

    async def take_permits(self, requests: Sequence[PermitRequest]) -> Sequence[PermitReply] | None:
        """The replies; None if the store failed."""
        try:
            replies = await self.store.take_permits(requests, worker=self.worker)
        except Exception as error:  # noqa: BLE001  any error of a driver
            self._back_off(error)
            return None
        self._wait = ERROR_FIRST
        return replies

    def _back_off(self, error: Exception) -> None:
        self._report(error)
        self.retry_at = self.clock.monotonic() + self._wait
        self._wait = min(self._wait * 2, ERROR_LAST)
