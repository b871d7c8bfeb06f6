"""LimitLines: tasks that wait for permits, in one line per set of limits. No I/O, no clock.

A line is *open*, and permits may be asked for, or *closed*: one of its limits is known to be reached. A
closed line reopens at a time, or when a task of this process returns a permit. If it reopens *soon*, tasks
are claimed ahead for it: as many as may start within `SOON` seconds. Otherwise a limit that permits one
start every 20 ms would lose the time of a claim after each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from itertools import count
from math import ceil, inf

from treadle.item import AvoidedLane, Limit, Ref

from .bounded import WaitingTask
from .limit_rules import LimitRule

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
        "key",
        "lanes",
        "limits",
        "most",
        "running",
        "soon",
        "wait",
        "waiting",
    )

    def __init__(self, key: Ref, limits: tuple[Limit, ...], lanes: AvoidedLane) -> None:
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
    """The lines of one doer: which are open, which are closed and until when."""

    def __init__(self, rules: Sequence[LimitRule], owner: str) -> None:
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
        self._closed_by: dict[Limit, dict[LimitLine, None]] = {}
        self.held: dict[Limit, int] = {}
        """Permits that running tasks of this process hold."""
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
        return min([limit.limit - self.held.get(limit, 0) for limit in self.shared], default=inf)

    # -- tasks -----------------------------------------------------------------------------------------

    def line_of(self, lane: Ref) -> LimitLine:
        tenant, name = lane
        key = (tenant if self.keyed else "", name if self._by_lane else "")
        line = self._lines.get(key)
        if line is None:
            limits = tuple(rule.limit_for(self._owner, tenant, name) for rule in self._rules)
            line = self._lines[key] = LimitLine(key, limits, lane if self._by_lane else (tenant, None))
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
            for closed in self._closed_by.pop(limit, ()):
                self._reopen(closed)
        self._file(line)

    def is_full(self, line: LimitLine) -> bool:
        """Whether tasks of this process hold all permits of one of its limits."""
        return any(self.held.get(limit, 0) >= limit.limit for limit in line.concurrency)

    def count_running(self, line: LimitLine, change: int) -> None:
        """Tasks of the line have started with permits, or ended."""
        if not line.concurrency or not change:
            return
        line.running += change
        for limit in line.concurrency:
            held = self.held.get(limit, 0) + change
            if held:
                self.held[limit] = held
            else:
                self.held.pop(limit, None)

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
                self._closed_by.setdefault(limit, {})[line] = None
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
        closed = self._closed_by.get(limit)
        if closed is not None:
            closed.pop(line, None)
            if not closed:
                del self._closed_by[limit]

    def _file(self, line: LimitLine) -> None:
        """Keep the line in the tables that it belongs to now; in none if nothing is known of it."""
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
