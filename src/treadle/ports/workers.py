"""Workers: their leases, and what happens to their items when they die.

A worker's record lists its items *before* the items' groups say so. So the record of a worker whose lease has
lapsed lists everything that has to be freed, and a token that no live worker's record lists is not in force.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from treadle.item import MOST_UNKNOWN, Heartbeat, HeartbeatReply, Lease, Loss
from treadle.store.rules.settlement import lost_attempt
from treadle.store.rules.times import is_far

from . import groups
from .async_ports import Pointers
from .dependencies import PortsEffects
from .limits import PortsLimits
from .read import lease_of
from .records import (
    GROUP,
    ROSTER,
    UNCHANGED,
    WORKER,
    LeasedItem,
    OpenMember,
    Records,
    Unchanged,
    WorkerRecord,
    WorkerRoster,
    back_off,
)

CHECK_INTERVAL = 1.0
"""Seconds between two checks for workers whose lease has lapsed."""
EVERY_TYPE = ""


@dataclass(eq=False)
class PortsWorkers:
    _records: Records
    _pointers: Pointers
    _effects: PortsEffects
    _limits: PortsLimits
    _settled: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    """By worker: settled tokens that are still in its record. See `drop_later`."""
    _checked: float = -math.inf

    async def get(self, id: str) -> WorkerRecord | None:
        return (await self._records.draft(self._records.keys.worker(id), WORKER)).record

    # -- heartbeats ------------------------------------------------------------------------------------

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        fresh, known = await self._renew(beat)
        if fresh and not beat.registers:
            return HeartbeatReply(fresh=True)
        await self._pointers.heartbeat(beat.worker, beat.lease)
        held = {lease.token for lease in beat.held}
        others = [await self._lease(*each) for each in known.items() if each[0] not in held]
        lost: dict[int, Loss] = {}
        for lease in beat.held:
            if lease.token in known:
                continue
            record = await self._records.group((lease.tenant, lease.group_id))
            state = groups.token_state(record, lease.id, lease.token)
            if state != "in force":
                lost[lease.token] = "taken" if state == "settled" else state
        unknown = sorted(lease.token for lease in others if lease is not None)[:MOST_UNKNOWN]
        permits = await self._limits.count(beat.worker)
        return HeartbeatReply(fresh, lost, unknown=unknown, permits=permits)

    async def _renew(self, beat: Heartbeat) -> tuple[bool, Mapping[int, LeasedItem]]:
        """Extend a worker's lease. Return whether the worker was unknown, and the leases in its record."""
        records, key = self._records, self._records.keys.worker(beat.worker)
        while True:
            draft = await records.draft(key, WORKER)
            worker, now = draft.record, records.now()
            if worker is not None and worker.removing:
                await self.remove_worker(beat.worker)
            elif worker is None and not beat.registers:
                return True, {}
            elif worker is None:
                await records.change(records.keys.roster, ROSTER, partial(_enroll, beat.worker))
                if await records.replace(key, draft, WorkerRecord(now + beat.lease, beat.lease, beat.types)):
                    return True, {}
            else:
                had = _types(worker)
                if beat.types is not None and not set(had).issubset(beat.types):
                    await records.change(records.keys.roster, ROSTER, partial(_lose_types, had, now))
                worker.until, worker.lease = now + beat.lease, beat.lease
                worker.types = worker.types if beat.types is None else beat.types
                self._drop_settled(beat.worker, worker)
                if await records.replace(key, draft, worker):
                    return False, worker.items

    async def unknown_leases(self, worker: str, known: Collection[int]) -> list[Lease]:
        found = await self.get(worker)
        if found is None or found.removing:
            return []
        leases = [await self._lease(token, item) for token, item in found.items.items() if token not in known]
        return [lease for lease in leases if lease is not None]

    async def _lease(self, token: int, item: LeasedItem) -> Lease | None:
        record, stored = await self._records.group(item.group), await self._records.item(item.ref)
        member = None if record is None else record.open.get(item.id)
        if stored is None or member is None or member.token != token:
            return None
        return lease_of(stored, member)

    # -- leases of items -------------------------------------------------------------------------------

    async def add_leases(self, id: str, leases: Mapping[int, LeasedItem]) -> bool:
        """Add leases to a worker's record. False: it is not alive."""
        now = self._records.now()

        def step(worker: WorkerRecord | None) -> tuple[bool, WorkerRecord | Unchanged | None]:
            if worker is None or not worker.is_alive(now):
                return False, UNCHANGED
            self._drop_settled(id, worker)
            worker.items.update(leases)
            return True, worker

        return await self._records.change(self._records.keys.worker(id), WORKER, step)

    async def drop(self, id: str, tokens: Collection[int]) -> None:
        """Remove leases from a worker's record."""

        def step(worker: WorkerRecord | None) -> tuple[None, WorkerRecord | Unchanged | None]:
            if worker is None or worker.items.keys().isdisjoint(tokens):
                return None, UNCHANGED
            _drop_tokens(worker, tokens)
            return None, worker

        if tokens:
            await self._records.change(self._records.keys.worker(id), WORKER, step)

    def drop_later(self, id: str, tokens: Iterable[int]) -> None:
        """Remove settled leases when the worker's record changes next. That is enough: every reader of a
        record checks in the group whether a token is in force."""
        self._settled.setdefault(id, set()).update(tokens)

    def _drop_settled(self, id: str, worker: WorkerRecord) -> None:
        if tokens := self._settled.pop(id, None):
            _drop_tokens(worker, tokens)

    # -- dead workers ----------------------------------------------------------------------------------

    async def remove_lapsed(self) -> None:
        """Remove the workers whose lease has lapsed. Checks once per CHECK_INTERVAL."""
        now = self._records.now()
        if 0 <= now - self._checked < CHECK_INTERVAL:
            return
        for id, worker in await self._all():
            if not worker.is_alive(now):
                await self.remove_worker(id)
            elif is_far(worker.until, worker.lease, now):
                await self._shorten(id, now)
        self._checked = now

    async def _shorten(self, id: str, now: float) -> None:
        """The clock went back: a worker that died meanwhile is not kept for so long."""

        def step(worker: WorkerRecord | None) -> tuple[None, WorkerRecord | Unchanged | None]:
            if worker is None or not is_far(worker.until, worker.lease, now):
                return None, UNCHANGED
            worker.until = now + worker.lease
            return None, worker

        await self._records.change(self._records.keys.worker(id), WORKER, step)

    async def remove_worker(self, id: str) -> int:
        """Free all items of a worker. May be repeated, also by several processes at once."""
        worker = await self._begin_removal(id)
        if worker is None:
            return 0
        freed = 0
        for token, item in worker.items.items():
            freed += await self.free(id, token, item)
        await self._limits.return_all(id)
        records = self._records
        await records.change(records.keys.roster, ROSTER, partial(_strike, id, _types(worker), records.now()))
        await records.change(records.keys.worker(id), WORKER, _delete_removed)
        self._settled.pop(id, None)
        return freed

    async def _begin_removal(self, id: str) -> WorkerRecord | None:
        def step(worker: WorkerRecord | None) -> tuple[WorkerRecord | None, WorkerRecord | Unchanged | None]:
            if worker is None or worker.removing:
                return worker, UNCHANGED
            worker.removing = True
            return worker, worker

        return await self._records.change(self._records.keys.worker(id), WORKER, step)

    async def free(self, id: str, token: int, item: LeasedItem) -> bool:
        """Take an item from a worker that is dead. Return whether the worker was running it."""
        records, key = self._records, self._records.keys.group(item.group)
        while True:
            draft = await records.draft(key, GROUP)
            if draft.record is None or (member := draft.record.open.get(item.id)) is None:
                await self._effects.resume(item.ref, item.group, draft.record)
                return False
            now = records.now()
            ran = member.token == token and member.status == "running"
            if member.token == token:
                await self._free_member(id, token, item, member, now)
                if not await records.replace(key, draft, draft.record):
                    await back_off()
                    continue
            elif token not in member.failed_tokens and token not in member.settled_tokens:
                return False  # the token was never in force
            if (due := groups.look_at(member)) is not None:
                await self._pointers.put_back(token, item.ref, due, now)
            return ran

    async def _free_member(
        self, id: str, token: int, item: LeasedItem, member: OpenMember, now: float
    ) -> None:
        if member.status == "running":
            lost = lost_attempt(member.attempt, now, id)
            await self._records.write(self._records.keys.failed_attempt(item.ref, token), lost)
        groups.free(member, now)

    # -- types of live workers -------------------------------------------------------------------------

    async def has_type(self, type: str) -> bool:
        """Whether a live worker can run the type."""
        now = self._records.now()
        return any(worker.has_type(type) and worker.is_alive(now) for _, worker in await self._all())

    async def type_gone_since(self, type: str) -> float:
        """When the last worker that had a type was removed, or gave it up, as far as that is known."""
        gone = (await self._roster()).types_gone
        return max(gone.get(type, 0.0), gone.get(EVERY_TYPE, 0.0))

    async def _all(self) -> list[tuple[str, WorkerRecord]]:
        found = [(id, await self.get(id)) for id in (await self._roster()).workers]
        return [(id, worker) for id, worker in found if worker is not None]

    async def _roster(self) -> WorkerRoster:
        return (await self._records.draft(self._records.keys.roster, ROSTER)).record or WorkerRoster()


