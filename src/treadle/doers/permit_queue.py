"""PermitQueue: which waiting tasks to ask permits for, and which permits to return. No I/O, no clock.

push -> line -> choose -> (ask the store) -> apply replies -> tasks that may start
          ^                                           |
          '------- put back, the line is closed ------'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from math import ceil, inf

from treadle.item import AvoidedLane, Limit, PermitReply, PermitRequest, Ref

from .base import KeepDenied, Task
from .bounded import WaitingTask
from .limit_rules import LimitRule

# Seconds before the store is asked again, if it answered with less.
LEAST_RETRY = 0.01
# The most tasks to hold in closed lines. They are leased, and no other worker sees them.
MOST_HELD = 500
# How many limits are remembered whose permits the store may count although no task has them.
MOST_SUSPECT = 1000


@dataclass(slots=True)
class PermitBatch:
    """Tasks of one line for which permits are asked together."""

    line: LimitLine
    tasks: list[WaitingTask] = field(default_factory=list[WaitingTask])
    cancelled: bool = False
    """The tasks were given back meanwhile: permits that come now are returned."""

    def request(self) -> PermitRequest:
        return PermitRequest(self.line.limits, len(self.tasks))


class PermitQueue:
    def __init__(self, rules: Sequence[LimitRule], owner: str) -> None:
        self.lines = LimitLines(rules, owner)
        self.returns = PermitReturns()
        self._shared = any(rule.per is None for rule in rules)
        self._asking: list[PermitBatch] = []
        self.keep_denied: KeepDenied = "soon"
        self.waiting = 0
        """How many tasks have not started, including those that permits are being asked for."""

    def use(self, rules: Sequence[LimitRule], owner: str) -> None:
        """Obey other rules. Tasks that run keep the permits that they have."""
        waiting = self.clear()
        self.lines = LimitLines(rules, owner, self.lines.held)
        self._shared = any(rule.per is None for rule in rules)
        for each in waiting:
            self.push(each)

    def push(self, waiting: WaitingTask) -> LimitLine:
        self.waiting += 1
        line = self.lines.line_of(waiting.lane)
        self.lines.put(line, (waiting,))
        return line

    def choose(self, room: int) -> list[PermitBatch]:
        """Take up to `room` tasks out of the open lines, in order. Permits for them are to be asked for; then
        `apply_replies`, `put_back` or `lost` is called, before the next choice.
        """
        batches: list[PermitBatch] = []
        by_line: dict[Ref, PermitBatch] = {}
        heads = [(line.waiting[0], line) for line in self.lines.open]
        heapify(heads)
        while heads and room > 0:
            room -= 1
            _, line = heappop(heads)
            batch = self._batch_for(line, batches, by_line)
            batch.tasks.append(heappop(line.waiting))
            if line.waiting and len(batch.tasks) < line.most:
                heappush(heads, (line.waiting[0], line))
        self._asking = batches
        self._mark_asked(batches, True)
        return batches

    def _batch_for(
        self, line: LimitLine, batches: list[PermitBatch], by_line: dict[Ref, PermitBatch]
    ) -> PermitBatch:
        # If all lines share a limit, the first request gets the permit. So the order among lines counts, and
        # only neighbours share a request.
        last = batches[-1] if batches and batches[-1].line is line else None
        batch = last if self._shared else by_line.get(line.key)
        if batch is None:
            batch = by_line[line.key] = PermitBatch(line)
            batches.append(batch)
        return batch

    def requests(self, batches: Sequence[PermitBatch]) -> list[PermitRequest]:
        """What to ask for. If lines have limits of their own, the last request is for no permit: its reply
        says whether the limits that they share are reached, so that not each line has to find out."""
        lines = self.lines
        shared = [PermitRequest(lines.shared, 0)] if lines.keyed and lines.shared else []
        return [*(batch.request() for batch in batches), *shared]

    def apply_replies(
        self, batches: Sequence[PermitBatch], replies: Sequence[PermitReply], now: float
    ) -> list[tuple[WaitingTask, LimitLine]]:
        """Return the tasks that may start. The others are put back, and their lines are closed."""
        permitted: list[tuple[WaitingTask, LimitLine]] = []
        for batch, reply in zip(batches, replies, strict=True):
            if batch.cancelled:
                self.returns.add(batch.line.concurrency, reply.count)
            else:
                permitted.extend((waiting, batch.line) for waiting in self._apply_reply(batch, reply, now))
        self._asking = []
        self._mark_asked(batches, False)
        return permitted

    def _apply_reply(self, batch: PermitBatch, reply: PermitReply, now: float) -> list[WaitingTask]:
        line = batch.line
        permitted, denied = batch.tasks[: reply.count], batch.tasks[reply.count :]
        self.waiting -= len(permitted)
        self.lines.count_running(line, len(permitted))
        if permitted:
            line.wait = WAIT_FIRST
        if denied:
            self.lines.put(line, denied)
            self.returns.denied(line.concurrency)
            self._close(line, reply, now)
        elif self.lines.is_full(line):
            # This process holds all permits: only the end of a task here can free one.
            self.lines.close(line, inf, until_returned=True)
        elif reply.retry_after > 0 and self.keep_denied != "all":
            self._close(line, reply, now)  # these were the last permits: claim no task that would be denied
        return permitted

    def _close(self, line: LimitLine, reply: PermitReply, now: float) -> None:
        if reply.retry_after > 0:
            wait = max(reply.retry_after, LEAST_RETRY)
            self.lines.close(line, now + wait, until_returned=False, soon=wait <= SOON)
        else:
            self.lines.close(line, now + line.wait, until_returned=True)
            line.wait = min(line.wait * 2, WAIT_LAST)

    def surplus(self, line: LimitLine, now: float) -> list[WaitingTask]:
        """Take out the tasks of a closed line that are not to wait here: those that cannot start soon."""
        if line.closed_until is None or self.keep_denied == "all":
            return []
        soon = line.closed_until <= now + WAIT_LAST or line.closed_until == inf
        most = MOST_HELD - (self.lines.closed_tasks - len(line.waiting))
        keep = max(0, min(line.ahead, most)) if soon and self.keep_denied == "soon" else 0
        out = self.lines.take_out(line, keep)
        self.waiting -= len(out)
        return out

    def remove(self, is_over: Callable[[Task], bool]) -> None:
        """Forget waiting tasks that are over."""
        for waiting in self.lines.clear():
            self.waiting -= 1
            if not is_over(waiting.task):
                self.push(waiting)

    def put_back(self, batches: Sequence[PermitBatch], until: float) -> None:
        """Put the tasks back, and close their lines until then."""
        for batch in batches:
            if not batch.cancelled:
                self.lines.put(batch.line, batch.tasks)
                self.lines.close(batch.line, until, until_returned=False)
        self._asking = []
        self._mark_asked(batches, False)

    def lost(self, batches: Sequence[PermitBatch], until: float) -> None:
        """The store did not answer. It may have counted the permits, so they are returned later."""
        for batch in batches:
            self.returns.doubt(batch.line.concurrency, len(batch.tasks))
        self.put_back(batches, until)

    def refused(self, waiting: WaitingTask, line: LimitLine, until: float) -> None:
        """A permitted task could not start: return its permits, put it back, and close its line for a
        while."""
        self.waiting += 1
        self.lines.put(line, (waiting,))
        self.lines.close(line, until, until_returned=False)
        self.ended(line)

    def ended(self, line: LimitLine) -> None:
        """A task that holds permits has ended. Its line may be one of earlier rules."""
        self.lines.ended(line)
        self.returns.add(line.concurrency)

    def clear(self) -> list[WaitingTask]:
        """Remove the tasks that have not started, and return them in order."""
        cleared = self.lines.clear()
        for batch in self._asking:
            batch.cancelled = True
            cleared += batch.tasks
        self.waiting = 0
        return sorted(cleared)

    def _mark_asked(self, batches: Sequence[PermitBatch], asked: bool) -> None:
        for batch in batches:
            self.lines.mark_asked(batch.line, asked)


class PermitReturns:
    """Permits to return to the store.

    If the store did not answer, it may or may not have counted the permits, or their return. Such permits are
    *doubtful*. They are returned once no task here holds a permit of that limit: a store frees no more
    permits than the worker holds, so returning too many does no harm then. After an error a limit may be
    underused for a while, but it is never exceeded.

    A request whose answer was lost may even arrive after that. So such a limit stays *suspect*: whenever it
    denies a task here, its permits are returned once more.
    """

    def __init__(self) -> None:
        self._owed: Counter[Limit] = Counter()
        self._doubtful: Counter[Limit] = Counter()
        self._suspect: dict[Limit, None] = {}

    def add(self, limits: Sequence[Limit], number: int = 1) -> None:
        """Tasks that held permits of these limits have ended."""
        for limit in limits:
            self._owed[limit] += number

    def doubt(self, limits: Sequence[Limit], number: int) -> None:
        """The store may count this many permits of each limit that no task has."""
        for limit in limits:
            self._doubtful[limit] = min(self._doubtful[limit] + number, limit.limit)
            self._suspect[limit] = None
        if len(self._suspect) > MOST_SUSPECT:
            del self._suspect[next(iter(self._suspect))]

    def denied(self, limits: Sequence[Limit]) -> None:
        """The store gave no permit of these limits."""
        for limit in limits:
            if limit in self._suspect:
                self._doubtful[limit] = limit.limit

    def take_out(self, held: Container[str]) -> list[PermitRequest]:
        """The permits to return now. held: the names of limits of which tasks here hold permits."""
        if not self:
            return []
        out, self._owed = self._owed, Counter()
        for limit in [limit for limit in self._doubtful if limit.name not in held]:
            out[limit] += self._doubtful.pop(limit)
        return [PermitRequest((limit,), number) for limit, number in out.items()]

    def put_back(self, requests: Sequence[PermitRequest]) -> None:
        """The store did not answer when these were returned."""
        for request in requests:
            self.doubt(request.limits, request.count)

    def __bool__(self) -> bool:
        return bool(self._owed or self._doubtful)


# Between two requests for a permit that other processes hold: the waits double from the first to the last.
WAIT_FIRST, WAIT_LAST = 0.05, 1.0
SOON = 0.25


class LimitLine:
    """Tasks that wait for permits of the same limits, and what is known of these limits."""

    __slots__ = (
        "ahead",
        "asked",
        "closed_until",
        "concurrency",
        "home",
        "key",
        "lanes",
        "limits",
        "most",
        "running",
        "soon",
        "wait",
        "waiting",
    )

    def __init__(
        self, home: LimitLines | None, key: Ref, limits: tuple[Limit, ...], lanes: AvoidedLane
    ) -> None:
        self.home = home
        """None: its tasks never wait."""
        self.key = key
        self.limits = limits
        self.concurrency = tuple(limit for limit in limits if limit.algorithm == "slots")
        """The limits whose permits a task holds while it runs, and then returns."""
        self.most = min(limit.limit for limit in limits)
        self.lanes = lanes
        """The lane, or all lanes of the tenant, whose tasks it holds."""
        self.waiting: list[WaitingTask] = []
        self.asked = False
        """Permits for some of its tasks are being asked for."""
        self.running = 0
        """How many of its tasks run and hold permits."""
        self.closed_until: float | None = None
        self.soon = False
        """It is closed for no longer than `SOON` seconds."""
        self.ahead = _ahead(limits)
        """How many tasks may start within `SOON` seconds."""
        self.wait = WAIT_FIRST

    @property
    def wants_more(self) -> bool:
        """Whether tasks may be claimed for it: it is open, or opens soon and has less than half of what may
        be ahead, so that one claim brings many. If the last request was denied and it is unknown when it
        opens, one task is enough to ask again."""
        if self.closed_until is not None:
            return self.soon and 2 * len(self.waiting) < self.ahead
        return self.wait == WAIT_FIRST or not (self.waiting or self.asked)


class LimitLines:
    """The lines of one doer, one per set of limits: which are open, which are closed and until when.

    A line is *open*, and permits may be asked for, or *closed*: one of its limits is known to be reached. A
    closed line reopens at a time, or when a task of this process returns a permit. If it reopens *soon*,
    tasks are claimed ahead for it: as many as may start within `SOON` seconds. Otherwise a limit that permits
    one start every 20 ms would lose the time of a claim after each of them.
    """

    def __init__(self, rules: Sequence[LimitRule], owner: str, held: dict[str, int] | None = None) -> None:
        self._rules = rules
        self._owner = owner
        scopes = {rule.per for rule in rules}
        self._by_lane = "lane" in scopes
        self.keyed = self._by_lane or "tenant" in scopes
        """Whether lanes or tenants have limits of their own."""
        self.shared = tuple(rule.limit_for(owner, "", "") for rule in rules if rule.per is None)
        """The limits that count for all lines together."""
        self._lines: dict[Ref, LimitLine] = {}
        self._open: dict[Ref, LimitLine] = {}
        self._closed: dict[Ref, LimitLine] = {}
        self._full: dict[Ref, LimitLine] = {}
        """The lines for which no tasks may be claimed."""
        self._full_lanes: frozenset[AvoidedLane] | None = frozenset()
        """None: it has changed."""
        self._reopening: list[tuple[float, int, LimitLine]] = []
        self._seq = count()
        self._closed_by: dict[str, dict[LimitLine, None]] = {}
        """By the name of a limit."""
        self.held: dict[str, int] = {} if held is None else held
        """By the name of a limit: permits that running tasks of this process hold."""
        self.closed_tasks = 0
        """How many tasks wait in closed lines."""

    @property
    def open(self) -> Collection[LimitLine]:
        """The open lines in which tasks wait."""
        return self._open.values()

    @property
    def closed(self) -> Collection[LimitLine]:
        return self._closed.values()

    def full_lanes(self) -> frozenset[AvoidedLane]:
        """The lanes that nothing may be claimed for. The same object until it changes."""
        if self._full_lanes is None:
            self._full_lanes = frozenset([line.lanes for line in self._full.values()])
        return self._full_lanes

    def room(self) -> float:
        """The most tasks that the limits that all lines share could permit now, or soon."""
        if not self.keyed:
            if self._full:
                return 0
            for line in self._closed.values():
                return line.ahead - len(line.waiting)
        return min([limit.limit - self.held.get(limit.name, 0) for limit in self.shared], default=inf)

    # -- tasks -----------------------------------------------------------------------------------------

    def line_of(self, lane: Ref) -> LimitLine:
        tenant, name = lane
        key = (tenant if self.keyed else "", name if self._by_lane else "")
        line = self._lines.get(key)
        if line is None:
            limits = tuple(rule.limit_for(self._owner, tenant, name) for rule in self._rules)
            line = self._lines[key] = LimitLine(self, key, limits, lane if self._by_lane else (tenant, None))
        return line

    def put(self, line: LimitLine, tasks: Sequence[WaitingTask]) -> None:
        for waiting in tasks:
            heappush(line.waiting, waiting)
        if line.closed_until is not None:
            self.closed_tasks += len(tasks)
        self._file(line)

    def mark_asked(self, line: LimitLine, asked: bool) -> None:
        line.asked = asked
        self._file(line)

    def clear(self) -> list[WaitingTask]:
        """Remove and return all waiting tasks."""
        cleared = [waiting for line in self._lines.values() for waiting in line.waiting]
        for line in list(self._lines.values()):
            line.waiting = []
            self._file(line)
        self.closed_tasks = 0
        return cleared

    def take_out(self, line: LimitLine, keep: int) -> list[WaitingTask]:
        """Remove and return the tasks of a closed line, in order, except the first ones."""
        line.waiting.sort()
        out = line.waiting[keep:]
        del line.waiting[keep:]
        self.closed_tasks -= len(out)
        self._file(line)
        return out

    # -- permits that tasks hold -----------------------------------------------------------------------

    def ended(self, line: LimitLine) -> None:
        """A task of the line has ended: reopen the lines that its limits have closed."""
        self.count_running(line, -1)
        for limit in line.concurrency:
            for closed in self._closed_by.pop(limit.name, ()):
                self._reopen(closed)
        self._file(line)

    def is_full(self, line: LimitLine) -> bool:
        """Whether tasks of this process hold all permits of one of its limits."""
        return any(self.held.get(limit.name, 0) >= limit.limit for limit in line.concurrency)

    def count_running(self, line: LimitLine, change: int) -> None:
        """Tasks of the line have started with permits, or ended."""
        if not line.concurrency or not change:
            return
        line.running += change
        for limit in line.concurrency:
            held = self.held.get(limit.name, 0) + change
            if held:
                self.held[limit.name] = held
            else:
                self.held.pop(limit.name, None)

    # -- open and closed -------------------------------------------------------------------------------

    def close(self, line: LimitLine, until: float, *, until_returned: bool, soon: bool = False) -> None:
        """Close a line. until_returned: it reopens earlier if a permit of its limits is returned here."""
        if line.closed_until is None:
            self.closed_tasks += len(line.waiting)
        line.closed_until = until
        line.soon = soon
        if until < inf:
            heappush(self._reopening, (until, next(self._seq), line))
        for limit in line.concurrency:
            if until_returned:
                self._closed_by.setdefault(limit.name, {})[line] = None
            else:
                self._not_closed_by(limit, line)
        self._file(line)

    def reopen_due(self, now: float) -> bool:
        """Reopen the lines whose time has come. Whether there were any."""
        reopened = False
        while self._reopening and self._reopening[0][0] <= now:
            until, _, line = heappop(self._reopening)
            if line.closed_until == until:
                self._reopen(line)
                reopened = True
        return reopened

    def reopen_empty(self) -> None:
        """Reopen the closed lines in which no task waits."""
        for line in list(self._closed.values()):
            if not line.waiting:
                self._reopen(line)

    def next_reopening(self) -> float | None:
        while self._reopening and self._reopening[0][2].closed_until != self._reopening[0][0]:
            heappop(self._reopening)
        return self._reopening[0][0] if self._reopening else None

    def _reopen(self, line: LimitLine) -> None:
        if line.closed_until is None:
            return
        line.closed_until = None
        self.closed_tasks -= len(line.waiting)
        for limit in line.concurrency:
            self._not_closed_by(limit, line)
        self._file(line)

    def _not_closed_by(self, limit: Limit, line: LimitLine) -> None:
        closed = self._closed_by.get(limit.name)
        if closed is not None:
            closed.pop(line, None)
            if not closed:
                del self._closed_by[limit.name]

    def _file(self, line: LimitLine) -> None:
        """Keep the line in the tables that it belongs to now; in none if nothing is known of it."""
        if line.home is not self:
            return  # it is one of earlier rules
        closed, full = line.closed_until is not None, not line.wants_more
        if full != (line.key in self._full):
            self._full_lanes = None
        _keep(self._full, line, full)
        _keep(self._closed, line, closed)
        _keep(self._open, line, not closed and bool(line.waiting))
        _keep(self._lines, line, closed or line.asked or bool(line.waiting) or line.running > 0)


def _ahead(limits: Sequence[Limit]) -> int:
    rates = [limit.limit / limit.window for limit in limits if limit.algorithm != "slots"]
    return max(1, ceil(SOON * min(rates, default=0.0)))


def _keep(lines: dict[Ref, LimitLine], line: LimitLine, wanted: bool) -> None:
    if wanted:
        lines[line.key] = line
    elif lines.get(line.key) is line:
        del lines[line.key]
