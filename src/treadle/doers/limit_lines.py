"""LimitLines: tasks that wait for permits, in one line per set of limits. No I/O, no clock.

A line is *open*, and permits may be asked for, or *closed*: one of its limits is known to be reached. A
closed line reopens at a time, or when a task of this process returns a permit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf

from treadle.item import Limit, Ref

from .bounded import WaitingTask
from .limit_rules import LimitRule

# Between two requests for a permit that other processes hold: the waits double from the first to the last.
WAIT_FIRST, WAIT_LAST = 0.05, 1.0


class LimitLine:
    """Tasks that wait for permits of the same limits, and what is known of these limits."""

    __slots__ = (
        "asked",
        "closed_until",
        "concurrency",
        "key",
        "limits",
        "most",
        "ref",
        "running",
        "wait",
        "waiting",
    )

    def __init__(self, key: Ref, limits: tuple[Limit, ...], ref: Ref | None) -> None:
        self.key = key
        self.limits = limits
        self.concurrency = tuple(limit for limit in limits if limit.algorithm == "slots")
        """The limits whose permits a task holds while it runs, and then returns."""
        self.most = min(limit.limit for limit in limits)
        self.ref = ref
        """The lane, if the line holds one lane only."""
        self.waiting: list[WaitingTask] = []
        self.asked = False
        """Permits for some of its tasks are being asked for."""
        self.running = 0
        """How many of its tasks run and hold permits."""
        self.closed_until: float | None = None
        self.wait = WAIT_FIRST


class LimitLines:
    """The lines of one doer: which are open, which are closed and until when."""

    def __init__(self, rules: Sequence[LimitRule], owner: str) -> None:
        self._rules = rules
        self._owner = owner
        scopes = {rule.per for rule in rules}
        self._by_lane = "lane" in scopes
        self.keyed = self._by_lane or "tenant" in scopes
        """Whether lanes or tenants have limits of their own."""
        self._lines: dict[Ref, LimitLine] = {}
        self._open: dict[Ref, LimitLine] = {}
        self._closed: dict[Ref, LimitLine] = {}
        self._reopening: list[tuple[float, int, LimitLine]] = []
        self._seq = count()
        self._closed_by: dict[Limit, set[LimitLine]] = {}
        self.held: dict[Limit, int] = {}
        """Permits that running tasks of this process hold."""
        self.closed_tasks = 0
        """How many tasks wait in closed lines."""

    @property
    def open(self) -> Collection[LimitLine]:
        """The open lines in which tasks wait."""
        return self._open.values()

    @property
    def any_closed(self) -> bool:
        return bool(self._closed)

    def closed_lanes(self) -> frozenset[Ref]:
        """The lanes of closed lines, as far as they are known here."""
        refs: set[Ref] = set()
        for line in self._closed.values():
            refs.update((line.ref,) if line.ref else (waiting.lane for waiting in line.waiting))
        return frozenset(refs)

    # -- tasks -----------------------------------------------------------------------------------------

    def line_of(self, lane: Ref) -> LimitLine:
        tenant, name = lane
        key = (tenant if self.keyed else "", name if self._by_lane else "")
        line = self._lines.get(key)
        if line is None:
            limits = tuple(rule.limit_for(self._owner, tenant, name) for rule in self._rules)
            line = self._lines[key] = LimitLine(key, limits, lane if self._by_lane else None)
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

    def close(self, line: LimitLine, until: float, *, until_returned: bool) -> None:
        """Close a line. until_returned: it reopens earlier if a permit of its limits is returned here."""
        if line.closed_until is None:
            self.closed_tasks += len(line.waiting)
        line.closed_until = until
        if until < inf:
            heappush(self._reopening, (until, next(self._seq), line))
        for limit in line.concurrency:
            if until_returned:
                self._closed_by.setdefault(limit, set()).add(line)
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
            closed.discard(line)
            if not closed:
                del self._closed_by[limit]

    def _file(self, line: LimitLine) -> None:
        """Keep the line in the tables that it belongs to now; in none if nothing is known of it."""
        closed = line.closed_until is not None
        _keep(self._closed, line, closed)
        _keep(self._open, line, not closed and bool(line.waiting))
        _keep(self._lines, line, closed or line.asked or bool(line.waiting) or line.running > 0)


def _keep(lines: dict[Ref, LimitLine], line: LimitLine, wanted: bool) -> None:
    if wanted:
        lines[line.key] = line
    elif lines.get(line.key) is line:
        del lines[line.key]
