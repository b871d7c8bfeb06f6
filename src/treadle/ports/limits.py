"""Limits: permits that the fleet shares. All limits are one record, because one request may name several."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from treadle.item import Limit, PermitReply, PermitRequest
from treadle.rules.limits import LimitState, idle_at, permit

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

    async def take_permits(
        self, requests: Sequence[PermitRequest], worker: str, alive: bool
    ) -> list[PermitReply]:
        now = self._records.now()

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

    async def return_all(self, worker: str) -> None:
        """Return the permits of a worker that is dead."""

        def step(record: LimitsRecord | None) -> tuple[None, LimitsRecord | Unchanged]:
            if record is None or not any(worker in users for users in record.slots.values()):
                return None, UNCHANGED
            for name in list(record.slots):
                _return_permits(record, name, worker, record.slots[name].get(worker, 0))
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
            users = record.slots.setdefault(limit.name, {})
            users[worker] = users.get(worker, 0) + reply.count
    return reply


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
