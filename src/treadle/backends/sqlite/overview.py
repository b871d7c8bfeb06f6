"""Overview: how the store stands.

Open and dead items are counted by reading their tables whole, portion by portion, until the time is up. If
it is up before the end, the portions that were read are spread over the table, and say about how many items
there are. Each index is read then, no further than a bound: what there is little of is exact all the same.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from math import ceil, gcd
from typing import Final, Literal, TypeAlias

from treadle.item import Status, WorkerState
from treadle.item_facts import Overview, QueueAge, UnservedType
from treadle.store.fleet import Fleet
from treadle.store.rules.watching import MOST_AGED_LINES, CountKey, shown_counts, unserved_since

from .statements import NEXT, Tx, statements
from .status_codes import BLOCKED, DEAD, PARKED, READY, SCHEDULED, STATUS, doomed
from .watch import ALL_TENANTS, Tenants, lines, lost_types, one_tenant, parked_types, pauses
from .workers import workers

_SQL = statements("overview")
_FAIRNESS = statements("fairness")

_WAITING = (BLOCKED, SCHEDULED, doomed(BLOCKED), doomed(SCHEDULED), doomed(READY))

COUNTING_SECONDS: Final = 0.3
"""Seconds for which an overview counts open items, and dead ones."""
_PORTION = 5_000
_MOST_PORTIONS = 1_000

# How many items are looked at along indexes, in all.
_MOST_COUNTED = 5_000
# Of these, the index does not have the type: each takes a look into the table.
_MOST_LOOKED_UP = 2_500
_MOST_HEADS = 600
_LEAST = 100
_MOST_OF_TYPE = 10_000

Kind: TypeAlias = Literal["open", "dead"]


def overview(tx: Tx, tenant: str | None, quick: bool, seconds: float = COUNTING_SECONDS) -> Overview:
    """seconds: for how long open items are counted, and dead ones, unless it is quick."""
    fleet, tenants = workers(tx), ALL_TENANTS if tenant is None else one_tenant(tenant)
    parked = parked_types(tx)
    counts = _Counts(tx, tenants, quick=quick)
    if quick or not counts.scan("open", seconds):
        counts.count_waiting()
        counts.count_ready()
        counts.count_parked(parked)
        counts.count_leased()
    if quick or not counts.scan("dead", seconds):
        counts.count_dead()
    return Overview(
        now=tx.now,
        counts=shown_counts(*counts.result()),
        ages=tuple(_ages(tx, tenants, parked)),
        unserved=tuple(_unserved(tx, fleet, counts, tenant)),
        paused=tuple(pauses(tx, tenant)),
        workers=tuple(fleet),
    )


class _Counts:
    def __init__(self, tx: Tx, tenants: Tenants, *, quick: bool) -> None:
        self._tx = tx
        self._tenants = tenants
        self._quick = quick
        self._found: Counter[CountKey] = Counter()
        self._cut: set[tuple[str, Status]] = set()
        """The queues and statuses of which there may be more than were counted along an index."""
        self._about: Counter[CountKey] = Counter()
        """What the portions say that were read, if these were not all."""
        self.ready: Counter[str] = Counter()
        """By type: those that wait for a worker, as far as they were counted."""
        self.about_ready: Counter[str] = Counter()

    def result(self) -> tuple[Counter[CountKey], set[tuple[str, Status]]]:
        """The counts, and the queues and statuses of which they are estimates."""
        counts = self._found.copy()
        for key, count in self._about.items():
            if (key[1], key[3]) in self._cut:
                counts[key] = max(counts[key], count)
        return counts, self._cut

    def scan(self, kind: Kind, seconds: float) -> bool:
        """Count by reading the table. Returns whether there was time for all of it."""
        first, last = _numbers(self._tx, kind)
        if first is None or last is None:
            return True
        size = max(_PORTION, ceil((last - first + 1) / _MOST_PORTIONS))
        portions, done = ceil((last - first + 1) / size), 0
        seen: Counter[tuple[str, int, str, str]] = Counter()
        until = time.monotonic() + seconds
        for place in _spread(portions):
            if done and time.monotonic() > until:
                break
            begin = first + place * size
            for *labels, count in self._tx.rows(_SQL[kind], begin, begin + size - 1, *self._tenants):
                queue, status, tenant, type = labels
                seen[queue, status, tenant, type] += count
            done += 1
        for (queue, status, tenant, type), count in seen.items():
            if done == portions:
                self._add(queue, status, tenant, type, count)
            else:
                about = round(count * portions / done)
                self._about[tenant, queue, type, STATUS[status]] += about
                self.about_ready[type] += about if status in (READY, PARKED) else 0
        return done == portions

    def _add(self, queue: str, status: int, tenant: str, type: str, count: int) -> None:
        self._found[tenant, queue, type, STATUS[status]] += count
        if status in (READY, PARKED):
            self.ready[type] += count

    def _share(self, most: int, queues: Sequence[str]) -> int:
        """How many items of each queue are counted."""
        return _LEAST if self._quick else max(_LEAST, most // max(1, len(queues)))

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
            self._count(queue, DEAD, "first_dead", (queue, *self._tenants), most)

    def _count(self, queue: str, status: int, name: str, within: tuple[object, ...], most: int) -> None:
        """Count up to `most` items of a queue and status, in the order of the index."""
        bound = self._tx.row(_SQL[f"{name}_bound"], *within, most)
        if bound is None:
            rows = self._tx.rows(_SQL[name], *within)
        else:
            rows = self._tx.rows(_SQL[f"{name}_before"], *within, *bound)
            rows.append((*bound, most - sum(count for _, _, count in rows)))
            self._cut.add((queue, STATUS[status]))
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
                self._cut.add((queue, "ready"))

    def count_parked(self, types: Sequence[str]) -> None:
        for type in types:
            queues = list(self._tx.names(_FAIRNESS["parked_queue"], type))
            most = self._share(_MOST_COUNTED // len(types), queues)
            for queue in queues:
                self._count(queue, PARKED, "parked", (type, queue, *self._tenants), most)

    def count_leased(self) -> None:
        most = _LEAST if self._quick else _MOST_COUNTED
        rows = self._tx.rows(_SQL["leased"], most)
        for (queue, tenant, type, status), count in Counter(rows).items():
            if self._tenants in (ALL_TENANTS, one_tenant(tenant)):
                self._add(queue, status, tenant, type, count)
                if len(rows) == most:
                    self._cut.add((queue, STATUS[status]))


def _numbers(tx: Tx, kind: Kind) -> tuple[int | None, int | None]:
    """The first number and the last one. None: there is no item."""
    first, last = tx.rows(_SQL[f"{kind}_numbers"])[0]
    return first, last


def _spread(count: int) -> Iterator[int]:
    """The numbers below `count`, each once. The first of them are spread over all, however many are taken."""
    stride = ceil(count * 0.618)
    while gcd(stride, count) > 1:
        stride += 1
    return (n * stride % count for n in range(count))


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
    tx: Tx, workers: Sequence[WorkerState], counts: _Counts, tenant: str | None
) -> Iterator[UnservedType]:
    lost, fleet, ready = lost_types(tx), Fleet(workers, tx.now), counts.ready
    for type in tx.names(_SQL["next_ready_type"]) if tenant is None else sorted(ready):
        if not fleet.serves(type=type):
            least = tx.value(_SQL["ready_of_type"], type, _MOST_OF_TYPE) if tenant is None else 0
            count = max(ready[type], counts.about_ready[type], least)
            yield UnservedType(type, count, unserved_since(type, workers, lost, tx.now))