def _enroll(id: str, roster: WorkerRoster | None) -> tuple[None, WorkerRoster | Unchanged]:
    roster = roster or WorkerRoster()
    if id in roster.workers:
        return None, UNCHANGED
    roster.workers.append(id)
    return None, roster


def _drop_tokens(worker: WorkerRecord, tokens: Collection[int]) -> None:
    worker.items = {token: item for token, item in worker.items.items() if token not in tokens}


def _strike(
    id: str, types: Iterable[str], now: float, roster: WorkerRoster | None
) -> tuple[None, WorkerRoster | Unchanged]:
    if roster is None or id not in roster.workers:
        return None, UNCHANGED
    roster.workers.remove(id)
    return _lose_types(types, now, roster)


def _types(worker: WorkerRecord) -> tuple[str, ...]:
    return (EVERY_TYPE,) if worker.types is None else worker.types


def _lose_types(
    types: Iterable[str], now: float, roster: WorkerRoster | None
) -> tuple[None, WorkerRoster | Unchanged]:
    """A worker no longer has these types, or some of them. The time is of use only if no other has them."""
    if roster is None:
        return None, UNCHANGED
    roster.types_gone.update(dict.fromkeys(types, now))
    return None, roster


def _delete_removed(worker: WorkerRecord | None) -> tuple[None, Unchanged | None]:
    return None, None if worker is not None and worker.removing else UNCHANGED
