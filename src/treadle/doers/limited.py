"""LimitedDoer: tasks wait until the store gives them permits. `rate_limited` and `concurrency` share it.

    submit -> PermitQueue -> round: return permits, ask for permits, start the permitted tasks -> inner doer
                        ^                                            |
                        '-- a task came, a task ended, the timer ----'

A round makes one call of `return_permits` and one of `take_permits`, for all tasks that wait. While a round
is under way, tasks collect for the next. Permits of all limits of a task are asked for at once, so that none
is charged for what another denied.

**How much to claim.** A task that waits here is leased: it looks like a running one, and no other worker can
have it. So the room that `available` offers doubles while all tasks get permits, and halves when one is
denied. Once a limit is known to be reached, nothing is claimed for it until shortly before it has permits
again (`avoid`). Denied tasks wait here only if they may start soon; the others are given back to the store.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from math import inf

from treadle.base.clock import Clock
from treadle.errors import InputError, NotStarted
from treadle.item import AvoidedLane, PermitReply

from .base import BaseDoer, KeepDenied, OnDoerError, PermitStore, WorkerDoers, managed
from .bounded import WaitingTask
from .doer import Doer, Task
from .limit_lines import SOON, LimitLine
from .limit_rules import LimitRule, check_rules
from .on_full import ALONE, OnFullDoer
from .permit_queue import PermitBatch, PermitQueue
from .permitted import ERROR_LAST, PermitCalls, PermittedTask, WakeTimer, is_over_inside, without_permits
from .unlimited import unlimited

BURST_FIRST, BURST_LAST = 16, 500
# With more closed lines than this, they do not reopen one by one but this many seconds apart: a claim has to
# step over all others.
MANY_CLOSED, REOPEN_INTERVAL = 100, 0.05


class LimitedDoer(BaseDoer):
    """Asks the store for permits under `rules` before it submits a task to the inner doer."""

    buffers = True

    def __init__(
        self, rules: Sequence[LimitRule], inner: Doer | None = None, *, strict: bool = False
    ) -> None:
        super().__init__()
        if isinstance(inner, OnFullDoer):
            raise InputError.of("inner", inner, f"has on_full={inner.on_full!r}, {ALONE}")
        if isinstance(inner, LimitedDoer):
            # One doer with all the limits: of two in a row, the first would be charged while the second
            # denies.
            strict = strict or inner.strict
            rules, inner = (*rules, *inner.rules), inner.inner
        self.strict: bool = strict
        """The lanes of its types are strict: the store hands out one item of each, so no permit is needed."""
        self.rules: tuple[LimitRule, ...] = check_rules(rules)
        self.inner: BaseDoer = unlimited() if inner is None else managed(inner)
        self.limit = self.inner.limit
        self._calls: PermitCalls | None = None
        self._queue = PermitQueue(self.rules, "app")
        self._seq = count()
        self._burst = BURST_FIRST
        self._shared_until = -inf
        """Until when a limit that all lines share is reached, if they have limits of their own too."""
        self._rounds: asyncio.Task[None] | None = None
        self._timer = WakeTimer(self._start_rounds)
        self._changed = asyncio.Event()
        """Tasks were started or forgotten, or the rounds have ended."""

    def of_worker(self, doers: WorkerDoers) -> BaseDoer:
        inner = doers.of(self.inner)
        return LimitedDoer(self.rules, inner) if self.rules else inner

    # -- what the engine calls -------------------------------------------------------------------------

    def available(self) -> int:
        lines, waiting = self._queue.lines, self._queue.waiting
        if self._shared_until > -inf and self._calls is not None:
            if self._calls.clock.monotonic() < self._shared_until:
                return 0
            self._shared_until = -inf
        room = min(self.inner.available(), self._burst, lines.room()) - (waiting - lines.closed_tasks)
        return max(0, int(room))

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
        if self._calls is None:
            raise NotStarted("a doer with fleet-wide limits")
        line = self._queue.push(WaitingTask((-priority, queued_at, next(self._seq)), task, (tenant, lane)))
        self._give_back((line,))
        self._start_rounds()

    async def idle(self) -> None:
        await self.inner.idle()
        while self._queue.waiting or self._rounds is not None:
            self._changed.clear()
            await self._changed.wait()
            await self.inner.idle()

    def cancel_pending(self) -> list[Task]:
        tasks = [waiting.task for waiting in self._queue.clear()]
        tasks += map(without_permits, self.inner.cancel_pending())
        self._changed.set()
        self._start_rounds()
        return tasks

    def remove(self, is_over: Callable[[Task], bool]) -> None:
        self._queue.remove(is_over)
        self.inner.remove(lambda task: is_over_inside(task, is_over))
        self._changed.set()
        self._room_freed()

    def keep_denied(self, which: KeepDenied) -> None:
        self._queue.keep_denied = which
        if which == "all":
            self._queue.lines.reopen_empty()
            self._shared_until = -inf

    def avoid(self) -> frozenset[AvoidedLane]:
        lines = self._queue.lines
        return lines.full_lanes() if lines.keyed else super().avoid()

    def bind(self, permits: PermitStore, clock: Clock, worker: str, name: str = "app") -> None:
        super().bind(permits, clock, worker, name)
        self._calls = PermitCalls(permits, clock, worker, lambda error: self._report(error, "permits"))
        self._queue = PermitQueue(self.rules, name)
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

    # -- rounds ----------------------------------------------------------------------------------------

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

    async def _run_round(self, calls: PermitCalls) -> bool:
        """Whether it did something, so that another round may be needed."""
        queue, clock = self._queue, calls.clock
        returns = queue.returns.take_out(queue.lines.held) if calls.allowed else []
        returned = bool(returns) and await calls.return_permits(returns)
        if not returned:
            queue.returns.put_back(returns)
        if not calls.allowed:
            return False
        if queue.lines.reopen_due(clock.monotonic()) and self.available():
            self._call_on_free()
        batches = queue.choose(self.inner.available())
        if not batches:
            return returned
        try:
            replies = await calls.take_permits(queue.requests(batches))
        except asyncio.CancelledError:
            queue.put_back(batches, clock.monotonic())
            raise
        if replies is None:
            queue.lost(batches, calls.retry_at)
        else:
            self._apply(batches, replies, clock.monotonic())
        return True

    def _apply(self, batches: list[PermitBatch], replies: Sequence[PermitReply], now: float) -> None:
        asked = sum(len(batch.tasks) for batch in batches)
        queue = self._queue
        if len(replies) > len(batches) and replies[-1].retry_after > SOON and queue.keep_denied != "all":
            self._shared_until = now + replies[-1].retry_after
        permitted = queue.apply_replies(batches, replies[: len(batches)], now)
        if len(permitted) < asked:
            self._burst = max(1, self._burst // 2)
        else:
            self._burst = min(BURST_LAST, self._burst * 2)
        for waiting, line in permitted:
            self._start(waiting, line, now)
        self._give_back([batch.line for batch in batches])
        if permitted and self.available():
            self._call_on_free()

    def _give_back(self, lines: Iterable[LimitLine]) -> None:
        """Give back the tasks of closed lines that are not to wait here."""
        calls = self._calls
        if calls is None or self._on_give_back is None:
            return
        now = calls.clock.monotonic()
        tasks = [waiting.task for line in lines for waiting in self._queue.surplus(line, now)]
        if tasks:
            self._on_give_back(tasks)

    def _start(self, waiting: WaitingTask, line: LimitLine, now: float) -> None:
        task, (tenant, lane) = waiting.task, waiting.lane
        if line.concurrency:
            task = PermittedTask(task, partial(self._queue.ended, line), self._room_freed)
        priority, queued_at = -int(waiting.order[0]), waiting.order[1]
        try:
            self.inner.submit(task, lane=lane, priority=priority, queued_at=queued_at, tenant=tenant)
        except Exception as error:  # noqa: BLE001  a user's doer
            self._report(error, "doer")
            self._queue.refused(waiting, line, now + ERROR_LAST)

    def _room_freed(self) -> None:
        """A permitted task has ended, or the inner doer has room again."""
        if self._queue.waiting or self._queue.returns:
            self._start_rounds()
        if self.available():
            self._call_on_free()

    # -- waiting ---------------------------------------------------------------------------------------

    def _set_timer(self, calls: PermitCalls) -> None:
        """Wake when the first line reopens, or when the store may be called again: one timer for all."""
        reopening = self._queue.lines.next_reopening()
        times = [] if reopening is None else [reopening]
        if self._queue.returns and not calls.allowed:
            times.append(calls.retry_at)
        if not times:
            return
        at = max(min(times), calls.retry_at)
        if len(self._queue.lines.closed) > MANY_CLOSED:
            at = max(at, calls.clock.monotonic() + REOPEN_INTERVAL)
        self._timer.set(at, calls.clock)


def has_strict_lanes(doer: object) -> bool:
    """Whether the types of a doer, as a user gave it, have strict lanes."""
    return isinstance(doer, LimitedDoer) and doer.strict
