"""PermitQueue: which waiting tasks to ask permits for, and which permits to return. No I/O, no clock.

push -> line -> choose -> (ask the store) -> apply replies -> tasks that may start
          ^                                           |
          '------- put back, the line is closed ------'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

from treadle.item import Limit, PermitReply, PermitRequest, Ref

from .base import KeepDenied
from .bounded import WaitingTask
from .doer import Task
from .limit_lines import SOON, WAIT_FIRST, WAIT_LAST, LimitLine, LimitLines
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
        """A task that holds permits has ended."""
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

    def take_out(self, held: Container[Limit]) -> list[PermitRequest]:
        """The permits to return now. held: the limits of which tasks here hold permits."""
        if not self:
            return []
        out, self._owed = self._owed, Counter()
        for limit in [limit for limit in self._doubtful if limit not in held]:
            out[limit] += self._doubtful.pop(limit)
        return [PermitRequest((limit,), number) for limit, number in out.items()]

    def put_back(self, requests: Sequence[PermitRequest]) -> None:
        """The store did not answer when these were returned."""
        for request in requests:
            self.doubt(request.limits, request.count)

    def __bool__(self) -> bool:
        return bool(self._owed or self._doubtful)
