"""OnFullDoer: an item that is to start while its limit is reached is dropped, or replaces what runs.

Each permit belongs to a lease, so that the store can say which items hold the permits. A request can be
repeated: a lease never holds two.

    submit -> ask for a permit -> given: start it in the inner doer; when it ends, return the permit
                               -> denied, `drop`: the item ends
                               -> denied, `replace`: cancel the oldest of what runs, and ask again

**Which one is newer.** Items are ordered by the time at which they are due, then by their submission. All
workers agree on that, so the newest items win in whatever order the workers ask. What was cancelled keeps its
permit until its handler has ended: never do more than `limit` handlers run at once.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import Final, Literal, NamedTuple, TypeAlias

from treadle.clock import Clock
from treadle.errors import InputError, NotStarted
from treadle.item import Lease, Limit, PermitHolder, PermitReply, PermitRequest

from .base import BaseDoer, OnDoerError, PermitStore, WorkerDoers, managed
from .doer import Doer, Task
from .limit_rules import LimitRule
from .permitted import PermitCalls, PermittedTask, WakeTimer, is_over_inside, without_permits
from .unlimited import unlimited

OnFull: TypeAlias = Literal["wait", "drop", "replace"]
"""What becomes of an item that is to start while its limit is reached."""

ALONE: Final = "which cannot be combined with another limit: an item that is denied by one of two must wait"
"""Why other limits are refused."""
# Between two requests for a permit that is to become free: the waits double from the first to the last.
WAIT_FIRST, WAIT_LAST = 0.02, 1.0


class OnFullCalls(NamedTuple):
    """What the doer needs of the engine."""

    lease_of: Callable[[Task], Lease]
    drop: Callable[[Task, str], None]
    """End the item of a task that has not started. The text says why."""
    cancel: Callable[[Sequence[PermitHolder]], Awaitable[None]]
    """Cancel items that run, here or elsewhere."""


class WaitingStart:
    """A task that has no permit yet."""

    __slots__ = ("after", "kept", "lease", "limit", "start", "task", "wait")

    def __init__(self, task: Task, lease: Lease, limit: Limit, start: Callable[[Task], None]) -> None:
        self.task = task
        self.lease = lease
        self.limit = limit
        self.start = start
        """Submits a task to the inner doer."""
        self.after = -inf
        """When to ask, by the monotonic clock."""
        self.wait = WAIT_FIRST
        self.kept = True
        """False: it was given back while it was asked for."""

    @property
    def age(self) -> tuple[float, int]:
        """The larger, the newer."""
        return self.lease.due_at, self.lease.ref

    @property
    def request(self) -> PermitRequest:
        return PermitRequest((self.limit,), 1, self.lease)


class OnFullDoer(BaseDoer):
    """Asks the store for a permit for each task. If there is none, the item does not wait for one."""

    buffers = True

    def __init__(
        self, rule: LimitRule, on_full: Literal["drop", "replace"], inner: Doer | None = None
    ) -> None:
        super().__init__()
        self.rule = rule
        self.on_full: Literal["drop", "replace"] = on_full
        self.inner: BaseDoer = unlimited() if inner is None else managed(inner)
        self.limit = self.inner.limit
        self._calls: PermitCalls | None = None
        self._engine: OnFullCalls | None = None
        self._name = "app"
        self._waiting: list[WaitingStart] = []
        self._asking: list[WaitingStart] = []
        self._returns: dict[int, PermitRequest] = {}
        """By token: the permits to return."""
        self._rounds: asyncio.Task[None] | None = None
        self._timer = WakeTimer(self._start_rounds)
        self._changed = asyncio.Event()
        """Tasks were started or forgotten, or the rounds have ended."""

    def of_worker(self, doers: WorkerDoers) -> OnFullDoer:
        return OnFullDoer(self.rule, self.on_full, doers.of(self.inner))

    # -- what the engine calls -------------------------------------------------------------------------

    def attach(self, engine: OnFullCalls) -> None:
        """Called before the first submit."""
        self._engine = engine

    def available(self) -> int:
        return max(0, self.inner.available() - len(self._waiting) - len(self._asking))

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
        if self._calls is None or self._engine is None:
            raise NotStarted("a doer with fleet-wide limits")

        def start(task: Task) -> None:
            self.inner.submit(
                task, lane=lane, priority=priority, queued_at=queued_at, tenant=tenant, place=place
            )

        limit = self.rule.limit_for(self._name, tenant, lane)
        self._waiting.append(WaitingStart(task, self._engine.lease_of(task), limit, start))
        self._start_rounds()

    async def idle(self) -> None:
        await self.inner.idle()
        while self._waiting or self._rounds is not None:
            self._changed.clear()
            await self._changed.wait()
            await self.inner.idle()

    def cancel_pending(self) -> list[Task]:
        pending = [*self._asking, *self._waiting]
        self._asking, self._waiting = [], []
        for each in pending:
            self._forget(each)
        tasks = [each.task for each in pending]
        tasks += map(without_permits, self.inner.cancel_pending())
        self._changed.set()
        self._start_rounds()
        return tasks

    def remove(self, is_over: Callable[[Task], bool]) -> None:
        for each in [each for each in self._waiting if is_over(each.task)]:
            self._waiting.remove(each)
            self._forget(each)
        self.inner.remove(lambda task: is_over_inside(task, is_over))
        self._changed.set()
        self._permit_freed()

    def bind(self, permits: PermitStore, clock: Clock, worker: str, name: str = "app") -> None:
        super().bind(permits, clock, worker, name)
        self._calls = PermitCalls(permits, clock, worker, lambda error: self._report(error, "permits"))
        self._name = name
        self.inner.bind(permits, clock, worker, name)
        self.inner.on_free(self._permit_freed)

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
            while calls.allowed and await self._run_round(calls):
                pass
            self._set_timer(calls)
        finally:
            self._waiting += self._asking
            self._asking = []
            self._rounds = None
            self._changed.set()

    async def _run_round(self, calls: PermitCalls) -> bool:
        """Whether it did something, so that another round may be needed."""
        returned = await self._return_permits(calls)
        self._asking = self._choose(calls.clock.monotonic())
        if not self._asking or not calls.allowed:
            return returned
        asked = list(self._asking)
        replies = await calls.take_permits([each.request for each in asked])
        self._asking = []
        kept = [each for each in asked if each.kept]
        for each in asked:
            if not each.kept:
                self._return(each.lease, each.limit)
        if replies is None:
            self._waiting += kept  # they are asked for again: a lease never has two permits
            return False
        await self._apply(
            kept, [reply for each, reply in zip(asked, replies, strict=True) if each.kept], calls
        )
        self._changed.set()
        if self.available():
            self._call_on_free()
        return True

    async def _return_permits(self, calls: PermitCalls) -> bool:
        returns, self._returns = self._returns, {}
        if not returns:
            return False
        if await calls.return_permits(list(returns.values())):
            return True
        self._returns = {**returns, **self._returns}
        return False

    def _choose(self, now: float) -> list[WaitingStart]:
        """Take out the tasks to ask permits for, the oldest first, as many as the inner doer has room for."""
        due = sorted([each for each in self._waiting if each.after <= now], key=lambda each: each.age)
        if self.on_full == "replace":
            due = self._drop_replaced(due)
        chosen = due[: max(0, self.inner.available())]
        taken = set(map(id, chosen))
        self._waiting = [each for each in self._waiting if id(each) not in taken]
        return chosen

    def _drop_replaced(self, due: Sequence[WaitingStart]) -> list[WaitingStart]:
        """Of tasks that wait here for the same limit, keep as many as may run: the newest."""
        kept: dict[Limit, list[WaitingStart]] = {}
        for each in reversed(due):
            newest = kept.setdefault(each.limit, [])
            if len(newest) < each.limit.limit:
                newest.append(each)
            else:
                self._waiting.remove(each)
                self._drop(each, replaced=True)
        return sorted((each for newest in kept.values() for each in newest), key=lambda each: each.age)

    async def _apply(
        self, asked: Sequence[WaitingStart], replies: Iterable[PermitReply], calls: PermitCalls
    ) -> None:
        to_cancel: dict[tuple[str, str], PermitHolder] = {}
        now = calls.clock.monotonic()
        for each, reply in zip(asked, replies, strict=True):
            if reply.count:
                self._start(each)
            elif self.on_full == "drop":
                self._drop(each)
            elif (oldest := _oldest_to_replace(each, reply.holders)) is None:
                self._drop(each, replaced=True)
            else:
                to_cancel.update(((holder.tenant, holder.id), holder) for holder in oldest)
                each.after, each.wait = now + each.wait, min(each.wait * 2, WAIT_LAST)
                self._waiting.append(each)
        if to_cancel and self._engine is not None:
            try:
                await self._engine.cancel(list(to_cancel.values()))
            except Exception as error:  # noqa: BLE001  any error of a driver: they are found again
                self._report(error, "permits")

    def _start(self, each: WaitingStart) -> None:
        give_back = partial(self._return, each.lease, each.limit)
        try:
            each.start(PermittedTask(each.task, give_back, self._permit_freed))
        except Exception as error:  # noqa: BLE001  a user's doer
            self._report(error, "doer")
            give_back()
            if self._on_give_back is not None:
                self._on_give_back([each.task])

    def _drop(self, each: WaitingStart, *, replaced: bool = False) -> None:
        if self._engine is None:
            return
        where = {"lane": " in its lane", "tenant": " for its tenant", None: ""}[self.rule.per]
        limit = f"the limit of {self.rule.limit} at once{where}"
        if replaced:
            text = f"{limit} was reached by newer items, which replace it (on_full='replace')"
        else:
            text = f"{limit} was reached when it was to start (on_full='drop')"
        self._forget(each)
        self._engine.drop(each.task, text)

    # -- permits that are returned ---------------------------------------------------------------------

    def _forget(self, each: WaitingStart) -> None:
        """It will not start. A request whose answer was lost may have given it a permit."""
        each.kept = False
        self._return(each.lease, each.limit)

    def _return(self, lease: Lease, limit: Limit) -> None:
        self._returns[lease.token] = PermitRequest((limit,), 1, lease)

    def _permit_freed(self) -> None:
        """A task has ended, or the inner doer has room again: ask again for those that wait."""
        for each in self._waiting:
            each.after = -inf
        if self._waiting or self._returns:
            self._start_rounds()
        if self.available():
            self._call_on_free()

    def _set_timer(self, calls: PermitCalls) -> None:
        times = [each.after for each in self._waiting if each.after > -inf]
        if (self._waiting or self._returns) and not calls.allowed:
            times.append(calls.retry_at)
        if times:
            self._timer.set(max(min(times), calls.retry_at), calls.clock)


def _oldest_to_replace(new: WaitingStart, holders: Sequence[PermitHolder]) -> list[PermitHolder] | None:
    """The holders to cancel so that `new` can start: the oldest. None: `new` is older than all of them. Empty:
    others were cancelled before, and have not ended yet."""
    surplus = len(holders) + 1 - new.limit.limit
    if surplus <= 0:
        return []
    older = [holder for holder in holders if (holder.due_at, holder.number) < new.age]
    return older[:surplus] or None


def check_alone(inner: Doer | None, on_full: OnFull, has_limits: bool) -> None:
    """Refuse another limit inside."""
    if has_limits:
        raise InputError.of("inner", inner, f"is a limit: on_full={on_full!r} is {ALONE}")
