"""Permits: keys that somebody claimed, and limits that the fleet shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from treadle.item import Algorithm, Limit, PermitReply, PermitRequest, Ref
from treadle.rules import LimitState, idle_at, permit

from .pile import Pile, Spot
from .rows import Worker


class ClaimedKey:
    """A key that belongs to its owner until its time is over."""

    __slots__ = ("owner", "ref", "spot", "until")

    def __init__(self, ref: Ref, owner: str, until: float) -> None:
        self.ref = ref
        self.owner = owner
        self.until = until
        self.spot: Spot | None = None


class Meter:
    """Where a limit stands. Limits of one name count together only if they count the same way."""

    __slots__ = ("gauge", "limit", "spot")

    def __init__(self, limit: Limit, gauge: LimitState) -> None:
        self.limit = limit
        self.gauge = gauge
        self.spot: Spot | None = None


class Permits:
    __slots__ = ("_ties", "keys", "keys_by_end", "meters", "meters_by_end", "slots")

    def __init__(self) -> None:
        self._ties = 0
        self.keys: dict[Ref, ClaimedKey] = {}
        self.keys_by_end: Pile[ClaimedKey] = Pile()
        self.meters: dict[tuple[str, Algorithm], Meter] = {}
        self.meters_by_end: Pile[Meter] = Pile()
        self.slots: Counter[str] = Counter()
        """How many slots of a name the workers hold together."""

    def claim(self, ref: Ref, owner: str, ttl: float, now: float) -> bool:
        key = self.keys.get(ref)
        if key is not None and now < key.until:
            return key.owner == owner
        if key is not None:
            self.keys_by_end.remove(key)
        key = self.keys[ref] = ClaimedKey(ref, owner, now + ttl)
        self.keys_by_end.push(key.until, self._tie(), key)
        return True

    def take(self, take: PermitRequest, worker: Worker | None, now: float) -> PermitReply:
        given, gauges = permit(take, self._gauges(take, now), now, alive=worker is not None)
        for limit, gauge in gauges.items():
            if limit.algorithm != "slots":
                self._store(limit, gauge)
            elif worker is not None and given.count:
                self.slots[limit.name] += given.count
                worker.slots[limit.name] = worker.slots.get(limit.name, 0) + given.count
        return given

    def give(self, take: PermitRequest, worker: Worker) -> None:
        """No more than the worker holds."""
        for limit in take.limits:
            if limit.algorithm == "slots":
                held = worker.slots.get(limit.name, 0)
                self._give_back(worker, limit.name, min(held, take.count))

    def give_all(self, worker: Worker) -> None:
        for name, held in list(worker.slots.items()):
            self._give_back(worker, name, held)

    def prune(self, now: float, most: int) -> None:
        for _ in range(most):
            key = self.keys_by_end.pop_until(now)
            if key is None:
                break
            del self.keys[key.ref]
        for _ in range(most):
            meter = self.meters_by_end.pop_until(now)
            if meter is None:
                break
            self._forget(meter, now)

    def _gauges(self, take: PermitRequest, now: float) -> Mapping[Limit, LimitState]:
        gauges: dict[Limit, LimitState] = {}
        for limit in take.limits:
            if limit.algorithm == "slots":
                gauges[limit] = LimitState(now, self.slots[limit.name])
            elif (meter := self.meters.get((limit.name, limit.algorithm))) is not None:
                gauges[limit] = meter.gauge
        return gauges

    def _store(self, limit: Limit, gauge: LimitState) -> None:
        meter = self.meters.get((limit.name, limit.algorithm))
        if meter is None:
            meter = self.meters[limit.name, limit.algorithm] = Meter(limit, gauge)
            self.meters_by_end.push(idle_at(limit, gauge), self._tie(), meter)
        meter.limit = limit
        meter.gauge = gauge

    def _forget(self, meter: Meter, now: float) -> None:
        """Unless it was used since it was put on the pile."""
        end = idle_at(meter.limit, meter.gauge)
        if end > now:
            self.meters_by_end.push(end, self._tie(), meter)
        else:
            del self.meters[meter.limit.name, meter.limit.algorithm]

    def _give_back(self, worker: Worker, name: str, count: int) -> None:
        worker.slots[name] = worker.slots.get(name, 0) - count
        self.slots[name] -= count
        if not worker.slots[name]:
            del worker.slots[name]
        if not self.slots[name]:
            del self.slots[name]

    def _tie(self) -> int:
        self._ties += 1
        return self._ties
