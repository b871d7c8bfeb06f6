"""Fleet: the workers of a store as of one instant: who is alive, who claims items, who serves what."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal, TypeAlias

from treadle.base.wording import listed
from treadle.item import WorkerState

WorkerStanding: TypeAlias = Literal["alive", "blocked", "draining", "pressed", "manual", "silent"]
"""`blocked`: its event loop does not run. `pressed`: back-pressure. `manual`: a lease of `claim_one`.
`silent`: its lease has lapsed."""


class Fleet:
    """The workers that have a lease, lapsed or not."""

    def __init__(self, workers: Iterable[WorkerState], now: float) -> None:
        self.workers = tuple(workers)
        self.now = now
        """The store's clock."""
        self.live = [worker for worker in self.workers if worker.until > now]
        self.silent = [worker for worker in self.workers if worker.until <= now]
        self.taking = [worker for worker in self.live if _takes_items(worker)]
        """Those that claim items: no manual leases, and none that is stopping."""
        self.blocked = [worker for worker in self.live if is_blocked(worker)]
        self._served: dict[tuple[str | None, str | None, str | None], bool] = {}
        """What `serves` has said: a page asks a thousand times."""

    def find(self, id: str | None) -> WorkerState | None:
        """The worker of this id."""
        return next((worker for worker in self.workers if worker.id == id), None)

    def standing(self, worker: WorkerState) -> WorkerStanding:
        """How it stands, in a word."""
        info = worker.info
        if worker.until <= self.now:
            return "silent"
        if info is None:
            return "alive"
        if info.blocked_since is not None:
            return "blocked"
        if info.manual:
            return "manual"
        if info.draining:
            return "draining"
        return "pressed" if self.is_pressed(worker) else "alive"

    def is_pressed(self, worker: WorkerState) -> bool:
        """Whether back-pressure keeps it from claiming."""
        info = worker.info
        return info is not None and info.pressed_until is not None and info.pressed_until > self.now

    def is_on_trial(self, worker: WorkerState) -> bool:
        """Whether an item on trial keeps it from claiming."""
        info = worker.info
        if info is None or info.trial is None or info.trial.until <= self.now:
            return False
        return info.full or info.trial.waits or (worker.running or 0) >= info.trial.most

    def serving(
        self, *, type: str | None = None, queue: str | None = None, tenant: str | None = None
    ) -> list[WorkerState]:
        """Those that claim items of this type, queue and tenant, or may: some do not say what they serve.
        None: any."""
        return [worker for worker in self.taking if serves(worker, type=type, queue=queue, tenant=tenant)]

    def serves(self, *, type: str | None = None, queue: str | None = None, tenant: str | None = None) -> bool:
        """Whether there is one of these."""
        asked = type, queue, tenant
        known = self._served.get(asked)
        if known is None:
            known = any(serves(worker, type=type, queue=queue, tenant=tenant) for worker in self.taking)
            self._served[asked] = known
        return known

    def left_behind(self, ids: Collection[str]) -> str:
        """What no worker takes any more when these have stopped, in words. Empty: others take all of it."""
        leaving = [worker for worker in self.taking if worker.id in ids]
        others = Fleet([worker for worker in self.live if worker.id not in ids], self.now)
        if not leaving:
            return ""
        if not others.taking:
            return "no other worker takes items"
        types = {name for worker in leaving for name in worker.types or () if not name.startswith("treadle.")}
        alone = sorted(name for name in types if not others.serves(type=name))
        said = [f"no other worker has {listed(alone)}"] if alone else []
        alone = sorted(name for name in queues_of(leaving) if not others.serves(queue=name))
        said += [f"no other worker serves queue {listed(alone)}"] if alone else []
        if any(_serves_all(worker) for worker in leaving) and not any(map(_serves_all, others.taking)):
            said.append(f"the others serve only queue {listed(sorted(queues_of(others.taking)))}")
        return "; ".join(said)


def _takes_items(worker: WorkerState) -> bool:
    info = worker.info
    return info is None or not (info.draining or info.manual)


def _serves_all(worker: WorkerState) -> bool:
    """Whether it serves every queue, or does not say which."""
    return worker.info is None or worker.info.queues is None


def is_blocked(worker: WorkerState) -> bool:
    """Whether its event loop does not run, although its lease is renewed from elsewhere."""
    return worker.info is not None and worker.info.blocked_since is not None


def serves(
    worker: WorkerState, *, type: str | None = None, queue: str | None = None, tenant: str | None = None
) -> bool:
    """Whether a worker has this type, and serves this queue and tenant. If it does not say: perhaps."""
    # In plain words: a page asks thousands of times.
    if type is not None and worker.types is not None and type not in worker.types:
        return False
    info = worker.info
    if info is None:
        return True
    if queue is not None and info.queues is not None and queue not in info.queues:
        return False
    return tenant is None or info.tenants is None or tenant in info.tenants


def queues_of(workers: Iterable[WorkerState]) -> set[str]:
    """The queues that workers name. Those that serve every queue name none."""
    infos = [info for worker in workers if (info := worker.info) is not None]
    return {name for info in infos for name in info.queues or ()}


def claimed_ahead(worker: WorkerState) -> int:
    """How many of its items have not begun: as it said last, and at least those for which it has no place."""
    running, info = worker.running or 0, worker.info
    if info is None:
        return 0
    beyond = 0 if info.room is None or info.rooms else running - info.room
    return min(running, max(info.waiting, beyond))


def place_of(worker: WorkerState) -> str:
    """Where it runs, as `host:pid`. Empty: it does not say so."""
    info = worker.info
    return f"{info.host}:{info.pid}" if info is not None and info.host else ""


def last_beat(worker: WorkerState) -> float | None:
    """When its last heartbeat came, by the store's clock. None: not known."""
    info = worker.info
    return None if info is None or not info.lease else worker.until - info.lease
