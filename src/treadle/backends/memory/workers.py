"""Workers: who is alive, what each of them knows and holds, and what becomes of it when one dies."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from treadle.item import Heartbeat, HeartbeatReply, Lease, Loss, WorkerState
from treadle.rules import PORTION

from .moves import free
from .rows import Worker
from .settle import loss_of, owns
from .store import Store


def beat(store: Store, beat: Heartbeat, now: float) -> HeartbeatReply:
    worker = store.workers.get(beat.worker)
    fresh = worker is None
    if worker is None:
        worker = store.workers[beat.worker] = Worker(beat.worker)
        _learn(store, beat.types)
        worker.types = _known(beat.types)
    elif beat.types is not None and worker.types != _known(beat.types):
        _learn(store, beat.types)
        _unlearn(store, worker.types, now)
        worker.types = _known(beat.types)
    _trust(store, worker, now + beat.lease)
    return HeartbeatReply(fresh, _lost(store, beat.held))


class MemoryHeartbeatConnection:
    """Sets one attribute, which any thread may do while a verb is under way in another.

    A worker that is not known is not registered: it holds nothing that could be kept, and has to learn so by
    a beat of its own.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def open(self) -> None:
        pass

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        worker = self._store.workers.get(beat.worker)
        if worker is None:
            return HeartbeatReply(fresh=True)
        worker.until = max(worker.until, self._store.now() + beat.lease)
        return HeartbeatReply()

    async def close(self) -> None:
        pass


def remove_worker(store: Store, worker: Worker, now: float) -> int:
    """It is dead: all that it held is free."""
    del store.workers[worker.id]
    if worker.spot is not None:
        store.lapses.remove(worker)
    _unlearn(store, worker.types, now)
    store.permits.give_all(worker)
    held = [store.find(lease.tenant, lease.id) for lease in worker.held.values()]
    for row in held:
        assert row is not None
        free(store, row, now)
    return len(held)


def bury_lapsed(store: Store, now: float) -> None:
    """A portion of those whose lease has lapsed. Whoever is buried is buried whole."""
    freed = 0
    while freed < PORTION and (worker := store.lapses.pop_until(now)) is not None:
        if worker.until > now:
            _watch(store, worker)
        else:
            freed += 1 + remove_worker(store, worker, now)


def unknown_leases(store: Store, id: str, known: Sequence[int]) -> list[Lease]:
    worker = store.workers.get(id)
    held = {} if worker is None else worker.held
    told = set(known)
    return [lease for token, lease in held.items() if token not in told]


def show_workers(store: Store) -> list[WorkerState]:
    return [
        WorkerState(
            worker.id,
            worker.until,
            None if worker.types is None else tuple(sorted(worker.types)),
            sum(lease.verdict is None for lease in worker.held.values()),
        )
        for worker in store.workers.values()
    ]


def _trust(store: Store, worker: Worker, until: float) -> None:
    worker.until = until
    if worker.spot is not None and until < worker.spot[0]:
        store.lapses.remove(worker)
    if worker.spot is None:
        _watch(store, worker)


def _watch(store: Store, worker: Worker) -> None:
    """Look at it when its lease lapses. If there were beats by then, it is watched anew."""
    store.beats += 1
    store.lapses.push(worker.until, store.beats, worker)


def _lost(store: Store, held: Sequence[Lease]) -> dict[int, Loss]:
    lost: dict[int, Loss] = {}
    for lease in held:
        row = store.find(lease.tenant, lease.id)
        if row is None or not owns(lease, row):
            loss = loss_of(row, lease)
            # It has settled the item itself: nothing that the worker would not know.
            if loss is not None:
                lost[lease.token] = loss
    return lost


def _known(types: Sequence[str] | None) -> frozenset[str] | None:
    return None if types is None else frozenset(types)


def _learn(store: Store, types: Collection[str] | None) -> None:
    if types is None:
        store.know_all += 1
    else:
        store.known.update(frozenset(types))


def _unlearn(store: Store, types: Collection[str] | None, now: float) -> None:
    """One live worker less has these types."""
    if types is None:
        store.know_all -= 1
        if not store.know_all:
            store.forgotten[None] = now
        return
    for type in types:
        store.known[type] -= 1
        if not store.known[type]:
            del store.known[type]
            store.forgotten[type] = now
