"""Overview: how the store stands. Each index is read no further than a bound, however many items it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from treadle.fleet import Fleet
from treadle.item import Status, WorkerState
from treadle.item_facts import Overview, QueueAge, UnservedType
from treadle.rules.watching import (
    MOST_AGED_LINES,
    CountKey,
    capped_counts,
    unserved_since,
)

from .statements import NEXT, Tx, statements
from .status_codes import BLOCKED, DEAD, PARKED, READY, SCHEDULED, STATUS, doomed
from .watch import ALL_TENANTS, Tenants, lines, lost_types, one_tenant, parked_types, pauses
from .workers import workers

_SQL = statements("overview")
_FAIRNESS = statements("fairness")

_WAITING = (BLOCKED, SCHEDULED, doomed(BLOCKED), doomed(SCHEDULED), doomed(READY))

# How many items are looked at in all. A long queue among many is counted less far than the caller asked for.
_MOST_COUNTED = 5_000
# Of these, the index does not have the type: each takes a look into the table.
_MOST_LOOKED_UP = 2_500
_MOST_HEADS = 600
_LEAST = 100


def overview(tx: Tx, tenant: str | None, cap: int) -> Overview:
    fleet, tenants = workers(tx), ALL_TENANTS if tenant is None else one_tenant(tenant)
    parked = parked_types(tx)
    counts = _Counts(tx, tenants, max(0, cap))
    counts.count_waiting()
    counts.count_dead()
    counts.count_ready()
    counts.count_parked(parked)
    counts.count_leased()
    return Overview(
        now=tx.now,
        counts=capped_counts(counts.found, cap, counts.more),
        ages=tuple(_ages(tx, tenants, parked)),
        unserved=tuple(_unserved(tx, fleet, cap, None if tenant is None else counts.ready)),
        paused=tuple(pauses(tx, tenant)),
        workers=tuple(fleet),
    )


class _Counts:
    def __init__(self, tx: Tx, tenants: Tenants, cap: int) -> None:
        self._tx = tx
        self._tenants = tenants
        self._cap = cap
        self.found: Counter[CountKey] = Counter()
        self.more: set[tuple[str, Status]] = set()
        """The queues and statuses of which there may be more than were counted."""
        self.ready: Counter[str] = Counter()
        """By type: those that wait for a worker."""

    def _add(self, queue: str, status: int, tenant: str, type: str, count: int) -> None:
        self.found[tenant, queue, type, STATUS[status]] += count
        if status in (READY, PARKED):
            self.ready[type] += count

    def _share(self, most: int, queues: Sequence[str]) -> int:
        """How many items of each queue are counted. One more than the cap says that there are more."""
        return min(self._cap + 1, max(_LEAST, most // max(1, len(queues))))

    def count_waiting(self) -> None:
        for status in _WAITING:
            queues = _queues(self._tx, _SQL["next_waiting_queue"], status)
            most = self._share(_MOST_COUNTED, queues)
            for queue in queues:
                self._count(queue, status, "waiting", (status, queue, *self._tenants), most)

    def count_dead(self) -> None:
        queues = _queues(self._tx, _SQL["next_dead_queue"])
        most = self._share(_MOST_COUNTED, queues)
        for queue in queues:
            self._count(queue, DEAD, "dead", (queue, *self._tenants), most)

    def _count(self, queue: str, status: int, name: str, within: tuple[object, ...], most: int) -> None:
        """Count up to `most` items of a queue and status, in the order of the index."""
        bound = self._tx.row(_SQL[f"{name}_bound"], *within, most)
        if bound is None:
            rows = self._tx.rows(_SQL[name], *within)
        else:
            rows = self._tx.rows(_SQL[f"{name}_before"], *within, *bound)
            rows.append((*bound, most - sum(count for _, _, count in rows)))
            self.more.add((queue, STATUS[status]))
        for tenant, type, count in rows:
            self._add(queue, status, tenant, type, count)

    def count_ready(self) -> None:
        queues = _queues(self._tx, _FAIRNESS["ready_queue"])
        most = self._share(_MOST_LOOKED_UP, queues)
        for queue in queues:
            rows = self._tx.rows(_SQL["ready"], queue, *self._tenants, most)
            for tenant, type, count in rows:
                self._add(queue, READY, tenant, type, count)
            if sum(row[2] for row in rows) == most:
                self.more.add((queue, "ready"))

    def count_parked(self, types: Sequence[str]) -> None:
        for type in types:
            queues = list(self._tx.names(_FAIRNESS["parked_queue"], type))
            most = self._share(_MOST_COUNTED // len(types), queues)
            for queue in queues:
                self._count(queue, PARKED, "parked", (type, queue, *self._tenants), most)

    def count_leased(self) -> None:
        rows = self._tx.rows(_SQL["leased"], _MOST_COUNTED)
        for (queue, tenant, type, status), count in Counter(rows).items():
            if self._tenants in (ALL_TENANTS, one_tenant(tenant)):
                self._add(queue, status, tenant, type, count)
                if len(rows) == _MOST_COUNTED:
                    self.more.add((queue, STATUS[status]))


def _queues(tx: Tx, sql: str, *within: int) -> list[str]:
    """The queues in an index, each found by one step."""
    found: list[str] = []
    queue = tx.value(sql, *within, "")
    while queue is not None:
        found.append(queue)
        queue = tx.value(sql, *within, queue + NEXT)
    return found


def _ages(tx: Tx, tenants: Tenants, parked: Sequence[str]) -> Iterator[QueueAge]:
    queues = {*tx.names(_FAIRNESS["ready_queue"])}
    queues |= {queue for type in parked for queue in tx.names(_FAIRNESS["parked_queue"], type)}
    most = min(MOST_AGED_LINES, _MOST_HEADS // max(1, len(queues)) + 1)
    for queue in sorted(queues):
        heads = lines(tx, queue, tenants, parked, most)
        oldest = min((since for _, _, since, *_ in heads if since is not None), default=None)
        if oldest is not None:
            yield QueueAge(queue, oldest)


def _unserved(
    tx: Tx, workers: Sequence[WorkerState], cap: int, ready: Mapping[str, int] | None
) -> Iterator[UnservedType]:
    """`ready`: the ready items of a tenant, by type. None: of all tenants."""
    lost, fleet = lost_types(tx), Fleet(workers, tx.now)
    for type in tx.names(_SQL["next_ready_type"]) if ready is None else sorted(ready):
        if not fleet.serves(type=type):
            count = tx.value(_SQL["ready_of_type"], type, cap) if ready is None else min(ready[type], cap)
            yield UnservedType(type, count, unserved_since(type, workers, lost, tx.now))
