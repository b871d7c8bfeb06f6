"""Limits: permits that the fleet shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count

from msgspec import Struct

from treadle.item import Algorithm, Lease, Limit, PermitHolder, PermitReply, PermitRequest
from treadle.store.rules.limits import LimitState, idle_at, permit

from .priority_queue import Position, PriorityQueue
from .rows import MemoryWorker


class MemoryLimit(Struct, eq=False):
    """Where a limit stands. Limits of one name count together only if they use the same algorithm."""

    limit: Limit
    state: LimitState
    position: Position | None = None


class MemoryLimits:
    def __init__(self) -> None:
        self._ties = count(1)
        self.limits: dict[tuple[str, Algorithm], MemoryLimit] = {}
        self.limits_by_end: PriorityQueue[MemoryLimit] = PriorityQueue()
        self.held: Counter[str] = Counter()
        """Of `slots` limits: the permits that all workers hold together, by the limit's name."""
        self.leases: dict[str, dict[int, MemoryWorker]] = {}
        """Of `slots` limits: the tokens of the leases that have permits of their own, and their workers."""

    def take_permits(self, request: PermitRequest, worker: MemoryWorker | None, now: float) -> PermitReply:
        """`worker`: None if it is not alive."""
        token = 0 if request.lease is None else request.lease.token
        if token and any(token in self.leases.get(limit.name, ()) for limit in request.limits):
            return PermitReply(1)
        if token and (worker is None or token not in worker.held):
            return PermitReply(0)
        reply, states = permit(request, self._states(request, now), now, alive=worker is not None)
        for limit, state in states.items():
            if limit.algorithm != "slots":
                self._store(limit, state)
            elif worker is not None and reply.count:
                self._give(limit.name, reply.count, worker, request.lease)
        if token and not reply.count:
            return PermitReply(0, reply.retry_after, tuple(self._holders(request)))
        return reply

    def _give(self, name: str, count: int, worker: MemoryWorker, lease: Lease | None) -> None:
        self.held[name] += count
        worker.permits[name] = worker.permits.get(name, 0) + count
        if lease is not None:
            self.leases.setdefault(name, {})[lease.token] = worker
            worker.leases_with_permits.setdefault(name, set()).add(lease.token)

    def _holders(self, request: PermitRequest) -> list[PermitHolder]:
        leases = [
            lease
            for limit in request.limits
            for token, worker in self.leases.get(limit.name, {}).items()
            if (lease := worker.held.get(token)) is not None
        ]
        leases.sort(key=lambda lease: (lease.due_at, lease.ref))
        return [PermitHolder(lease.id, lease.tenant, lease.due_at, lease.ref) for lease in leases]

    def return_permits(self, request: PermitRequest, worker: MemoryWorker) -> None:
        """Take permits back, no more than the worker holds."""
        for limit in request.limits:
            if limit.algorithm == "slots" and self._take_back_lease(worker, limit.name, request.lease):
                held = worker.permits.get(limit.name, 0)
                self._take_back(worker, limit.name, min(held, request.count))

    def _take_back_lease(self, worker: MemoryWorker, name: str, lease: Lease | None) -> bool:
        """False: the lease has no permit to return."""
        if lease is None:
            return True
        tokens = worker.leases_with_permits.get(name, set())
        if lease.token not in tokens:
            return False
        tokens.remove(lease.token)
        self._forget_lease(name, lease.token)
        if not tokens:
            del worker.leases_with_permits[name]
        return True

    def drop_lease(self, worker: MemoryWorker, token: int) -> None:
        """The lease has left: so have the permits of its own."""
        for name, tokens in list(worker.leases_with_permits.items()):
            if token in tokens:
                tokens.remove(token)
                self._forget_lease(name, token)
                if not tokens:
                    del worker.leases_with_permits[name]
                self._take_back(worker, name, min(1, worker.permits.get(name, 0)))

    def _forget_lease(self, name: str, token: int) -> None:
        del self.leases[name][token]
        if not self.leases[name]:
            del self.leases[name]

    def return_all(self, worker: MemoryWorker) -> None:
        for name, tokens in worker.leases_with_permits.items():
            for token in tokens:
                self._forget_lease(name, token)
        worker.leases_with_permits = {}
        for name, held in list(worker.permits.items()):
            self._take_back(worker, name, held)

    def keep_permits(self, held: Sequence[PermitRequest], counted: int, worker: MemoryWorker) -> int:
        found = sum(worker.permits.values())
        if found != counted:
            return found
        self.return_all(worker)
        for request in held:
            for limit in request.limits:
                self._give(limit.name, request.count, worker, request.lease)
        return found

    def prune(self, now: float, most: int) -> None:
        for stored in self.limits_by_end.take_until(now, most):
            self._prune_limit(stored, now)

    def _states(self, request: PermitRequest, now: float) -> Mapping[Limit, LimitState]:
        states: dict[Limit, LimitState] = {}
        for limit in request.limits:
            if limit.algorithm == "slots":
                states[limit] = LimitState(now, self.held[limit.name])
            elif (stored := self.limits.get((limit.name, limit.algorithm))) is not None:
                states[limit] = stored.state
        return states

    def _store(self, limit: Limit, state: LimitState) -> None:
        stored = self.limits.get((limit.name, limit.algorithm))
        if stored is None:
            stored = MemoryLimit(limit, state)
            self.add_limit(stored, idle_at(limit, state))
        stored.limit = limit
        stored.state = state

    def add_limit(self, stored: MemoryLimit, idle_at: float) -> None:
        self.limits[stored.limit.name, stored.limit.algorithm] = stored
        self.limits_by_end.push(idle_at, next(self._ties), stored)

    def _prune_limit(self, stored: MemoryLimit, now: float) -> None:
        """Drop a limit, unless it was used since it was put into the queue."""
        end = idle_at(stored.limit, stored.state)
        if end > now:
            self.limits_by_end.push(end, next(self._ties), stored)
        else:
            del self.limits[stored.limit.name, stored.limit.algorithm]

    def _take_back(self, worker: MemoryWorker, name: str, count: int) -> None:
        worker.permits[name] = worker.permits.get(name, 0) - count
        self.held[name] -= count
        if not worker.permits[name]:
            del worker.permits[name]
        if not self.held[name]:
            del self.held[name]
