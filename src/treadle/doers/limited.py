"""LimitedDoer: `rate_limited` and `concurrency`. A task waits for the permits of all its limits.

These permits are asked for at once, so that no limit is charged for what another denied.

**How much to claim.** A task that waits here is leased: it looks like a running one, and no other worker can
have it. So the room that `available` offers doubles while all tasks get permits, and halves when one is
denied. Once a limit is known to be reached, nothing is claimed for it until shortly before it has permits
again (`avoid`). Denied tasks wait here only if they may start soon; the others are given back to the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from math import inf
from typing import Literal

from treadle.base.timing import Clock, Duration, seconds
from treadle.errors import InputError, NotStarted
from treadle.item import AvoidedLane, Limit, PermitReply

from .base import BaseDoer, Doer, KeepDenied, PermitStore, Task, WorkerDoers
from .bounded import WaitingTask
from .limit_rules import LimitRule, Per, check_rules
from .on_full import ALONE, OnFull, OnFullDoer
from .permit_queue import SOON, LimitLine, PermitBatch, PermitQueue
from .permitted import ERROR_LAST, PermitCalls, PermitDoer, PermittedTask

BURST_FIRST, BURST_LAST = 16, 500
# With more closed lines than this, they do not reopen one by one but this many seconds apart: a claim has to
# step over all others.
MANY_CLOSED, REOPEN_INTERVAL = 100, 0.05


class LimitedDoer(PermitDoer):
    """Asks the store for permits under `rules` before it submits a task to the inner doer."""

    def __init__(
        self, rules: Sequence[LimitRule], inner: Doer | None = None, *, strict: bool = False
    ) -> None:
        if isinstance(inner, OnFullDoer):
            raise InputError.of("inner", inner, f"has on_full={inner.on_full!r}, {ALONE}")
        if isinstance(inner, LimitedDoer):
            # One doer with all the limits: of two in a row, the first would be charged while the second
            # denies.
            strict = strict or inner.strict
            rules, inner = (*rules, *inner.rules), inner.inner
        super().__init__(inner)
        self.strict: bool = strict
        """The lanes of its types are strict: the store hands out one item of each, so no permit is needed."""
        self.rules: tuple[LimitRule, ...] = check_rules(rules)
        self._in_force = self.rules
        """`rules`, or what was ordered in their place."""
        self._name = "app"
        self._queue = PermitQueue(self.rules, self._name)
        self._seq = count()
        self._burst = BURST_FIRST
        self._shared_until = -inf
        """Until when a limit that all lines share is reached, if they have limits of their own too."""

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
        self._name = name
        self._queue = PermitQueue(self.rules, name)

    def use(self, rules: Sequence[LimitRule]) -> None:
        """Obey these rules from now on. Tasks that run keep the permits that they have."""
        if tuple(rules) == self._in_force:
            return
        self._in_force = tuple(rules)
        self._queue.use(rules, self._name)
        self._burst, self._shared_until = BURST_FIRST, -inf
        self._start_rounds()
        self._call_on_free()

    def held(self, limit: Limit) -> int:
        """How many permits of a limit tasks here hold."""
        return self._queue.lines.held.get(limit.name, 0)

    def adopt(self, limit: Limit, count: int) -> Callable[[], None]:
        """Tasks that run hold permits of this limit, although they have not asked for them. Returns what is
        to be called when one of them has ended."""
        line = LimitLine(None, ("", ""), (limit,), ("", None))
        self._queue.lines.count_running(line, count)
        return partial(self._release, line)

    def _release(self, line: LimitLine) -> None:
        self._queue.ended(line)
        self._start_rounds()
        self._room_freed()

    # -- rounds ----------------------------------------------------------------------------------------

    def _has_waiting(self) -> bool:
        return bool(self._queue.waiting)

    def _clear_waiting(self) -> list[Task]:
        return [waiting.task for waiting in self._queue.clear()]

    def _remove_waiting(self, is_over: Callable[[Task], bool]) -> None:
        self._queue.remove(is_over)

    async def _run_round(self, calls: PermitCalls) -> bool:
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


def concurrency(
    limit: int,
    *,
    per: Per = None,
    strict: bool = False,
    on_full: OnFull = "wait",
    inner: Doer | None = None,
    name: str | None = None,
) -> LimitedDoer | OnFullDoer:
    """Run at most `limit` tasks at once, counted by the store for all workers together. With
    `concurrency(1, per="lane")` the items of a lane run one after the other, on any worker.

    per: one limit for each `lane` (of each tenant), or for each `tenant`; None: one for all.
    strict: an item that has started keeps its lane until it has succeeded, died or was cancelled. While it
        waits for its retry, or after its worker died, nothing else of its type starts in that lane. Needs
        `limit=1` and `per="lane"`; each work type has lanes of its own.
    on_full: what becomes of an item that is to start while the limit is reached. `wait`: it waits. `drop`: it
        ends `cancelled`, and its error says why. `replace`: the oldest that runs is cancelled, and the new
        one starts when it has stopped; the newest items win. With the last two there can be no other limit
        inside or around, and no batch.
    inner: the doer that runs what may start (default: `unlimited()`); may be another limit.
    name: doers with the same name count together. Default: each work type for itself.
    """
    rule = LimitRule(limit, 1.0, "slots", per, name)
    if on_full not in ("wait", "drop", "replace"):
        raise InputError.of("on_full", on_full, "must be 'wait', 'drop' or 'replace'")
    if strict:
        _check_strict(rule, on_full)
        return LimitedDoer((), inner, strict=True)
    if on_full == "wait":
        return LimitedDoer([rule], inner)
    if isinstance(inner, LimitedDoer | OnFullDoer):
        raise InputError.of("on_full", on_full, f"is given with a limit as inner, {ALONE}")
    return OnFullDoer(rule, on_full, inner)


def _check_strict(rule: LimitRule, on_full: OnFull) -> None:
    if on_full != "wait":
        problem = "must be 'wait' with strict=True: the items of a strict lane wait for each other"
        raise InputError.of("on_full", on_full, problem)
    if rule.limit != 1:
        raise InputError.of("limit", rule.limit, "must be 1 with strict=True: a lane has one item at a time")
    if rule.per != "lane":
        problem = (
            "must be 'lane' with strict=True: an item keeps its lane. Items without a lane share one, for "
            "each tenant"
        )
        raise InputError.of("per", rule.per, problem)
    if rule.name is not None:
        problem = "cannot be given with strict=True: each work type has lanes of its own"
        raise InputError.of("name", rule.name, problem)


ALGORITHMS = ("token_bucket", "fixed_window", "sliding_window")


def rate_limited(
    limit: int,
    window: Duration = 1.0,
    algorithm: Literal["token_bucket", "fixed_window", "sliding_window"] = "token_bucket",
    *,
    per: Per = None,
    inner: Doer | None = None,
    name: str | None = None,
) -> LimitedDoer:
    """Start `limit` tasks per `window` seconds on average, counted by the store for all workers together.

    algorithm: `token_bucket` makes up for unused starts in a burst of up to `limit`; `fixed_window` counts
        from the first start; `sliding_window` smooths the burst at the border of two windows. With each of
        them, some stretch of `window` seconds may see up to twice the `limit`: see docs/running.md.
    per: one limit for each `lane` (of each tenant), or for each `tenant`; None: one for all.
    inner: the doer that runs what may start (default: `unlimited()`); may be another limit. Permits of both
        are asked for together, and neither limit is charged for what the other denied.
    name: doers with the same name, limit and window count together. Default: each work type for itself.
    """
    if algorithm not in ALGORITHMS:
        raise InputError.of("algorithm", algorithm, f"must be one of {', '.join(ALGORITHMS)}")
    length = seconds(window, field="window")
    if length <= 0:
        raise InputError.of("window", window, "must be more than 0 seconds")
    return LimitedDoer([LimitRule(limit, length, algorithm, per, name)], inner)
