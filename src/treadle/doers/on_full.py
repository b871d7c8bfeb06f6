"""OnFullDoer: an item that is to start while its limit is reached is dropped, or replaces what runs.

Each permit belongs to a lease, so that the store can say which items hold the permits. A request can be
repeated: a lease never holds two.

    submit -> ask for a permit -> given: start it in the inner doer; when it ends, return the permit
                               -> denied, `drop`: the item ends
                               -> denied, `replace`: cancel the oldest of what runs, and ask again

**Which one is newer.** Items are ordered by the time at which they are due, then by their submission. All
workers agree on that, so the newest items win, in any order in which the workers ask. What was cancelled
keeps its permit until its handler has ended: never do more than `limit` handlers run at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import inf
from typing import Final, Literal, NamedTuple, TypeAlias

from treadle.base.timing import Clock
from treadle.errors import NotStarted
from treadle.item import Lease, Limit, PermitHolder, PermitReply, PermitRequest

from .base import Doer, PermitStore, Task, WorkerDoers
from .limit_rules import LimitRule
from .permitted import PermitCalls, PermitDoer, PermittedTask

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

    __slots__ = ("after", "asked", "kept", "lease", "limit", "start", "task", "wait")

    def __init__(self, task: Task, lease: Lease, limit: Limit, start: Callable[[Task], None]) -> None:
        self.task = task
        self.lease = lease
        self.limit = limit
        self.start = start
        """Submits a task to the inner doer."""
        self.after = -inf
        """When to ask, by the monotonic clock."""
        self.wait = WAIT_FIRST
        self.asked = False
        """The store may have given it a permit: it was asked for one and has not denied it."""
        self.kept = True
        """False: it was given back while it was asked for."""

    @property
    def age(self) -> tuple[float, int]:
        """The larger, the newer."""
        return self.lease.due_at, self.lease.ref

    @property
    def request(self) -> PermitRequest:
        return PermitRequest((self.limit,), 1, self.lease)


class StartQueue:
    """The tasks that have no permit yet, and the permits to return. No I/O, no clock."""

    def __init__(self) -> None:
        self.waiting: list[WaitingStart] = []
        self.asking: list[WaitingStart] = []
        self.returns: dict[int, PermitRequest] = {}
        """By token: the permits to return."""

    def choose(self, now: float, room: int, *, newest: bool) -> tuple[list[WaitingStart], list[WaitingStart]]:
        """Take out the tasks to ask permits for, the oldest first, at most `room`; and, with `newest`, those
        that newer ones here replace."""
        due = sorted([each for each in self.waiting if each.after <= now], key=lambda each: each.age)
        chosen, replaced = _newest_of_each(due) if newest else (due, [])
        chosen = chosen[: max(0, room)]
        taken = set(map(id, [*chosen, *replaced]))
        self.waiting = [each for each in self.waiting if id(each) not in taken]
        self.asking = chosen
        return list(chosen), replaced

    def clear(self) -> list[WaitingStart]:
        """Remove the tasks that have not started, and return them."""
        pending = [*self.asking, *self.waiting]
        self.asking, self.waiting = [], []
        for each in pending:
            self.forget(each)
        return pending

    def remove(self, is_over: Callable[[Task], bool]) -> None:
        """Forget waiting tasks that are over."""
        for each in [each for each in self.waiting if is_over(each.task)]:
            self.waiting.remove(each)
            self.forget(each)

    def forget(self, each: WaitingStart) -> None:
        """It will not start."""
        each.kept = False
        if each.asked:
            self.give_back(each.lease, each.limit)

    def give_back(self, lease: Lease, limit: Limit) -> None:
        self.returns[lease.token] = PermitRequest((limit,), 1, lease)

    def put_back(self) -> None:
        """The tasks that were asked for wait again."""
        self.waiting += self.asking
        self.asking = []

    def ask_all(self) -> None:
        """Ask for all that wait as soon as possible."""
        for each in self.waiting:
            each.after = -inf

    def next_time(self) -> float | None:
        """When to ask for the next one that was denied."""
        return min([each.after for each in self.waiting if each.after > -inf], default=None)


def _newest_of_each(due: Sequence[WaitingStart]) -> tuple[list[WaitingStart], list[WaitingStart]]:
    """Of tasks that wait here for the same limit as many as may run, the newest, and the others."""
    kept: dict[Limit, int] = {}
    newest: list[WaitingStart] = []
    others: list[WaitingStart] = []
    for each in reversed(due):
        count = kept[each.limit] = kept.get(each.limit, 0) + 1
        (newest if count <= each.limit.limit else others).append(each)
    return newest[::-1], others


class OnFullDoer(PermitDoer):
    """Asks the store for a permit for each task. If there is none, the item does not wait for one."""

    def __init__(
        self, rule: LimitRule, on_full: Literal["drop", "replace"], inner: Doer | None = None
    ) -> None:
        super().__init__(inner)
        self.declared = rule
        self.rule = rule
        """What is in force: `declared`, or what was ordered in its place."""
        self.on_full: Literal["drop", "replace"] = on_full
        self._engine: OnFullCalls | None = None
        self._name = "app"
        self._queue = StartQueue()

    def of_worker(self, doers: WorkerDoers) -> OnFullDoer:
        return OnFullDoer(self.declared, self.on_full, doers.of(self.inner))

    # -- what the engine calls -------------------------------------------------------------------------

    def attach(self, engine: OnFullCalls) -> None:
        """Called before the first submit."""
        self._engine = engine

    def available(self) -> int:
        return max(0, self.inner.available() - len(self._queue.waiting) - len(self._queue.asking))

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
        self._queue.waiting.append(WaitingStart(task, self._engine.lease_of(task), limit, start))
        self._start_rounds()

    def bind(self, permits: PermitStore, clock: Clock, worker: str, name: str = "app") -> None:
        super().bind(permits, clock, worker, name)
        self._name = name

    # -- rounds ----------------------------------------------------------------------------------------

    def _has_waiting(self) -> bool:
        return bool(self._queue.waiting)

    def _clear_waiting(self) -> list[Task]:
        return [each.task for each in self._queue.clear()]

    def _remove_waiting(self, is_over: Callable[[Task], bool]) -> None:
        self._queue.remove(is_over)

    async def _run_rounds(self, calls: PermitCalls) -> None:
        try:
            await super()._run_rounds(calls)
        finally:
            self._queue.put_back()

    async def _run_round(self, calls: PermitCalls) -> bool:
        if not calls.allowed:
            return False
        queue, room = self._queue, self.inner.available()
        returned = await self._return_permits(calls)
        asked, replaced = queue.choose(calls.clock.monotonic(), room, newest=self.on_full == "replace")
        for each in replaced:
            self._drop(each, replaced=True)
        if not asked or not calls.allowed:
            return returned
        for each in asked:
            each.asked = True
        replies = await calls.take_permits([each.request for each in asked])
        if replies is None:
            queue.put_back()  # they are asked for again: a lease never has two permits
            return False
        queue.asking = []
        for each in asked:
            if not each.kept:
                queue.give_back(each.lease, each.limit)
        answered = [pair for pair in zip(asked, replies, strict=True) if pair[0].kept]
        await self._apply(answered, calls.clock.monotonic())
        self._changed.set()
        if self.available():
            self._call_on_free()
        return True

    async def _return_permits(self, calls: PermitCalls) -> bool:
        queue = self._queue
        returns, queue.returns = queue.returns, {}
        if not returns:
            return False
        if await calls.return_permits(list(returns.values())):
            return True
        queue.returns = {**returns, **queue.returns}
        return False

    async def _apply(self, answered: Sequence[tuple[WaitingStart, PermitReply]], now: float) -> None:
        to_cancel: dict[tuple[str, str], PermitHolder] = {}
        for each, reply in answered:
            each.asked = reply.count > 0
            if reply.count:
                self._start(each)
            elif self.on_full == "drop":
                self._drop(each)
            elif (oldest := oldest_to_replace(each, reply.holders)) is None:
                self._drop(each, replaced=True)
            else:
                to_cancel.update(((holder.tenant, holder.id), holder) for holder in oldest)
                each.after, each.wait = now + each.wait, min(each.wait * 2, WAIT_LAST)
                self._queue.waiting.append(each)
        if to_cancel and self._engine is not None:
            try:
                await self._engine.cancel(list(to_cancel.values()))
            except Exception as error:  # noqa: BLE001  any error of a driver: they are found again
                self._report(error, "permits")

    def _start(self, each: WaitingStart) -> None:
        give_back = partial(self._queue.give_back, each.lease, each.limit)
        try:
            each.start(PermittedTask(each.task, give_back, self._room_freed))
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
        self._queue.forget(each)
        self._engine.drop(each.task, text)

    # -- permits that are returned ---------------------------------------------------------------------

    def _room_freed(self) -> None:
        """Ask again for those that wait."""
        self._queue.ask_all()
        if self._queue.waiting or self._queue.returns:
            self._start_rounds()
        if self.available():
            self._call_on_free()

    def _set_timer(self, calls: PermitCalls) -> None:
        at = self._queue.next_time()
        if (self._queue.waiting or self._queue.returns) and not calls.allowed:
            at = calls.retry_at
        if at is not None:
            self._timer.set(max(at, calls.retry_at), calls.clock)


def oldest_to_replace(new: WaitingStart, holders: Sequence[PermitHolder]) -> list[PermitHolder] | None:
    """The holders to cancel so that `new` can start: the oldest. None: `new` is older than all of them.
    Empty: others were cancelled before, and have not ended yet."""
    surplus = len(holders) + 1 - new.limit.limit
    if surplus <= 0:
        return []
    older = [holder for holder in holders if (holder.due_at, holder.number) < new.age]
    return older[:surplus] or None
