"""Isolation: an item whose workers died runs beside ever fewer others.

One item may kill its process: by a crash of native code, by its hunger for memory. All items of the process
are lost with it, and the store cannot tell which of them did it. So after n losses in a row an item runs only
while at most `limit / 2 ** n` items are in flight here. Each death frees half of the neighbours, and the one
at fault is soon alone.

Lost leases come first: the others of the same claim that do not fit beside them are given back. If too much
is in flight already, one lost item waits here until enough has ended, and nothing is claimed meanwhile. Its
patience is limited, so that long handlers do not stop the worker: it is given back for a while, and waits
twice as long the next time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from treadle.engine.timers import Timer, Timers
from treadle.item import Lease, Ref

from .held import HeldLease, HeldLeases

USUAL_LIMIT = 200
"""The limit of a doer that has none."""
LONGEST_PATIENCE = 3600.0
REMEMBERED = 1000
"""How many items that were given back are remembered, with their patience."""


class Isolation:
    """limit: how many items the worker runs at once.
    patience: seconds that a lost item waits for room the first time.
    give_back: gives a lease back, to be claimed again after a delay.
    on_room: called when more may be claimed."""

    def __init__(
        self,
        limit: int | None,
        held: HeldLeases,
        timers: Timers,
        patience: float,
        give_back: Callable[[HeldLease, float], None],
        on_room: Callable[[], None],
    ) -> None:
        self._limit = limit or USUAL_LIMIT
        self._held = held
        self._timers = timers
        self._first_patience = patience
        self._patience: dict[Ref, float] = {}
        self._give_back = give_back
        self._on_room = on_room
        self._bounds: dict[int, int] = {}
        """By the tokens of lost items that run here: how many may be in flight."""
        self._waiting: tuple[HeldLease, Callable[[], None], Timer] | None = None
        self._ask: float = math.inf
        """How much the next claim may ask for: few, if many lost items were given back."""

    def bound(self, lease: Lease) -> float:
        """How many items may be in flight while this one is, itself included."""
        return max(1, self._limit >> lease.losses) if lease.losses else math.inf

    def room(self) -> float:
        """How many more items may be claimed now."""
        if self._waiting is not None:
            return 0
        return min(self._ask, max(0, self._most() - self._in_flight())) if self._bounds else self._ask

    def admit(self, leases: Sequence[Lease]) -> tuple[list[Lease], list[Lease]]:
        """The leases of a claim to take, lost ones first, and those to give back. None is held yet. It also
        sets how much the next claim may ask for."""
        lost = [lease for lease in leases if lease.losses]
        if not lost and not self._bounds:
            self._ask = math.inf if self._ask >= self._limit else self._ask * 2
            return list(leases), []
        taken, refused = self._divide([*lost, *(lease for lease in leases if not lease.losses)])
        if any(lease.losses for lease in refused):
            self._ask = min(self.bound(lease) for lease in refused)
        return taken, refused

    def _divide(self, leases: Sequence[Lease]) -> tuple[list[Lease], list[Lease]]:
        """Those that may run beside each other, with the one that waits, and those to give back."""
        taken: list[Lease] = []
        refused: list[Lease] = []
        most, flying = self._most(), self._in_flight()
        may_wait = self._waiting is None
        for lease in leases:
            bound = min(most, self.bound(lease))
            if flying < bound:
                most, flying = bound, flying + 1
                taken.append(lease)
            elif lease.losses and may_wait:
                may_wait = False
                taken.append(lease)
            else:
                refused.append(lease)
        return taken, refused

    def start(self, held: HeldLease, start: Callable[[], None]) -> None:
        """Start an item that was lost before: now, or once enough of the others have ended."""
        self._held.on_drop = self._dropped
        if self._fits(held.lease, others=self._in_flight() - 1):
            self._begin(held, start)
            return
        ref = (held.lease.tenant, held.lease.id)
        patience = self._patience.get(ref, self._first_patience)
        self._waiting = held, start, self._timers.after(patience, self._lose_patience)

    def clear(self) -> HeldLease | None:
        """Forget the item that waits, and return it."""
        if self._waiting is None:
            return None
        held, _, timer = self._waiting
        timer.cancel()
        self._waiting = None
        return held

    def _begin(self, held: HeldLease, start: Callable[[], None]) -> None:
        lease = held.lease
        self._patience.pop((lease.tenant, lease.id), None)
        self._bounds[lease.token] = int(self.bound(lease))
        start()

    def _lose_patience(self) -> None:
        held = self.clear()
        if held is None:
            return
        ref = (held.lease.tenant, held.lease.id)
        patience = self._patience.pop(ref, self._first_patience)
        self._patience[ref] = min(2 * patience, LONGEST_PATIENCE)
        if len(self._patience) > REMEMBERED:
            del self._patience[next(iter(self._patience))]
        self._give_back(held, patience)

    def _dropped(self, lease: Lease) -> None:
        """A lease has ended here."""
        self._bounds.pop(lease.token, None)
        if self._waiting is not None:
            held, start, _ = self._waiting
            if held.over or held.lease.token == lease.token:
                self.clear()
            elif self._fits(held.lease, others=self._in_flight()):
                self.clear()
                self._begin(held, start)
        if not self._bounds and self._waiting is None:
            self._held.on_drop = None
        self._on_room()

    def _fits(self, lease: Lease, others: int) -> bool:
        """Whether a lost item may run beside this many others."""
        return others < min(self._most(), self.bound(lease))

    def _most(self) -> float:
        """How many items may be in flight beside the lost ones that run here, themselves included."""
        return min(self._bounds.values(), default=math.inf)

    def _in_flight(self) -> int:
        """Held items, without the one that waits."""
        return len(self._held.by_token) - (self._waiting is not None)
