"""What one worker runs at once: `unlimited`, and at most `max`: `balanced`, `priority`, `oldest`.

The last three are a `BoundedDoer`, and differ only in their line.

A task that waits in a line is leased: no idle worker elsewhere can claim it, and no item that arrives in the
store later can overtake it. So the store decides the order, and the line is short. Unless `buffer` is given,
it holds what starts within the next `AHEAD` seconds, judging by how long tasks have taken. For handlers that
take a second that is nothing. For handlers of a millisecond it keeps the doer busy while the next claim is on
its way.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from bisect import insort
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol

from msgspec import Struct

from treadle.item import Ref

from .base import BaseDoer, Task, WorkerDoers, check_whole

MANY = 50


LOOP_CYCLES = 3
"""Before `MANY` or more tasks start, the event loop turns this many times: by then the next claim is on its
way, and the store works while the tasks run. (A drain of no-ops on PostgreSQL is quicker by a tenth.)"""


class StartingDoer(BaseDoer):
    """Tasks that start together share one asyncio task, the starter. A subclass keeps the tasks that wait,
    and says which is next.

    The starter runs them one after the other, as long as each ends without waiting for anything. The first
    one that waits keeps the starter, and the tasks behind it get an asyncio task each. For handlers that
    never wait, a task each would be a quarter of the engine's time.
    """

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
            loop = self._loop or asyncio.get_running_loop()
            self._starter = loop.create_task(self._start(), context=self._context.copy())
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


Order = tuple[float, ...]

AHEAD = 0.05
MOST_AHEAD = 500
DECAY = 0.95
"""A task is expected to take as long as the longest recent one. That estimate shrinks by this factor with
each task that ends."""


class WaitingTask(Struct, frozen=True, order=True, gc=False):
    """Waiting tasks compare by `order`, which no two share."""

    order: Order
    task: Task
    lane: Ref


class TaskLine(Protocol):
    """Decides which waiting task starts next. It may count what runs: it sees every start and end."""

    def order(self, priority: int, queued_at: float, place: float | None, number: int) -> Order:
        """The sort key of a task. Its last part is `number`, which no two tasks share: among equals the first
        one submitted starts first."""
        ...

    def push(self, waiting: WaitingTask) -> None: ...

    def pop(self) -> WaitingTask:
        """Remove the next one. The line must not be empty."""
        ...

    def started(self, lane: Ref) -> None: ...

    def ended(self, lane: Ref) -> None: ...

    def clear(self) -> list[WaitingTask]:
        """Remove and return all of them."""
        ...

    def __len__(self) -> int: ...


class SortedLine:
    """A line in which only a task's own order counts."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[WaitingTask] = []

    def push(self, waiting: WaitingTask) -> None:
        heappush(self._heap, waiting)

    def pop(self) -> WaitingTask:
        return heappop(self._heap)

    def started(self, lane: Ref) -> None:
        pass

    def ended(self, lane: Ref) -> None:
        pass

    def clear(self) -> list[WaitingTask]:
        cleared, self._heap = self._heap, []
        return cleared

    def __len__(self) -> int:
        return len(self._heap)


