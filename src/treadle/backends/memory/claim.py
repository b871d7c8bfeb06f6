"""Claim: make due items ready, doom overdue ones, then lease doomed and ready items, fairly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from treadle.bulk_action import BULK_TYPE
from treadle.item import Claim, Demand, Lease
from treadle.store.rules import MOST_DOOMED, PORTION
from treadle.store.rules.limits import SharedRooms

from .fairness import NONE_HELD, FairOrder, MergedLine, ParkedItems, ReadyLine
from .orders import drop_ended
from .rows import ItemKind, MemoryWorker, Row
from .tables import MemoryTables, UnknownTypeSearch
from .transitions import doom, expire, lease, leave_container, make_ready, park
from .workers import remove_lapsed

MOST_PARKED = 10_000
"""How many rows one claim parks before it lets other verbs run."""


def claim(store: MemoryTables, demand: Demand, now: float) -> Claim:
    more = remove_lapsed(store, now)
    worker = store.workers.get(demand.worker)
    if worker is None:
        return Claim(alive=False)
    if demand.orders not in (None, store.orders_version):
        return Claim(fairness=demand.fairness, orders=store.orders_version)
    drop_ended(store, now)
    more = _process_time(store, demand, now) or more
    doomed = _lease_doomed(store, demand, worker, now)
    ready = HandOut(store, demand, worker, now)
    leases = ready.run()
    next_due = 0.0 if more or not ready.may_park else _next_due(store, demand, now)
    return Claim((*doomed, *leases), None, next_due)


# Most claims find these tables empty. Each is looked into only if it is not.


def _process_time(store: MemoryTables, demand: Demand, now: float) -> bool:
    """Process portions of the items that are due or have expired, and the items of unknown types. True: there
    may be more."""
    due = expired = 0
    if store.scheduled.queues:
        for row in store.scheduled.take_due(now, PORTION):
            make_ready(store, row, row.due_at)
            due += 1
    if store.deadlines.size:
        for watch in store.deadlines.take_until(now, PORTION):
            expire(store, watch)
            expired += 1
    if demand.unknown_grace is not None:
        _doom_unknown_types(store, demand.unknown_grace, now)
    return due >= PORTION or expired >= PORTION


def _doom_unknown_types(store: MemoryTables, grace: float, now: float) -> None:
    """Doom the items that were ready for longer than this while no live worker had their type."""
    searches = store.unknown_searches
    if store.workers_of_all_types:
        searches.clear()
        return
    for type in [type for type in searches if type not in store.types or type in store.workers_by_type]:
        del searches[type]
    for type in store.types:
        if type not in store.workers_by_type and type != BULK_TYPE:
            _doom_type(store, type, grace, now)


def _doom_type(store: MemoryTables, type: str, grace: float, now: float) -> None:
    since = store.unknown_since
    if now - max(since.get(type, -math.inf), since.get(None, -math.inf)) <= grace:
        return
    search = store.unknown_searches.get(type)
    if search is None or now - search.at > grace:
        found = (row for kind in store.types[type] if kind.counts["ready"] for row in _ready(store, kind))
        search = store.unknown_searches[type] = UnknownTypeSearch(now, found)
    for row in search.take_until(now - grace):
        doom(store, row, "unknown_type")


def _ready(store: MemoryTables, kind: ItemKind) -> Iterator[Row]:
    parked = store.parked.get(kind.type)
    aside = parked.find(kind.queue, kind.tenant, kind.lane) if parked is not None else None
    for line in (kind.line, aside):
        if line is not None:
            yield from (row for row in line if row.kind is kind)


def _lease_doomed(store: MemoryTables, demand: Demand, worker: MemoryWorker, now: float) -> list[Lease]:
    """Doomed items of the types that the worker has, or that no live worker has."""
    if not store.doomed.types:
        return []
    types = demand.types

    def wanted(type: str) -> bool:
        return types is None or type in types or not store.is_known(type)

    rows = store.doomed.take(wanted, demand.queues, demand.tenants, MOST_DOOMED)
    return [lease(store, row, worker, now) for row in rows]


def _next_due(store: MemoryTables, demand: Demand, now: float) -> float | None:
    if not store.scheduled.queues:
        return None
    at = store.scheduled.next_at(demand.queues, demand.tenants)
    return None if at is None else max(0.0, at - now)


class HandOut:
    """Leases ready rows until the demand is met, or nothing is left that fits."""

    def __init__(self, store: MemoryTables, demand: Demand, worker: MemoryWorker, now: float) -> None:
        self._store = store
        self._demand = demand
        self._worker = worker
        self._now = now
        self._room = None if demand.types is None else dict(demand.types)
        """How many more items of each type are wanted. None: any."""
        self._shared = SharedRooms(demand) if demand.shared else None
        self.left = demand.limit if self._room is None else min(demand.limit, sum(self._room.values()))
        self.may_park = MOST_PARKED
        """How many more rows this claim parks. At 0 it is cut short, and the next claim continues."""
        self._avoided: list[Row] = []
        """Rows to park at the end: parked now, they would be met again."""
        self._leases: list[Lease] = []
        self._just_held: str | None = None
        """The type of a strict lane that the row served last holds now."""
        self._held = store.strict_lanes.of_types(demand.strict) if demand.strict else NONE_HELD
        """By type: the strict lanes that are held, and by which row."""

    def run(self) -> list[Lease]:
        if self._held:
            self._serve_holders()
        while self.left > 0 and self._serve_in_order(self._parked()):
            pass
        return self._leases

    def _parked(self) -> list[ParkedItems]:
        """The parked items of the types that are wanted."""
        parked, room = self._store.parked, self._room
        if not parked or room is None:
            return list(parked.values())
        return [parked[type] for type, left in room.items() if left > 0 and type in parked]

    def _serve_in_order(self, parked: Sequence[ParkedItems]) -> bool:
        """Serve line after line. True: a parked type has no more room, and a new order must leave it out."""
        store = self._store
        if not parked and not store.ready.queues.nodes:
            return False
        order = FairOrder([store.ready, *parked], self._demand, store.services, self._held)
        full = False
        self._just_held = None
        while self.left > 0 and self.may_park and not full and (line := order.next_line()) is not None:
            filled = self.serve(line, self.left if order.single else 1)
            order.mark_served()
            if self._held and isinstance(line, MergedLine):
                self._leave_out_held(line, order)
            full = filled and bool(parked)
        order.end()
        for row in self._avoided:
            park(store, row)
        self._avoided.clear()
        return full

    def _leave_out_held(self, line: MergedLine, order: FairOrder) -> None:
        """Leave out what is parked in the lane of the row that was served, if the row holds it now."""
        if self._just_held is not None:
            line.leave_out(self._just_held)
            self._just_held = None
        if line.only_left_out:
            order.leave_out_line()

    def _serve_holders(self) -> None:
        """Lease the ready rows that hold their strict lanes."""
        for row in self._store.strict_lanes.ready_for(self._demand, self._store.paused):
            if self.left <= 0:
                break
            if row.deadline is not None and row.deadline <= self._now:
                doom(self._store, row, "expired")
            elif self._use_room(row.kind.type):
                leave_container(row)
                self._leases.append(lease(self._store, row, self._worker, self._now, self._demand.buffered))
                self._store.strict_lanes.hold(row)
                self.left -= 1

    def _use_room(self, type: str) -> bool:
        """Take room for an item of this type. False: there is none."""
        room = self._room
        if room is None:
            return True
        if room.get(type, 0) <= 0:
            return False
        room[type] -= 1
        if self._shared is not None:
            self._shared.use(type, room)
        return True

    def serve(self, line: ReadyLine | MergedLine, most: int) -> bool:
        """Lease up to `most` rows of a line. Rows that are not wanted are parked, so that later claims do not
        meet them again. True: a type has no more room."""
        store, demand, room = self._store, self._demand, self._room
        worker, now, shared = self._worker, self._now, self._shared
        buffered, held = demand.buffered, self._held
        left, filled = most, False
        while left > 0 and (row := line.pop()) is not None:
            row.container = None
            if row.deadline is not None and row.deadline <= now:
                doom(store, row, "expired")
                continue
            if (demand.avoid and demand.avoids(row.kind.type, row.kind.tenant, row.kind.lane)) or (
                held and (row.kind.tenant, row.kind.lane) in held.get(row.kind.type, ())
            ):
                self._avoided.append(row)
                self.may_park -= 1
                if not self.may_park:
                    break
                continue
            if room is not None:
                type = row.kind.type
                free = room.get(type, 0) - 1
                if free < 0:
                    park(store, row)
                    self.may_park -= 1
                    if not self.may_park:
                        break
                    continue
                room[type] = free
                filled = filled or not free
                if shared is not None and shared.use(type, room):
                    filled = True
            self._leases.append(lease(store, row, worker, now, buffered))
            if held and row.kind.type in held:
                store.strict_lanes.hold(row)
                self._just_held = row.kind.type
            left -= 1
        self.left -= most - left
        return filled
