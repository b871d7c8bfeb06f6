"""Workers: which are alive, which types they have, and what becomes of their items when they die."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from treadle.item import MOST_UNKNOWN, Heartbeat, HeartbeatReply, Lease, Loss, WorkerState
from treadle.item_facts import KEPT_RELEASES
from treadle.store.portable import PortableWorker
from treadle.store.rules import PORTION
from treadle.store.rules.times import is_far
from treadle.worker_info import decode_worker_info

from . import transitions
from .rows import MemoryWorker
from .tables import MemoryTables
from .transitions import free, owns, why_lost


def beat(store: MemoryTables, beat: Heartbeat, now: float) -> HeartbeatReply:
    worker = store.workers.get(beat.worker)
    types = None if beat.types is None else frozenset(beat.types)
    fresh = worker is None
    if worker is None and not beat.registers:
        return HeartbeatReply(fresh=True)
    if worker is None:
        worker = store.workers[beat.worker] = MemoryWorker(beat.worker, release=beat.release)
        _note_release(store, beat.release, now)
        _add_types(store, types)
        worker.types = types
    elif types is not None and worker.types != types:
        _add_types(store, types)
        _remove_types(store, worker.types, now)
        worker.types = types
    if beat.info is not None:
        worker.info = beat.info
    worker.lease = beat.lease
    _extend_lease(store, worker, now + beat.lease)
    _shorten_far(store, now)
    known = {lease.token for lease in beat.held}
    unknown = sorted(worker.held.keys() - known)[:MOST_UNKNOWN]
    return HeartbeatReply(
        fresh,
        lost_leases(store, beat.held),
        worker.drain,
        unknown=unknown,
        permits=sum(worker.permits.values()),
    )


def adopt_worker(store: MemoryTables, record: PortableWorker) -> None:
    """Take a worker that has a lease which comes from another store. One that is known stays as it is."""
    if record.id in store.workers:
        return
    worker = store.workers[record.id] = MemoryWorker(record.id, info=record.info, release=record.release)
    worker.lease = record.lease or 0.0
    worker.types = None if record.types is None else frozenset(record.types)
    _add_types(store, worker.types)
    _extend_lease(store, worker, record.until)


def drain(store: MemoryTables, id: str) -> bool:
    """Ask a worker to stop. False: it is not known."""
    worker = store.workers.get(id)
    if worker is not None:
        worker.drain = True
    return worker is not None


class MemoryHeartbeatConnection:
    """Sets attributes, which any thread may do while a verb runs in another.

    Does not register a worker that is not known. Such a worker holds nothing that could be kept. It learns so
    from the backend's own `beat`.
    """

    def __init__(self, tables: Callable[[], MemoryTables]) -> None:
        self._tables = tables

    async def open(self) -> None:
        pass

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        store = self._tables()
        worker = store.workers.get(beat.worker)
        if worker is None:
            return HeartbeatReply(fresh=True)
        worker.until = max(worker.until, store.now() + beat.lease)
        if beat.info is not None:
            worker.info = beat.info
        return HeartbeatReply()

    async def close(self) -> None:
        pass


def remove_worker(store: MemoryTables, worker: MemoryWorker, now: float) -> int:
    """Remove a dead worker, and free all that it held. Returns how many items."""
    del store.workers[worker.id]
    if worker.position is not None:
        store.worker_ends.remove(worker)
    _remove_types(store, worker.types, now)
    store.limits.return_all(worker)
    held = [store.find(lease.tenant, lease.id) for lease in worker.held.values()]
    for row in held:
        assert row is not None
        free(store, row, now)
    return len(held)


def remove_lapsed(store: MemoryTables, now: float) -> bool:
    """Remove workers whose lease has lapsed, each as a whole, until a portion of items is freed. True: there
    may be more."""
    freed = 0
    while freed < PORTION and (worker := store.worker_ends.pop_until(now)) is not None:
        if worker.until > now:
            _watch_lease(store, worker)
        else:
            freed += 1 + remove_worker(store, worker, now)
    return freed >= PORTION


def unknown_leases(store: MemoryTables, id: str, known: Sequence[int]) -> list[Lease]:
    worker = store.workers.get(id)
    held = {} if worker is None else worker.held
    tokens = set(known)
    return [lease for token, lease in held.items() if token not in tokens]


def begin(store: MemoryTables, leases: Sequence[Lease]) -> dict[int, Loss]:
    for lease in leases:
        row = store.find(lease.tenant, lease.id)
        if row is not None and owns(lease, row):
            transitions.begin(row)
    return lost_leases(store, leases)


def list_workers(store: MemoryTables) -> list[WorkerState]:
    return [
        WorkerState(
            worker.id,
            worker.until,
            None if worker.types is None else tuple(sorted(worker.types)),
            sum(lease.verdict is None for lease in worker.held.values()),
            decode_worker_info(worker.info),
        )
        for worker in store.workers.values()
    ]


def _note_release(store: MemoryTables, release: str, now: float) -> None:
    """Note when the first worker of a release began."""
    if release and release not in store.releases:
        store.releases[release] = now
        while len(store.releases) > KEPT_RELEASES:
            del store.releases[next(iter(store.releases))]


def _extend_lease(store: MemoryTables, worker: MemoryWorker, until: float) -> None:
    worker.until = until
    if worker.position is not None and until < worker.position[0]:
        store.worker_ends.remove(worker)
    if worker.position is None:
        _watch_lease(store, worker)


def _shorten_far(store: MemoryTables, now: float) -> None:
    """The clock went back: a worker that died meanwhile is not kept for so long."""
    for worker in store.workers.values():
        if is_far(worker.until, worker.lease, now):
            _extend_lease(store, worker, now + worker.lease)


def _watch_lease(store: MemoryTables, worker: MemoryWorker) -> None:
    """Look at the worker when its lease lapses. It is watched anew if heartbeats have extended it by then."""
    store.worker_ends.push(worker.until, next(store.watches), worker)


def lost_leases(store: MemoryTables, held: Sequence[Lease]) -> dict[int, Loss]:
    """By token: the leases that a worker holds no more. Not those that it has settled itself: it knows."""
    lost: dict[int, Loss] = {}
    for lease in held:
        row = store.find(lease.tenant, lease.id)
        if row is None or not owns(lease, row):
            loss = why_lost(row, lease)
            if loss is not None:
                lost[lease.token] = loss
    return lost


def _add_types(store: MemoryTables, types: Collection[str] | None) -> None:
    if types is None:
        store.workers_of_all_types += 1
    else:
        store.workers_by_type.update(types)


def _remove_types(store: MemoryTables, types: Collection[str] | None, now: float) -> None:
    """One live worker less has these types."""
    if types is None:
        store.workers_of_all_types -= 1
        if not store.workers_of_all_types:
            store.unknown_since[None] = now
        return
    for type in types:
        store.workers_by_type[type] -= 1
        if not store.workers_by_type[type]:
            del store.workers_by_type[type]
            store.unknown_since[type] = now
