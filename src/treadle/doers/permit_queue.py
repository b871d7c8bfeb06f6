"""PermitQueue: which waiting tasks to ask permits for, and what is known of limits. No I/O, no clock.

Tasks under the same limits wait in one *line*. A line is *open*, and may be asked for, or *shut*: a limit
of its is known to be reached, until a time or until a slot of this process is free again.

    push -> line -> choose -> (ask the store) -> settle -> granted tasks
              ^                                    |
              '--- put back, the line is shut -----'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from treadle.item import Limit, PermitReply, PermitRequest, Ref

from .bounded import Entry
from .limit_rules import LimitRule

# A store that says "in no time" is asked again after this, in seconds.
FLOOR = 0.01
# For slots nobody knows when: the waits between askings double from the first to the last.
SLOTS_FIRST, SLOTS_LAST = 0.05, 1.0


class GateLine:
    """Tasks that fall under the same limits, and how these stand as far as is known."""

    __slots__ = ("asked", "held", "key", "limits", "most", "ref", "shut_until", "slots", "wait", "waiting")

    def __init__(self, key: Ref, limits: tuple[Limit, ...], ref: Ref | None) -> None:
        self.key = key
        self.limits = limits
        self.slots = tuple(limit for limit in limits if limit.algorithm == "slots")
        self.most = min(limit.limit for limit in limits)
        self.ref = ref
        """The lane that it is, if it is one."""
        self.waiting: list[Entry] = []
        self.asked = False
        """Some of its tasks are out, being asked for."""
        self.held = 0
        """How many of its tasks run and hold slots."""
        self.shut_until: float | None = None
        self.wait = SLOTS_FIRST


@dataclass(slots=True)
class Run:
    """Neighbours of one line that are asked for together."""

    line: GateLine
    entries: list[Entry] = field(default_factory=list[Entry])
    cancelled: bool = False
    """They were given up while being asked for: a permit that comes now is not used."""

    def take(self) -> PermitRequest:
        return PermitRequest(self.line.limits, len(self.entries))


class PermitQueue:
    def __init__(self, rules: Sequence[LimitRule], owner: str) -> None:
        self._rules = rules
        self._owner = owner
        scopes = {rule.per for rule in rules}
        self._by_lane, self._by_tenant = "lane" in scopes, "tenant" in scopes
        self.keyed = self._by_lane or self._by_tenant
        self._shared = None in scopes
        self._lines: dict[Ref, GateLine] = {}
        self._open: dict[Ref, GateLine] = {}
        self._shut: dict[Ref, GateLine] = {}
        self._reopening: list[tuple[float, int, GateLine]] = []
        self._seq = count()
        self._blocked_by: dict[Limit, set[GateLine]] = {}
        self.held: dict[Limit, int] = {}
        """Slots that tasks of this process hold."""
        self._asking: list[Run] = []
        self.waiting = 0
        """How many have not started, those being asked for included."""
        self.blocked = 0
        """How many of them wait in shut lines."""

    @property
    def shut(self) -> bool:
        """Whether any line is shut."""
        return bool(self._shut)

    def shut_lanes(self) -> frozenset[Ref]:
        """The lanes of shut lines, as far as they are known here."""
        refs: set[Ref] = set()
        for line in self._shut.values():
            refs.update((line.ref,) if line.ref else (entry.lane for entry in line.waiting))
        return frozenset(refs)

    # -- in and out ------------------------------------------------------------------------------------

    def push(self, entry: Entry) -> None:
        self.waiting += 1
        self._put(self._line(entry.lane), (entry,))

    def choose(self, room: int) -> list[Run]:
        """Take out up to `room` tasks of open lines, in order, to be asked for and then settled or put back.
        One choice at a time.
        """
        runs: list[Run] = []
        by_line: dict[Ref, Run] = {}
        heads = [(line.waiting[0], line) for line in self._open.values()]
        heapify(heads)
        while heads and room > 0:
            room -= 1
            _, line = heappop(heads)
            run = self._run_for(line, runs, by_line)
            run.entries.append(heappop(line.waiting))
            if line.waiting and len(run.entries) < line.most:
                heappush(heads, (line.waiting[0], line))
        self._asking = runs
        self._mark_asked(runs, True)
        return runs

    def _run_for(self, line: GateLine, runs: list[Run], by_line: dict[Ref, Run]) -> Run:
        # Where a limit is common to all lines, whoever asks first gets the permit: the order among lines
        # counts, and only neighbours are asked for together.
        last = runs[-1] if runs and runs[-1].line is line else None
        run = last if self._shared else by_line.get(line.key)
        if run is None:
            run = by_line[line.key] = Run(line)
            runs.append(run)
        return run

    def settle(
        self, runs: Sequence[Run], grants: Sequence[PermitReply], now: float
    ) -> list[tuple[Entry, GateLine]]:
        """What may start, slots counted as held. The rest is put back, and its lines are shut."""
        granted: list[tuple[Entry, GateLine]] = []
        for run, grant in zip(runs, grants, strict=True):
            if not run.cancelled:
                granted.extend((entry, run.line) for entry in self._settle(run, grant, now))
        self._asking = []
        self._mark_asked(runs, False)
        return granted

    def _settle(self, run: Run, grant: PermitReply, now: float) -> list[Entry]:
        granted, denied = run.entries[: grant.count], run.entries[grant.count :]
        self.waiting -= len(granted)
        self._hold(run.line, len(granted))
        if granted:
            run.line.wait = SLOTS_FIRST
        if denied:
            self._put(run.line, denied)
            self._deny(run.line, grant, now)
        elif self._held_here(run.line):
            # Only an end in this process can free one.
            self._close(run.line, inf, by_slots=True)
        return granted

    def put_back(self, runs: Sequence[Run], until: float) -> None:
        """Nothing is known of what was asked for: shut the lines for a while."""
        for run in runs:
            if not run.cancelled:
                self._put(run.line, run.entries)
                self._close(run.line, until, by_slots=False)
        self._asking = []
        self._mark_asked(runs, False)

    def refused(self, entry: Entry, line: GateLine, until: float) -> None:
        """A task that may start could not: it waits again, and its line is left alone for a while."""
        self.waiting += 1
        self._put(line, (entry,))
        self._close(line, until, by_slots=False)

    def clear(self) -> list[Entry]:
        """Forget all that have not started, and say which they were, in order."""
        entries = [entry for line in self._lines.values() for entry in line.waiting]
        for run in self._asking:
            run.cancelled = True
            entries += run.entries
        for line in list(self._lines.values()):
            line.waiting = []
            self._file(line)
        self.waiting = self.blocked = 0
        return sorted(entries)

    # -- time and slots --------------------------------------------------------------------------------

    def reopen(self, now: float) -> bool:
        """Open the lines whose time has come; whether there were any."""
        opened = False
        while self._reopening and self._reopening[0][0] <= now:
            until, _, line = heappop(self._reopening)
            if line.shut_until == until:
                self._reopen(line)
                opened = True
        return opened

    def next_reopening(self) -> float | None:
        while self._reopening and self._reopening[0][2].shut_until != self._reopening[0][0]:
            heappop(self._reopening)
        return self._reopening[0][0] if self._reopening else None

    def ended(self, line: GateLine) -> None:
        """A task that held the line's slots has ended: who was blocked by them may try again."""
        self._hold(line, -1)
        for limit in line.slots:
            for blocked in self._blocked_by.pop(limit, ()):
                self._reopen(blocked)
        self._file(line)

    def _held_here(self, line: GateLine) -> bool:
        return any(self.held.get(limit, 0) >= limit.limit for limit in line.slots)

    def _hold(self, line: GateLine, change: int) -> None:
        if not line.slots or not change:
            return
        line.held += change
        for limit in line.slots:
            held = self.held.get(limit, 0) + change
            if held:
                self.held[limit] = held
            else:
                self.held.pop(limit, None)

    def _deny(self, line: GateLine, grant: PermitReply, now: float) -> None:
        if grant.retry_after > 0:
            self._close(line, now + max(grant.retry_after, FLOOR), by_slots=False)
        else:
            self._close(line, now + line.wait, by_slots=True)
            line.wait = min(line.wait * 2, SLOTS_LAST)

    # -- lines -----------------------------------------------------------------------------------------

    def _line(self, lane: Ref) -> GateLine:
        tenant, name = lane
        key = (tenant if self.keyed else "", name if self._by_lane else "")
        line = self._lines.get(key)
        if line is None:
            limits = tuple(rule.limit_for(self._owner, tenant, name) for rule in self._rules)
            line = self._lines[key] = GateLine(key, limits, lane if self._by_lane else None)
        return line

    def _put(self, line: GateLine, entries: Sequence[Entry]) -> None:
        for entry in entries:
            heappush(line.waiting, entry)
        if line.shut_until is not None:
            self.blocked += len(entries)
        self._file(line)

    def _mark_asked(self, runs: Sequence[Run], asked: bool) -> None:
        for run in runs:
            run.line.asked = asked
            self._file(run.line)

    def _close(self, line: GateLine, until: float, *, by_slots: bool) -> None:
        if line.shut_until is None:
            self.blocked += len(line.waiting)
        line.shut_until = until
        if until < inf:
            heappush(self._reopening, (until, next(self._seq), line))
        for limit in line.slots:
            if by_slots:
                self._blocked_by.setdefault(limit, set()).add(line)
            else:
                self._unblock(limit, line)
        self._file(line)

    def _reopen(self, line: GateLine) -> None:
        if line.shut_until is None:
            return
        line.shut_until = None
        self.blocked -= len(line.waiting)
        for limit in line.slots:
            self._unblock(limit, line)
        self._file(line)

    def _unblock(self, limit: Limit, line: GateLine) -> None:
        blocked = self._blocked_by.get(limit)
        if blocked is not None:
            blocked.discard(line)
            if not blocked:
                del self._blocked_by[limit]

    def _file(self, line: GateLine) -> None:
        """Keep the line where it belongs now, or nowhere if there is nothing to say about it."""
        shut = line.shut_until is not None
        _keep(self._shut, line, shut)
        _keep(self._open, line, not shut and bool(line.waiting))
        _keep(self._lines, line, shut or line.asked or bool(line.waiting) or line.held > 0)


def _keep(lines: dict[Ref, GateLine], line: GateLine, wanted: bool) -> None:
    if wanted:
        lines[line.key] = line
    elif lines.get(line.key) is line:
        del lines[line.key]
