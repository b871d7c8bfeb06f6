"""Claim: work off what time has brought, then hand out what is doomed and what is ready, in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.item import Claim, Demand, Lease
from treadle.rules import MOST_DOOMED, PORTION

from .lines import Line, Lines
from .moves import doom, expire, lease, make_ready, park
from .rows import Row, Worker
from .store import Store
from .strays import doom_strays
from .walk import Walk
from .workers import bury_lapsed


def claim(store: Store, demand: Demand, now: float) -> Claim:
    bury_lapsed(store, now)
    worker = store.workers.get(demand.worker)
    if worker is None:
        return Claim(alive=False)
    _work_off(store, demand, now)
    leases = [
        *_hand_out_doomed(store, demand, worker, now),
        *HandOut(store, demand, worker, now).run(),
    ]
    return Claim(tuple(leases), None, _next_due(store, demand, now))


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
        self._left = demand.limit
        self._room = None if demand.types is None else dict(demand.types)
        self._leases: list[Lease] = []

    def run(self) -> list[Lease]:
        if self._left > 0:
            self._take_parked()
        if self._left > 0:
            self._take_ready()
        return self._leases

    def _take_parked(self) -> None:
        parked = self._parked()
        if not parked:
            return
        walk = Walk(parked.values(), self._demand, self._store.turns)
        while self._left > 0 and (lines := walk.next()):
            row = _first_of(lines)
            self._offer(row)
            walk.served()
            if self._room is not None and self._room[row.kind.type] <= 0:
                walk.leave_out(parked[row.kind.type])
        walk.end()

    def _parked(self) -> Mapping[str, Lines]:
        """Of what is parked: the types that are wanted and have room."""
        parked, room = self._store.parked, self._room
        if not parked or room is None:
            return dict(parked)
        return {type: parked[type] for type, left in room.items() if left > 0 and type in parked}

    def _take_ready(self) -> None:
        walk = Walk((self._store.ready,), self._demand, self._store.turns)
        while self._left > 0 and (lines := walk.next()):
            self._serve(lines[0], self._left if walk.alone else 1)
            walk.served()
        walk.end()

    def _serve(self, line: Line, most: int) -> None:
        """Hand out up to so many of a line."""
        until = self._left - most
        while self._left > until and (row := line.pop()) is not None:
            self._offer(row)

    def _offer(self, row: Row) -> None:
        """Hand it out if it fits. If not, it steps aside, out of the way of those behind it."""
        row.pile = None
        if row.deadline is not None and row.deadline <= self._now:
            doom(self._store, row, "expired")
            return
        if self._room is not None:
            room = self._room.get(row.kind.type, 0)
            if room <= 0:
                park(self._store, row)
                return
            self._room[row.kind.type] = room - 1
        self._left -= 1
        self._leases.append(lease(self._store, row, self._worker, self._now))


def _first_of(lines: Sequence[Line]) -> Row:
    """Take the row that comes before all others in these lines."""
    firsts = [(spot, line) for line in lines if (spot := line.first()) is not None]
    row = min(firsts, key=lambda first: first[0][:2])[1].pop()
    assert row is not None
    return row
