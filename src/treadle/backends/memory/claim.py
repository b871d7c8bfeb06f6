"""Claim: work off what time has brought, then hand out what is doomed and what is ready, in turn."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.item import Claim, Demand, Lease
from treadle.rules import MOST_DOOMED, PORTION

from .lines import Line, Lineup, Parked
from .moves import doom, expire, lease, make_ready, park
from .rows import Worker
from .store import Store
from .strays import doom_strays
from .walk import Walk
from .workers import bury_lapsed

MOST_PARKED = 10_000
"""How many rows one claim lets step aside before it lets others have their turn."""


def claim(store: Store, demand: Demand, now: float) -> Claim:
    bury_lapsed(store, now)
    worker = store.workers.get(demand.worker)
    if worker is None:
        return Claim(alive=False)
    _work_off(store, demand, now)
    doomed = _hand_out_doomed(store, demand, worker, now)
    ready = HandOut(store, demand, worker, now)
    leases = ready.run()
    next_due = 0.0 if ready.cut_short else _next_due(store, demand, now)
    return Claim((*doomed, *leases), None, next_due)


def _work_off(store: Store, demand: Demand, now: float) -> None:
    """Portions of what is due, what has expired, and what nobody knows."""
    for row in store.due.take(now, PORTION):
        make_ready(store, row, now)
    for _ in range(PORTION):
        expiry = store.deadlines.pop_until(now)
        if expiry is None:
            break
        expire(store, expiry)
    if demand.unknown_grace is not None:
        doom_strays(store, demand.unknown_grace, now)


def _next_due(store: Store, demand: Demand, now: float) -> float | None:
    at = store.due.next_at(demand.queues, demand.tenants)
    return None if at is None else max(0.0, at - now)


def _hand_out_doomed(store: Store, demand: Demand, worker: Worker, now: float) -> list[Lease]:
    types = demand.types

    def has(type: str) -> bool:
        return types is None or type in types or not store.knows(type)

    rows = store.doomed.take(has, demand.queues, demand.tenants, MOST_DOOMED)
    return [lease(store, row, worker, now) for row in rows]


class HandOut:
    """Hands out ready rows of one demand until it is met, or nothing fits any more."""

    def __init__(self, store: Store, demand: Demand, worker: Worker, now: float) -> None:
        self._store = store
        self._demand = demand
        self._worker = worker
        self._now = now
        self._room = None if demand.types is None else dict(demand.types)
        self._left = demand.limit if self._room is None else min(demand.limit, sum(self._room.values()))
        self._may_park = MOST_PARKED
        self._leases: list[Lease] = []

    @property
    def cut_short(self) -> bool:
        """So much stood in the way that not all of it was cleared. The next claim goes on."""
        return self._may_park <= 0

    def run(self) -> list[Lease]:
        while self._left > 0 and self._walk(self._parked()):
            pass
        return self._leases

    def _parked(self) -> list[Parked]:
        """Of what is parked: the types that are wanted and have room."""
        parked, room = self._store.parked, self._room
        if not parked or room is None:
            return list(parked.values())
        return [parked[type] for type, left in room.items() if left > 0 and type in parked]

    def _walk(self, parked: Sequence[Parked]) -> bool:
        """Serve line after line in turn. True: some of what is parked fits no more."""
        walk = Walk([self._store.ready, *parked], self._demand, self._store.turns)
        ran_out = False
        while self._left > 0 and not self.cut_short and not ran_out and (line := walk.next()) is not None:
            filled = self._serve(line, self._left if walk.alone else 1)
            walk.served()
            ran_out = filled and bool(parked)
        walk.end()
        return ran_out

    def _serve(self, line: Line | Lineup, most: int) -> bool:
        """Hand out up to so many of a line. Those that do not fit step aside, out of the way of those behind.
        True: there is no more room for one of the types."""
        store, worker, now, room = self._store, self._worker, self._now, self._room
        left, filled = most, False
        while left > 0 and (row := line.pop()) is not None:
            row.pile = None
            if row.deadline is not None and row.deadline <= now:
                doom(store, row, "expired")
                continue
            if room is not None:
                type = row.kind.type
                free = room.get(type, 0) - 1
                if free < 0:
                    park(store, row)
                    self._may_park -= 1
                    if self.cut_short:
                        break
                    continue
                room[type] = free
                filled = filled or not free
            self._leases.append(lease(store, row, worker, now))
            left -= 1
        self._left -= most - left
        return filled