class BoundedDoer(StartingDoer):
    """Runs at most `max` tasks. At most `buffer` more wait in a line. It never refuses a task."""

    def __init__(self, max: int, buffer: int | None, line: TaskLine) -> None:
        super().__init__()
        self._max = self.limit = check_whole(max, "max")
        self._fixed = buffer if buffer is None else check_whole(buffer, "buffer", least=0)
        self.buffers = bool(buffer)
        self._line = line
        self._seq = count()
        self._ready: deque[tuple[Task, Ref]] = deque()
        """Tasks that have room and start when the loop goes on."""
        self._active = 0
        self._in_line = 0
        """How many tasks wait in the line."""
        self._full = False
        """Whether there may be no room: then the next end reports it."""
        self._longest: float | None = None
        """Seconds that a task takes; None before the first has ended."""

    def of_worker(self, doers: WorkerDoers) -> BoundedDoer:
        return BoundedDoer(self._max, self._fixed, type(self._line)())

    def available(self) -> int:
        """0 while more than half of the line is left: one claim for many tasks, not one for each.

        Unless `buffer` is given, at most half of what it takes, or `max`: then there is room for the next
        claim as soon as this one is answered, and the store works on it while the tasks run. (With one claim
        for all of it, the store waited for the no-ops of a drain: see benchmarks/README.md.)
        """
        active, waiting, buffer = self._active + len(self._ready), self._in_line, self.buffer
        busy = active >= self._max and 2 * waiting > buffer
        room = 0 if busy else max(0, self._max + buffer - active - waiting)
        if self._fixed is None:
            room = min(room, max(self._max, (self._max + buffer) // 2))
        self._full = not room
        return room

    @property
    def buffer(self) -> int:
        """How many tasks may wait in the line now."""
        if self._fixed is not None:
            return self._fixed
        if self._longest is None:
            return 0
        return int(min(MOST_AHEAD, self._max * AHEAD / max(self._longest, 1e-6)))

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
        taken = self._active + len(self._ready)
        if taken < self._max and not self._in_line:
            self._ready.append((task, (tenant, lane)))
        else:
            order = self._line.order(priority, queued_at, place, next(self._seq))
            self._line.push(WaitingTask(order, task, (tenant, lane)))
            self._in_line += 1
        if taken < self._max:
            self._start_soon()
        if taken + 1 >= self._max:
            self._full = True

    def cancel_pending(self) -> list[Task]:
        ready = [task for task, _ in self._ready]
        self._ready.clear()
        self._in_line = 0
        return ready + [waiting.task for waiting in self._line.clear()]

    def remove(self, is_over: Callable[[Task], bool]) -> None:
        self._ready = deque([ready for ready in self._ready if not is_over(ready[0])])
        for waiting in self._line.clear():
            if not is_over(waiting.task):
                self._line.push(waiting)
        self._in_line = len(self._line)

    def _next(self) -> tuple[Task, Ref] | None:
        if self._ready:
            found = self._ready.popleft()
        elif self._in_line and self._active < self._max:
            waiting = self._line.pop()
            self._in_line -= 1
            found = waiting.task, waiting.lane
        else:
            return None
        self._active += 1
        self._line.started(found[1])
        return found

    def _waiting_count(self) -> int:
        return len(self._ready) + self._in_line

    def _ended(self, lane: Ref, took: float) -> None:
        self._active -= 1
        self._line.ended(lane)
        longest = DECAY * (self._longest or 0.0)
        self._longest = took if took > longest else longest
        if self._starter is None and self._in_line:
            self._start_soon()
        if self._full and self.available():
            self._call_on_free()

    def __repr__(self) -> str:
        return f"{type(self._line).__name__} of {self._max}, {self._active} running"


NO_LANE: Ref = ("", "")


class UnlimitedDoer(StartingDoer):
    """Runs any number of tasks. `batch` only limits a single claim, so that workers share a burst."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self._batch = check_whole(batch, "batch")
        self._waiting: deque[Task] = deque()

    def of_worker(self, doers: WorkerDoers) -> UnlimitedDoer:
        return UnlimitedDoer(self._batch)

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
        self._start_soon()

    def cancel_pending(self) -> list[Task]:
        tasks = list(self._waiting)
        self._waiting.clear()
        return tasks

    def _next(self) -> tuple[Task, Ref] | None:
        return (self._waiting.popleft(), NO_LANE) if self._waiting else None

    def _waiting_count(self) -> int:
        return len(self._waiting)

    def __repr__(self) -> str:
        return f"unlimited(batch={self._batch})"


def unlimited(batch: int = 500) -> UnlimitedDoer:
    """Start everything at once; claim up to `batch` at a time."""
    return UnlimitedDoer(batch)


SLACK = 64
"""Outdated ranks stay in the heap until they reach its top. The heap is rebuilt when it holds more than twice
as many ranks as there are lanes, and this many besides."""


class BalancedLane:
    """The tasks that run and wait under one (tenant, lane)."""

    __slots__ = ("rank", "ref", "running", "waiting")

    def __init__(self, ref: Ref) -> None:
        self.ref = ref
        self.running = 0
        self.waiting: deque[WaitingTask] = deque()
        """In their order."""
        self.rank: LaneRank | None = None
        """Its current rank among the lanes; None while nothing waits."""

    @property
    def is_empty(self) -> bool:
        return self.running <= 0 and not self.waiting


LaneRank = tuple[int, Order, BalancedLane]
"""How many tasks the lane runs, the order of its first waiting task, and the lane. The lowest rank is next.
Orders are unique, so lanes are never compared, except for a rank with its own equal."""


class BalancedLine:
    """The lane that runs the fewest tasks comes first. Among equals priority decides, then age.

    Lanes are kept in a heap by rank. When a rank changes, a new one is pushed. The old one is recognised when
    it reaches the top, because its lane no longer points to it. A single lane, which is the usual case, needs
    no rank.
    """

    def __init__(self) -> None:
        self._lanes: dict[Ref, BalancedLane] = {}
        self._ranks: list[LaneRank] = []
        self._size = 0

    def order(self, priority: int, queued_at: float, place: float | None, number: int) -> Order:
        return (-priority, queued_at if place is None else place, number)

    def push(self, waiting: WaitingTask) -> None:
        lane = self._lanes.get(waiting.lane) or self._new_lane(waiting.lane)
        if not lane.waiting or lane.waiting[-1].order < waiting.order:
            lane.waiting.append(waiting)  # as a rule tasks come in their order
        else:
            insort(lane.waiting, waiting)
        self._size += 1
        if len(self._lanes) > 1 and lane.waiting[0] is waiting:
            self._rerank(lane)

    def pop(self) -> WaitingTask:
        lanes = self._lanes
        lane = next(iter(lanes.values())) if len(lanes) == 1 else self._first()
        waiting = lane.waiting.popleft()
        self._size -= 1
        if len(lanes) > 1:
            self._rerank(lane)
        return waiting

    def started(self, lane: Ref) -> None:
        found = self._lanes.get(lane) or self._new_lane(lane)
        found.running += 1
        if len(self._lanes) > 1:
            self._rerank(found)

    def ended(self, lane: Ref) -> None:
        found = self._lanes[lane]
        found.running -= 1
        if len(self._lanes) == 1:
            return  # it stays, even without tasks: most likely the next task is in this lane too
        if found.is_empty:
            del self._lanes[lane]
            found.rank = None
        else:
            self._rerank(found)

    def clear(self) -> list[WaitingTask]:
        cleared = [waiting for lane in self._lanes.values() for waiting in lane.waiting]
        self._lanes = {ref: lane for ref, lane in self._lanes.items() if lane.running > 0}
        for lane in self._lanes.values():
            lane.waiting.clear()
            lane.rank = None
        self._ranks, self._size = [], 0
        return sorted(cleared)

    def __len__(self) -> int:
        return self._size

    def _new_lane(self, ref: Ref) -> BalancedLane:
        if len(self._lanes) == 1 and next(iter(self._lanes.values())).is_empty:
            self._lanes.clear()
        lane = self._lanes[ref] = BalancedLane(ref)
        if len(self._lanes) == 2:
            self._rank_all()
        return lane

    def _first(self) -> BalancedLane:
        """The lane with the lowest rank, of several."""
        while True:
            rank = heappop(self._ranks)
            if rank[2].rank is rank:
                return rank[2]

    def _rerank(self, lane: BalancedLane) -> None:
        if not lane.waiting:
            lane.rank = None
            return
        lane.rank = (lane.running, lane.waiting[0].order, lane)
        heappush(self._ranks, lane.rank)
        if len(self._ranks) > 2 * len(self._lanes) + SLACK:
            self._rebuild()

    def _rank_all(self) -> None:
        """From now on there are several lanes."""
        for lane in self._lanes.values():
            lane.rank = (lane.running, lane.waiting[0].order, lane) if lane.waiting else None
        self._rebuild()

    def _rebuild(self) -> None:
        self._ranks = [lane.rank for lane in self._lanes.values() if lane.rank is not None]
        heapify(self._ranks)


def balanced(max: int, *, buffer: int | None = None) -> BoundedDoer:
    """Run at most `max` tasks at once in one worker. The next one comes from the lane that runs the fewest;
    among lanes with as many, the highest priority goes first, then the oldest.

    buffer: how many more to claim ahead. None: what starts within some milliseconds, see `bounded`. 0: none.
    """
    return BoundedDoer(max, buffer, BalancedLine())


class OldestLine(SortedLine):
    __slots__ = ()

    def order(self, priority: int, queued_at: float, place: float | None, number: int) -> Order:
        return (queued_at, number)


def oldest(max: int, *, buffer: int | None = None) -> BoundedDoer:
    """Run at most `max` tasks at once in one worker. Of those that wait, the one queued first starts first.

    buffer: how many more to claim ahead. None: what starts within some milliseconds, see `bounded`. 0: none.
    """
    return BoundedDoer(max, buffer, OldestLine())


class PriorityLine(SortedLine):
    __slots__ = ()

    def order(self, priority: int, queued_at: float, place: float | None, number: int) -> Order:
        return (-priority, queued_at if place is None else place, number)


def priority(max: int, *, buffer: int | None = None) -> BoundedDoer:
    """Run at most `max` tasks at once in one worker. Of those that wait, the highest priority starts first,
    then the oldest.

    buffer: how many more to claim ahead. None: what starts within some milliseconds, see `bounded`. 0: none.
    """
    return BoundedDoer(max, buffer, PriorityLine())
