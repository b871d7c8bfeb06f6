"""LimitedDoer: tasks wait here until the store lets them start. What `rate_limited` and `concurrency` share.

    submit -> PermitQueue -> round: give back slots, ask for permits, start what was granted -> inner doer
                        ^                                            |
                        '---- a task came, a slot freed, the timer --'

A round is one `give` and one `take`, for everybody who waits; while one is under way the next collects. All
limits of a task are asked for at once, so that none is charged for what another denied.

**How much to claim.** What waits here is leased, and would lose an attempt if the process died. So the room
offered doubles while everything that comes is granted, and halves when something is denied.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Coroutine, Sequence
from itertools import count
from math import inf
from typing import Any

from treadle.clock import Clock
from treadle.errors import LifecycleError, NotStarted
from treadle.item import PermitReply, Ref

from .base import BaseDoer, Doer, OnError, Permits, Task, managed
from .bounded import Entry
from .limit_rules import LimitRule, check_rules
from .permit_queue import GateLine, PermitQueue, Run
from .permit_returns import PermitReturns
from .unlimited import unlimited

BURST_FIRST, BURST_LAST = 16, 500
# The most to hold in shut lines. Their lanes are avoided, so that each of them holds little.
MOST_BLOCKED = 1000
# After an error of the store: the waits double from the first to the last.
ERROR_FIRST, ERROR_LAST = 0.1, 5.0


class LimitedDoer(BaseDoer):
    """Asks the store for permits under `rules` before it hands a task on to the inner doer."""

    def __init__(self, rules: Sequence[LimitRule], inner: Doer | None = None) -> None:
        super().__init__()
        if isinstance(inner, LimitedDoer):
            # One gate with all the limits: two in a row would charge the first while the second denies.
            rules, inner = (*rules, *inner.rules), inner.inner
        self.rules: tuple[LimitRule, ...] = check_rules(rules)
        self.inner: BaseDoer = unlimited() if inner is None else managed(inner)
        self._store: tuple[Permits, Clock, str] | None = None
        self._gate = PermitQueue(self.rules, "app")
        self._seq = count()
        self._burst = BURST_FIRST
        self._error_wait = ERROR_FIRST
        self._returns = PermitReturns()
        self._alone_until = -inf
        self._round: asyncio.Task[None] | None = None
        self._timer: tuple[float, asyncio.Task[None]] | None = None
        self._watchers: list[asyncio.Future[None]] = []

    def of_worker(self, worker: str) -> LimitedDoer:
        """This one if nobody else has it, or another for the same limits: what they share is the store's."""
        taken = self._store is not None and self._store[2] != worker
        return LimitedDoer(self.rules, self.inner) if taken else self

    # -- the protocol ----------------------------------------------------------------------------------

    def available(self) -> int:
        gate = self._gate
        if gate.shut and not gate.keyed:
            return 0
        room = min(self.inner.available(), self._burst, MOST_BLOCKED - gate.blocked)
        return max(0, room - (gate.waiting - gate.blocked))

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
        if self._store is None:
            raise NotStarted("a doer with fleet-wide limits")
        self._gate.push(Entry((-priority, queued_at, next(self._seq)), task, (tenant, lane)))
        self._kick()

    async def idle(self) -> None:
        await self.inner.idle()
        while self._gate.waiting or self._round is not None:
            watcher: asyncio.Future[None] = get_running_loop().create_future()
            self._watchers.append(watcher)
            await watcher
            await self.inner.idle()

    def cancel_pending(self) -> list[Task]:
        tasks = [entry.task for entry in self._gate.clear()]
        for task in self.inner.cancel_pending():
            if isinstance(task, _Permitted):
                self._slot_freed(task.gate, task.line)
                task = task.task
            tasks.append(task)
        self._tell_watchers()
        self._kick()
        return tasks

    def avoid(self) -> frozenset[Ref]:
        return self._gate.shut_lanes()

    def bind(self, permits: Permits, clock: Clock, worker: str, name: str = "app") -> None:
        if self._store is not None and self._store[0] is permits and self._store[2] == worker:
            return
        if self._store is not None:
            raise LifecycleError(
                f"this doer already serves worker {self._store[2]!r}: make one for each worker"
            )
        self._store = (permits, clock, worker)
        self._gate = PermitQueue(self.rules, name)
        self._returns, self._alone_until = PermitReturns(), -inf
        self.inner.bind(permits, clock, worker, name)
        self.inner.on_free(self._inner_freed)

    async def close(self) -> None:
        """Slots not given back yet are the store's to free, with the worker's lease."""
        self._store = None
        mine = [task for task in (self._round, self._timer and self._timer[1]) if task is not None]
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)
        self._timer = None
        await self.inner.close()
        await super().close()

    def on_error(self, callback: OnError) -> None:
        super().on_error(callback)
        self.inner.on_error(callback)

    # -- rounds ----------------------------------------------------------------------------------------

    def _kick(self) -> None:
        if self._store is not None and self._round is None:
            self._round = get_running_loop().create_task(self._rounds(*self._store))

    async def _rounds(self, permits: Permits, clock: Clock, worker: str) -> None:
        try:
            while await self._one_round(permits, clock, worker):
                pass
            self._set_timer(clock)
        finally:
            self._round = None
            self._tell_watchers()

    async def _one_round(self, permits: Permits, clock: Clock, worker: str) -> bool:
        """Whether it did something, and so may have to be repeated."""
        gave = self._may_call(clock) and await self._give_back(permits, clock, worker)
        if not self._may_call(clock):
            return False
        self._gate.reopen(clock.monotonic())
        runs = self._gate.choose(self.inner.available())
        if not runs:
            return gave
        grants = await self._ask(runs, permits, clock, worker)
        if grants is not None:
            self._apply(runs, grants, clock.monotonic())
        return True

    def _may_call(self, clock: Clock) -> bool:
        return clock.monotonic() >= self._alone_until

    async def _give_back(self, permits: Permits, clock: Clock, worker: str) -> bool:
        requests = self._returns.take_out(self._gate.held)
        if not requests:
            return False
        try:
            await permits.return_permits(requests, worker=worker)
        except Exception as error:  # noqa: BLE001  whatever a driver raises
            self._returns.put_back(requests)
            self._leave_alone(error, clock)
            return False
        self._error_wait = ERROR_FIRST
        return True

    async def _ask(
        self, runs: list[Run], permits: Permits, clock: Clock, worker: str
    ) -> Sequence[PermitReply] | None:
        try:
            grants = await permits.take_permits([run.take() for run in runs], worker=worker)
        except asyncio.CancelledError:
            self._gate.put_back(runs, clock.monotonic())
            raise
        except Exception as error:  # noqa: BLE001  whatever a driver raises
            for run in runs:
                self._returns.doubt(run.line.slots, len(run.entries))
            self._gate.put_back(runs, self._leave_alone(error, clock))
            return None
        self._error_wait = ERROR_FIRST
        return grants

    def _leave_alone(self, error: Exception, clock: Clock) -> float:
        """Until when to leave the store alone."""
        self._report(error)
        self._alone_until = until = clock.monotonic() + self._error_wait
        self._error_wait = min(self._error_wait * 2, ERROR_LAST)
        return until

    def _apply(self, runs: list[Run], grants: Sequence[PermitReply], now: float) -> None:
        for run, grant in zip(runs, grants, strict=True):
            if run.cancelled:
                self._returns.add(run.line.slots, grant.count)
        asked = sum(len(run.entries) for run in runs)
        granted = self._gate.settle(runs, grants, now)
        if len(granted) < asked:
            self._burst = max(1, self._burst // 2)
        else:
            self._burst = min(BURST_LAST, self._burst * 2)
        for entry, line in granted:
            self._start(entry, line, now)
        if granted and self.available():
            self._tell_free()

    # -- tasks -----------------------------------------------------------------------------------------

    def _start(self, entry: Entry, line: GateLine, now: float) -> None:
        tenant, lane = entry.lane
        task = _Permitted(self, self._gate, line, entry.task) if line.slots else entry.task
        priority, queued_at = -int(entry.order[0]), entry.order[1]
        try:
            self.inner.submit(task, lane=lane, priority=priority, queued_at=queued_at, tenant=tenant)
        except Exception as error:  # noqa: BLE001  a doer of the user's own
            self._report(error)
            self._gate.refused(entry, line, now + ERROR_LAST)
            self._slot_freed(self._gate, line)

    async def run_permitted(self, permitted: _Permitted) -> None:
        try:
            await permitted.task()
        finally:
            self._slot_freed(permitted.gate, permitted.line)
            self._kick()
            if self.available():
                self._tell_free()

    def _slot_freed(self, gate: PermitQueue, line: GateLine) -> None:
        gate.ended(line)
        if gate is self._gate:
            # Those of an earlier binding went back with that worker.
            self._returns.add(line.slots)

    def _inner_freed(self) -> None:
        if self._gate.waiting:
            self._kick()
        if self.available():
            self._tell_free()

    # -- waiting ---------------------------------------------------------------------------------------

    def _set_timer(self, clock: Clock) -> None:
        """Wake when the first line may be asked for again: one timer for all."""
        reopening = self._gate.next_reopening()
        times = [] if reopening is None else [reopening]
        if self._returns and not self._may_call(clock):
            times.append(self._alone_until)
        if not times:
            return
        at = max(min(times), self._alone_until)
        if self._timer is not None:
            if self._timer[0] <= at:
                return
            self._timer[1].cancel()
        self._timer = (at, get_running_loop().create_task(self._wake_at(at, clock)))

    async def _wake_at(self, at: float, clock: Clock) -> None:
        await clock.sleep(at - clock.monotonic())
        self._timer = None
        if self._gate.reopen(clock.monotonic()) and self.available():
            self._tell_free()
        self._kick()

    def _tell_watchers(self) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    def __repr__(self) -> str:
        return f"<LimitedDoer of {len(self.rules)} limits, {self._gate.waiting} waiting>"


class _Permitted:
    """A task that holds slots until it ends."""

    __slots__ = ("_owner", "gate", "line", "task")

    def __init__(self, owner: LimitedDoer, gate: PermitQueue, line: GateLine, task: Task) -> None:
        self._owner = owner
        self.gate = gate
        self.line = line
        self.task = task

    def __call__(self) -> Coroutine[Any, Any, None]:
        return self._owner.run_permitted(self)
