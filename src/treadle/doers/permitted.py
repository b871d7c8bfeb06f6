"""PermitDoer: what doers with fleet-wide limits share. Tasks wait until the store gives them permits."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from asyncio import get_running_loop
from collections.abc import Callable, Sequence
from math import inf

from treadle.base.timing import Clock
from treadle.item import PermitReply, PermitRequest

from .base import BaseDoer, Doer, OnDoerError, PermitStore, Task, managed
from .bounded import unlimited

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


class PermitDoer(BaseDoer):
    """Asks the store for permits in rounds, then submits the permitted tasks to the inner doer.

        submit -> waits -> round: return permits, ask for permits, start the permitted tasks -> inner doer
                             ^                                            |
                             '-- a task came, a task ended, the timer ----'

    A round makes one call of `return_permits` and one of `take_permits`, for all tasks that wait. While a
    round is under way, tasks collect for the next. A subclass keeps the tasks that wait.
    """

    buffers = True

    def __init__(self, inner: Doer | None) -> None:
        super().__init__()
        self.inner: BaseDoer = unlimited() if inner is None else managed(inner)
        self.limit = self.inner.limit
        self._calls: PermitCalls | None = None
        self._rounds: asyncio.Task[None] | None = None
        self._timer = WakeTimer(self._start_rounds)
        self._changed = asyncio.Event()
        """Tasks were started or forgotten, or the rounds have ended."""

    @abstractmethod
    def _has_waiting(self) -> bool:
        """Whether tasks wait for permits."""

    @abstractmethod
    def _clear_waiting(self) -> list[Task]:
        """Forget the tasks that wait for permits, and return them."""

    @abstractmethod
    def _remove_waiting(self, is_over: Callable[[Task], bool]) -> None:
        """Forget the tasks that wait for permits and are over."""

    @abstractmethod
    async def _run_round(self, calls: PermitCalls) -> bool:
        """Whether it did something, so that another round may be needed."""

    @abstractmethod
    def _set_timer(self, calls: PermitCalls) -> None:
        """Set `_timer` for the next round, if one is due later."""

    @abstractmethod
    def _room_freed(self) -> None:
        """A permitted task has ended, or the inner doer has room again."""

    async def idle(self) -> None:
        await self.inner.idle()
        while self._has_waiting() or self._rounds is not None:
            self._changed.clear()
            await self._changed.wait()
            await self.inner.idle()

    def cancel_pending(self) -> list[Task]:
        tasks = self._clear_waiting()
        tasks += map(without_permits, self.inner.cancel_pending())
        self._changed.set()
        self._start_rounds()
        return tasks

    def remove(self, is_over: Callable[[Task], bool]) -> None:
        self._remove_waiting(is_over)
        self.inner.remove(lambda task: is_over_inside(task, is_over))
        self._changed.set()
        self._room_freed()

    def bind(self, permits: PermitStore, clock: Clock, worker: str, name: str = "app") -> None:
        super().bind(permits, clock, worker, name)
        self._calls = PermitCalls(permits, clock, worker, lambda error: self._report(error, "permits"))
        self.inner.bind(permits, clock, worker, name)
        self.inner.on_free(self._room_freed)

    async def close(self) -> None:
        """Permits that were not returned yet are freed by the store, with the worker's lease."""
        self._calls = None
        mine = [task for task in (self._rounds, self._timer.task) if task is not None]
        self._timer.cancel()
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)
        await self.inner.close()
        await super().close()

    def on_error(self, callback: OnDoerError) -> None:
        super().on_error(callback)
        self.inner.on_error(callback)

    def _start_rounds(self) -> None:
        if self._calls is not None and self._rounds is None:
            self._rounds = get_running_loop().create_task(self._run_rounds(self._calls))

    async def _run_rounds(self, calls: PermitCalls) -> None:
        try:
            while await self._run_round(calls):
                pass
            self._set_timer(calls)
        finally:
            self._rounds = None
            self._changed.set()
