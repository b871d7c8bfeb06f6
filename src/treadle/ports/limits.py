"""Limits: permits that the fleet shares. All limits are one record, because one request may name several."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from treadle.item import Limit, PermitReply, PermitRequest
from treadle.store.rules.limits import LimitState, idle_at, permit

from .records import UNCHANGED, Records, RecordType, Unchanged


class StoredLimit(msgspec.Struct, array_like=True):
    limit: Limit
    state: LimitState


class LimitsRecord(msgspec.Struct):
    limits: dict[str, StoredLimit]
    """By algorithm and name, except `slots`."""
    slots: dict[str, dict[str, int]]
    """The permits in use under each limit of the algorithm `slots`: by limit name and worker."""


LIMITS = RecordType(LimitsRecord)


class PortsLimits:
    def __init__(self, records: Records) -> None:
        self._records = records
        self._takers: set[str] = set()
        """Workers that have taken permits of `slots` limits here: only those of them are counted."""

    async def take_permits(
        self, requests: Sequence[PermitRequest], worker: str, alive: bool
    ) -> list[PermitReply]:
        now = self._records.now()
        if any(limit.algorithm == "slots" for request in requests for limit in request.limits):
            self._takers.add(worker)

        def step(record: LimitsRecord | None) -> tuple[list[PermitReply], LimitsRecord]:
            record = record or LimitsRecord({}, {})
            _remove_idle(record, now)
            return [
                _take_permits(record, request, worker if alive else None, now) for request in requests
            ], record

        return await self._records.change(self._records.keys.limits, LIMITS, step)

    async def return_permits(self, requests: Sequence[PermitRequest], worker: str) -> None:
        def step(record: LimitsRecord | None) -> tuple[None, LimitsRecord | Unchanged]:
            if record is None:
                return None, UNCHANGED
            for request in requests:
                for limit in request.limits:
                    if limit.algorithm == "slots":
                        _return_permits(record, limit.name, worker, request.count)
            return None, record

        await self._records.change(self._records.keys.limits, LIMITS, step)

    async def count(self, worker: str) -> int:
        """How many permits a worker of this process holds."""
        if worker not in self._takers:
            return 0
        record = (await self._records.draft(self._records.keys.limits, LIMITS)).record
        return 0 if record is None else _count(record, worker)

    async def keep_permits(self, held: Sequence[PermitRequest], counted: int, worker: str) -> int:
        def step(record: LimitsRecord | None) -> tuple[int, LimitsRecord | Unchanged]:
            record = record or LimitsRecord({}, {})
            found = _count(record, worker)
            if found != counted:
                return found, UNCHANGED
            _return_all(record, worker)
            for request in held:
                for limit in request.limits:
                    _give(record, limit.name, worker, request.count)
            return found, record

        return await self._records.change(self._records.keys.limits, LIMITS, step)

    async def return_all(self, worker: str) -> None:
        """Return the permits of a worker that is dead."""
        self._takers.discard(worker)

        def step(record: LimitsRecord | None) -> tuple[None, LimitsRecord | Unchanged]:
            if record is None or not any(worker in users for users in record.slots.values()):
                return None, UNCHANGED
            _return_all(record, worker)
            return None, record

        await self._records.change(self._records.keys.limits, LIMITS, step)


def _take_permits(
    record: LimitsRecord, request: PermitRequest, worker: str | None, now: float
) -> PermitReply:
    reply, states = permit(request, _states(record, request, now), now, alive=worker is not None)
    for limit, state in states.items():
        if limit.algorithm != "slots":
            record.limits[_key(limit)] = StoredLimit(limit, state)
        elif worker is not None and reply.count:
            _give(record, limit.name, worker, reply.count)
    return reply


def _give(record: LimitsRecord, name: str, worker: str, count: int) -> None:
    users = record.slots.setdefault(name, {})
    users[worker] = users.get(worker, 0) + count


def _count(record: LimitsRecord, worker: str) -> int:
    return sum(users.get(worker, 0) for users in record.slots.values())


def _return_all(record: LimitsRecord, worker: str) -> None:
    for name in list(record.slots):
        _return_permits(record, name, worker, record.slots[name].get(worker, 0))


def _states(record: LimitsRecord, request: PermitRequest, now: float) -> dict[Limit, LimitState]:
    states: dict[Limit, LimitState] = {}
    for limit in request.limits:
        if limit.algorithm == "slots":
            states[limit] = LimitState(now, sum(record.slots.get(limit.name, {}).values()))
        elif (stored := record.limits.get(_key(limit))) is not None:
            states[limit] = stored.state
    return states


def _key(limit: Limit) -> str:
    return f"{limit.algorithm}:{limit.name}"


def _return_permits(record: LimitsRecord, name: str, worker: str, count: int) -> None:
    users = record.slots.get(name, {})
    left = users.get(worker, 0) - count
    if left > 0:
        users[worker] = left
    else:
        users.pop(worker, None)
    if not users:
        record.slots.pop(name, None)


def _remove_idle(record: LimitsRecord, now: float) -> None:
    """Remove limits whose state is that of an unused limit."""
    for key, stored in list(record.limits.items()):
        if idle_at(stored.limit, stored.state) <= now:
            del record.limits[key]
