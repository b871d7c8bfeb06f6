"""Isolation: an item whose workers died runs beside ever fewer others.

One item may kill its process: by a crash of native code, by its hunger for memory. All items of the process
are lost with it, and the store cannot tell which of them did it. Most losses are the fault of none of them: a
deploy, a machine that goes away. So the first loss changes nothing. After n losses in a row an item is on
trial: it runs only while at most `limit / 2 ** (n - 1)` items are in flight here. Each death frees half of
the neighbours, and the one at fault is soon alone.

A trial ends with its attempt, or when the item has run for long enough: for one lease duration after the
second loss, twice as long after each further one. What runs may itself wait for other items, so these must be
claimed at last.

Items on trial come first: the others of the same claim that do not fit beside them are given back. If too
much is in flight already, one item waits here until enough has ended, and nothing is claimed meanwhile. Its
patience is limited: then it is given back for a while, none waits here for four times as long, and the next
time it waits twice as long for a place among twice as many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from treadle.engine.timers import Timer, Timers
from treadle.item import Lease, Ref
from treadle.worker_info import WorkerTrial

from .held import HeldLease, HeldLeases

USUAL_LIMIT = 200
"""The limit of a doer that has none."""
LONGEST_TRIAL = 3600.0
LONGEST_PATIENCE = 60.0
REST = 4.0
"""Factor: after a wait in vain no item waits here for this many times as long."""
LOSSES_BEFORE_TRIAL = 2
"""Losses in a row, after which an item is on trial."""
REMEMBERED = 1000
"""How many items that were given back are remembered."""


class Trial(NamedTuple):
    """An item on trial that runs here. most: how many may be in flight, with itself. until: when it ends at
    the latest."""

    lease: Lease
    most: int
    until: float
    end: Timer


class Waiting(NamedTuple):
    """The item on trial that waits for room. start: starts it. until: when it is given back."""

    held: HeldLease
    start: Callable[[], None]
    until: float
    end: Timer


class Isolation:
    """limit: how many items the worker runs at once.
    lease: seconds that the first trial lasts, and the first wait for room.
    give_back: gives a lease back, to be claimed again after a delay.
    on_room: called when more may be claimed."""

    def __init__(
        self,
        limit: int | None,
        held: HeldLeases,
        timers: Timers,
        lease: float,
        give_back: Callable[[HeldLease, float], None],
        on_room: Callable[[], None],
    ) -> None:
        self._limit = limit or USUAL_LIMIT
        self._held = held
        self._timers = timers
        self._lease = lease
        self._give_back = give_back
        self._on_room = on_room
        self._trials: dict[int, Trial] = {}
        """By the tokens of their leases."""
        self._waiting: Waiting | None = None
        self._will_wait: int | None = None
        """Token of a lease that was admitted to wait, and is not started yet."""
        self._rest: Timer | None = None
        """Runs while no item may wait here."""
        self._in_vain: dict[Ref, int] = {}
        """How often items have waited here in vain."""
        self._ask: float = math.inf
        """How much the next claim may ask for: few, if many items on trial were given back."""
        self.is_idle = True
        """Whether no item is on trial, or was lately: `room` has no bound, and `admit` takes all."""

    def most_beside(self, lease: Lease) -> float:
        """How many items may be in flight while this one runs, with itself. Without a bound: infinity."""
        in_vain = self._in_vain.get((lease.tenant, lease.id), 0) if self._in_vain else 0
        halvings = lease.losses - 1 - in_vain
        return max(1, self._limit >> halvings) if halvings > 0 else math.inf

    def is_on_trial(self, lease: Lease) -> bool:
        return self.most_beside(lease) < math.inf

    def room(self) -> float:
        """How many more items may be claimed now."""
        if self._waiting is not None:
            return 0
        return min(self._ask, max(0, self._most() - self._in_flight())) if self._trials else self._ask

    def admit(self, leases: Sequence[Lease]) -> tuple[list[Lease], list[Lease]]:
        """Choose among the leases of a claim, which are not held yet: those to take, those on trial first,
        and those to give back. If some on trial are given back, the next claims ask for fewer."""
        on_trial = [
            lease for lease in leases if lease.losses >= LOSSES_BEFORE_TRIAL and self.is_on_trial(lease)
        ]
        if not on_trial and not self._trials:
            self._ask = math.inf if self._ask >= self._limit else self._ask * 2
            self.is_idle = self._waiting is None and self._ask == math.inf
            return list(leases), []
        self.is_idle = False
        taken: list[Lease] = []
        refused: list[Lease] = []
        most, flying = self._most(), self._in_flight()
        may_wait = self._waiting is None and self._rest is None
        tokens = {lease.token for lease in on_trial}
        for lease in [*on_trial, *(lease for lease in leases if lease.token not in tokens)]:
            most_now = min(most, self.most_beside(lease))
            if flying < most_now:
                most, flying = most_now, flying + 1
                taken.append(lease)
            elif lease.token in tokens and may_wait:
                may_wait, self._will_wait = False, lease.token
                taken.append(lease)
            else:
                refused.append(lease)
        bounds = [self.most_beside(lease) for lease in refused if lease.token in tokens]
        if bounds:
            self._ask = min(bounds)
        return taken, refused

    def delay(self, lease: Lease) -> float:
        """Seconds after which a lease that was not admitted may be claimed again. While no item may wait
        here, one on trial would come back at once, again and again."""
        return self._patience(lease) if self._rest is not None and self.is_on_trial(lease) else 0.0

    def start(self, held: HeldLease, start: Callable[[], None]) -> None:
        """Start an item on trial: now, or once enough of the others have ended."""
        self._held.on_drop = self._dropped
        self.is_idle = False
        if self._will_wait == held.lease.token:
            self._will_wait = None
        if self._fits(held.lease, others=self._in_flight() - 1):
            self._begin(held, start)
        else:
            patience = self._patience(held.lease)
            end = self._timers.after(patience, self._lose_patience)
            self._waiting = Waiting(held, start, self._timers.now() + patience, end)

    def binding(self, at: Callable[[float], float]) -> WorkerTrial | None:
        """The item on trial that leaves the least room for others. at: from the clock of the timers to the
        store's."""
        if self._waiting is not None:
            lease, until = self._waiting.held.lease, self._waiting.until
            most, waits = int(min(self.most_beside(lease), self._limit)), True
        elif self._trials:
            lease, most, until, _ = min(self._trials.values(), key=lambda trial: trial.most)
            waits = False
        else:
            return None
        # Not exact to the last digit: the same instant has to look the same in the next heartbeat.
        return WorkerTrial(lease.id, lease.tenant, lease.losses, most, round(at(until), 3), waits)

    def clear(self) -> HeldLease | None:
        """Forget the item that waits, and return it."""
        if self._waiting is None:
            return None
        held = self._waiting.held
        self._waiting.end.cancel()
        self._waiting = None
        return held

    def _begin(self, held: HeldLease, start: Callable[[], None]) -> None:
        lease = held.lease
        seconds = min(self._lease * 2.0 ** min(lease.losses - 2, 30), LONGEST_TRIAL)
        end = self._timers.after(seconds, lambda: self._end_trial(lease))
        most, until = int(self.most_beside(lease)), self._timers.now() + seconds
        self._trials[lease.token] = Trial(lease, most, until, end)
        self._in_vain.pop((lease.tenant, lease.id), None)
        start()

    def _end_trial(self, lease: Lease) -> None:
        if self._trials.pop(lease.token, None) is not None:
            self._go_on()

    def _patience(self, lease: Lease) -> float:
        in_vain = self._in_vain.get((lease.tenant, lease.id), 0)
        return min(self._lease * 2.0**in_vain, max(self._lease, LONGEST_PATIENCE))

    def _lose_patience(self) -> None:
        held = self.clear()
        if held is None:
            return
        ref, patience = (held.lease.tenant, held.lease.id), self._patience(held.lease)
        self._in_vain[ref] = self._in_vain.pop(ref, 0) + 1
        if len(self._in_vain) > REMEMBERED:
            del self._in_vain[next(iter(self._in_vain))]
        self._rest = self._timers.after(REST * patience, self._end_rest)
        self._give_back(held, patience)

    def _end_rest(self) -> None:
        self._rest = None

    def _dropped(self, lease: Lease) -> None:
        """A lease has ended here."""
        trial = self._trials.pop(lease.token, None)
        if trial is not None:
            trial.end.cancel()
        if self._waiting is not None and (
            self._waiting.held.over or self._waiting.held.lease.token == lease.token
        ):
            self.clear()
        self._go_on()

    def _go_on(self) -> None:
        """There may be room: for the item that waits, or for a claim."""
        if self._waiting is not None:
            held, start, *_ = self._waiting
            if self._fits(held.lease, others=self._in_flight()):
                self.clear()
                self._begin(held, start)
        if not self._trials and self._waiting is None:
            self._held.on_drop = None
        self._on_room()

    def _fits(self, lease: Lease, others: int) -> bool:
        """Whether an item on trial may run beside this many others."""
        return others < min(self._most(), self.most_beside(lease))

    def _most(self) -> float:
        """How many items may be in flight beside those on trial, themselves included."""
        return min([trial.most for trial in self._trials.values()], default=math.inf)

    def _in_flight(self) -> int:
        """Held items, without the one that waits, or will."""
        held = self._held.by_token
        return len(held) - (self._waiting is not None) - (self._will_wait in held)
