"""Limits: permits that the fleet shares. All of them are one record, since a take may be under several."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from treadle.item import Limit, PermitReply, PermitRequest
from treadle.rules import LimitState, idle_at, permit

from .archive import UNCHANGED, Archive, Form, Unchanged


class Meter(msgspec.Struct, array_like=True):
    limit: Limit
    gauge: LimitState


class Permits(msgspec.Struct):
    meters: dict[str, Meter]
    """Where limits stand, by algorithm and name."""
    slots: dict[str, dict[str, int]]
    """Slots that are held: how many of a name, by worker."""


PERMITS = Form(Permits)


class Limits:
    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def take_permits(
        self, requests: Sequence[PermitRequest], worker: str, alive: bool
    ) -> list[PermitReply]:
        """A worker that is not known to be alive holds no slots: nobody would ever give them back."""
        now = self._archive.now()

        def step(permits: Permits | None) -> tuple[list[PermitReply], Permits]:
            permits = permits or Permits({}, {})
            _forget(permits, now)
            return [_granted(permits, take, worker if alive else None, now) for take in requests], permits

        return await self._archive.change(self._archive.names.limits, PERMITS, step)

    async def return_permits(self, requests: Sequence[PermitRequest], worker: str) -> None:
        def step(permits: Permits | None) -> tuple[None, Permits | Unchanged]:
            if permits is None:
                return None, UNCHANGED
            for take in requests:
                for limit in take.limits:
                    if limit.algorithm == "slots":
                        _give_back(permits, limit.name, worker, take.count)
            return None, permits

        await self._archive.change(self._archive.names.limits, PERMITS, step)

    async def give_all(self, worker: str) -> None:
        """The worker is dead."""

        def step(permits: Permits | None) -> tuple[None, Permits | Unchanged]:
            if permits is None or not any(worker in holders for holders in permits.slots.values()):
                return None, UNCHANGED
            for name in list(permits.slots):
                _give_back(permits, name, worker, permits.slots[name].get(worker, 0))
            return None, permits

        await self._archive.change(self._archive.names.limits, PERMITS, step)


def _key(limit: Limit) -> str:
    return f"{limit.algorithm}:{limit.name}"


def _granted(permits: Permits, take: PermitRequest, worker: str | None, now: float) -> PermitReply:
    if worker is None and any(limit.algorithm == "slots" for limit in take.limits):
        return PermitReply(0)
    given, gauges = permit(take, _gauges(permits, take, now), now)
    for limit, gauge in gauges.items():
        if limit.algorithm != "slots":
            permits.meters[_key(limit)] = Meter(limit, gauge)
        elif worker is not None and given.count:
            holders = permits.slots.setdefault(limit.name, {})
            holders[worker] = holders.get(worker, 0) + given.count
    return given


def _gauges(permits: Permits, take: PermitRequest, now: float) -> dict[Limit, LimitState]:
    gauges: dict[Limit, LimitState] = {}
    for limit in take.limits:
        if limit.algorithm == "slots":
            gauges[limit] = LimitState(now, sum(permits.slots.get(limit.name, {}).values()))
        elif (meter := permits.meters.get(_key(limit))) is not None:
            gauges[limit] = meter.gauge
    return gauges


def _give_back(permits: Permits, name: str, worker: str, count: int) -> None:
    holders = permits.slots.get(name, {})
    left = holders.get(worker, 0) - count
    if left > 0:
        holders[worker] = left
    else:
        holders.pop(worker, None)
    if not holders:
        permits.slots.pop(name, None)


def _forget(permits: Permits, now: float) -> None:
    """What is like new need not be stored."""
    for key, meter in list(permits.meters.items()):
        if idle_at(meter.limit, meter.gauge) <= now:
            del permits.meters[key]
