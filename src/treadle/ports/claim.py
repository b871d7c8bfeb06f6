"""Claim: pop pointers, look at the items that they name, and lease the items that the worker wants.

A pointer only says "look at this item". The item may be ready to run, doomed, unwanted by this worker, not
yet due, leased, or ended. A pointer is acked only if nothing is left to do about it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from treadle.bulk_action import BULK_TYPE
from treadle.item import Claim, Demand, Item, Lease, Ref, Verdict
from treadle.store.rules.limits import SharedRooms

from . import groups
from .async_ports import Pointers, read_pointer
from .dependencies import PortsDependencies, PortsEffects
from .protocols import Pulled
from .read import lease_of
from .records import (
    GROUP,
    UNCHANGED,
    GroupRecord,
    LeasedItem,
    OpenMember,
    Records,
    StoredItem,
    Unchanged,
    WorkerRecord,
)
from .submit import PortsSubmit
from .workers import CHECK_INTERVAL, PortsWorkers

log = logging.getLogger("treadle")

POP_LIMIT = 100
"""The most pointers of one pop, and the most verdicts of one claim."""
SCAN_LIMIT = 1000
"""The most pointers that one claim looks at."""
UNWANTED_DELAY = 1.0
"""Seconds for which pointers are put back if a claim scanned SCAN_LIMIT of them in vain. The next claim sees
others."""


class DemandRoom:
    """How many more items a demand has room for."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self._types = None if demand.types is None else dict(demand.types)
        self._shared = SharedRooms(demand) if demand.shared else None
        self.left = demand.limit
        self.verdicts = POP_LIMIT

    def covers(self, item: Item) -> bool:
        """Whether the item is in the demanded queues and tenants."""
        queues, tenants = self._demand.queues, self._demand.tenants
        return (queues is None or item.queue in queues) and (tenants is None or item.tenant in tenants)

    def has_type(self, type: str) -> bool:
        return self._types is None or type in self._types

    def add(self, item: Item) -> bool:
        """Use room for an item. False: there is none."""
        types, type = self._types, item.type
        avoided = self._demand.avoids(type, item.tenant, item.lane)
        if self.left <= 0 or avoided or not self.covers(item):
            return False
        if types is not None:
            if types.get(type, 0) <= 0:
                return False
            types[type] -= 1
            if self._shared is not None:
                self._shared.use(type, types)
        self.left -= 1
        return True


class PickedItem(NamedTuple):
    """An item to be leased, and the pointer that named it."""

    pulled: Pulled
    stored: StoredItem
    verdict: Verdict | None


class ClaimScan:
    """The state of one claim: the items it picked, and the pointers it has to put back."""

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.room = DemandRoom(demand)
        self.seen: set[Ref] = set()
        self.picked: list[PickedItem] = []
        self.scanned = 0
        self.to_put_back: dict[int, Pulled] = {}
        self._groups: dict[Ref, GroupRecord | None] = {}

    @property
    def most(self) -> int:
        """How many pointers to look at. A claim for verdicts alone looks at few."""
        return SCAN_LIMIT if self.demand.limit else 2 * POP_LIMIT

    @property
    def in_vain(self) -> bool:
        """Whether it looked at as many pointers as it may, and found nothing. The next claim goes on."""
        return self.scanned >= SCAN_LIMIT and not self.picked

    def add_popped(self, popped: Sequence[Pulled]) -> None:
        self.scanned += len(popped)
        self.to_put_back.update({id(pulled): pulled for pulled in popped})

    def remove(self, pulled: Pulled) -> None:
        """Do not put this pointer back."""
        del self.to_put_back[id(pulled)]

    async def group(self, records: Records, group: Ref) -> GroupRecord | None:
        """A group as this claim first read it. Leasing reads it again."""
        if group not in self._groups:
            self._groups[group] = await records.group(group)
        return self._groups[group]

    def pick(self, pulled: Pulled, stored: StoredItem, verdict: Verdict | None) -> None:
        self.seen.add(stored.ref)
        self.picked.append(PickedItem(pulled, stored, verdict))


@dataclass(eq=False)
class PortsClaim:
    _records: Records
    _pointers: Pointers
    _workers: PortsWorkers
    _effects: PortsEffects
    _submit: PortsSubmit
    _dependencies: PortsDependencies
    _last_empty: tuple[float, int, Demand | None] = (-math.inf, 0, None)
    """The last claim for verdicts alone that found none: its time, the number of pointers pushed until
    then, and its demand."""

    async def claim(self, demand: Demand) -> Claim:
        records, pointers = self._records, self._pointers
        worker = await self._workers.get(demand.worker)
        if worker is None or not worker.is_alive(records.now()):
            await self._workers.remove_worker(demand.worker)
            return Claim(alive=False)
        await self._workers.remove_lapsed()
        if demand.limit == 0 and not self._is_worth_a_scan(demand):
            return Claim()
        scan = ClaimScan(demand)
        try:
            await self._pop(scan, worker)
            leases = await self._lease(scan)
        finally:
            await self._put_back(scan)
        if leases is None:
            return Claim(alive=False)
        if demand.limit == 0 and not leases:
            self._last_empty = (records.now(), pointers.pushed, demand)
        next_due = 0.0 if scan.in_vain else pointers.next_due(records.now())
        return Claim(tuple(leases), next_due=next_due)

    def _is_worth_a_scan(self, demand: Demand) -> bool:
        at, pushed, last_demand = self._last_empty
        waited = self._records.now() - at >= CHECK_INTERVAL
        return waited or self._pointers.pushed != pushed or demand != last_demand

    # -- looking at pointers ---------------------------------------------------------------------------

    async def _pop(self, scan: ClaimScan, worker: WorkerRecord) -> None:
        while scan.scanned < scan.most and (scan.room.left > 0 or scan.demand.limit == 0):
            asked = min(POP_LIMIT, scan.room.left or POP_LIMIT)
            popped = await self._records.ports.pop(asked, worker.lease)
            scan.add_popped(popped)
            for pulled in popped:
                await self._look(pulled, scan)
            if not popped or (scan.picked and len(popped) < asked):
                return

    async def _look(self, pulled: Pulled, scan: ClaimScan) -> None:
        """Decide about a pointer. A pointer without a decision is put back."""
        records = self._records
        pointer = read_pointer(pulled.body)
        if pointer is None:
            log.warning("dropped a body that treadle did not push from the queue: %.200s", pulled.body)
            await records.ports.dead_letter(pulled.body, "unreadable")
            await self._ack(pulled, scan)
            return
        stored = await records.item(pointer)
        record = None if stored is None else await scan.group(records, stored.group)
        member = None if record is None else record.open.get(pointer.id)
        if stored is None or member is None:
            await self._resume(pointer, stored, record)
            await self._ack(pulled, scan)
        elif member.token:
            await self._look_at_leased(pulled, stored, member, scan)
        elif stored.ref not in scan.seen:
            await self._look_at_free(pulled, stored, member, scan)

    async def _resume(self, ref: Ref, stored: StoredItem | None, record: GroupRecord | None) -> None:
        """The item cannot be leased. Complete what a crash has interrupted: its effects, or its
        submission."""
        if stored is not None and record is not None:
            await self._effects.resume(ref, stored.group, record)
        elif stored is not None and not stored.queued_by:
            await self._submit.resume(stored)

    async def _ack(self, pulled: Pulled, scan: ClaimScan) -> None:
        await self._records.ports.ack(pulled)
        scan.remove(pulled)

    async def _look_at_leased(
        self, pulled: Pulled, stored: StoredItem, member: OpenMember, scan: ClaimScan
    ) -> None:
        """Free the item if its lease is over. Otherwise look again when it will be."""
        now = self._records.now()
        worker = await self._workers.get(member.worker)
        if worker is not None and worker.is_alive(now) and member.token in worker.items:
            await self._records.ports.fail(pulled, worker.until - now)
        else:
            item = LeasedItem(*stored.ref, stored.group_id)
            await self._workers.free(member.worker, member.token, item)
            await self._records.ports.ack(pulled)
        scan.remove(pulled)

    async def _look_at_free(
        self, pulled: Pulled, stored: StoredItem, member: OpenMember, scan: ClaimScan
    ) -> None:
        now, room, item = self._records.now(), scan.room, stored.item
        verdict = groups.verdict_on(member, now) or await self._unknown_type(item, member, scan, now)
        if verdict is not None:
            if room.verdicts > 0 and room.covers(item) and await self._may_end(item.type, room):
                room.verdicts -= 1
                scan.pick(pulled, stored, verdict)
        elif member.status == "blocked" or member.due > now:
            await self._postpone(stored, member, now)
            await self._ack(pulled, scan)
        elif room.add(item):
            scan.pick(pulled, stored, None)

    async def _postpone(self, stored: StoredItem, member: OpenMember, now: float) -> None:
        """Look at the item again when it is due. Count the prerequisites of a blocked item: its submission
        may not have come that far."""
        decided = None
        if member.status == "blocked":
            decided = await self._dependencies.count_ended(stored, member.waits_for)
        due = groups.look_at(member)
        if decided is None and due is not None:
            await self._pointers.push(stored.ref, due, now)

    async def _may_end(self, type: str, room: DemandRoom) -> bool:
        """Whether this worker may end a doomed item: it has the type, or no live worker has."""
        return room.has_type(type) or not await self._workers.has_type(type)

    async def _unknown_type(
        self, item: Item, member: OpenMember, scan: ClaimScan, now: float
    ) -> Verdict | None:
        """The verdict `unknown_type` if no worker has had the type for longer than the grace."""
        grace = scan.demand.unknown_grace
        if grace is None or scan.room.has_type(item.type) or member.status == "blocked":
            return None
        if item.type == BULK_TYPE:
            return None
        since = max(member.ready_since, member.due)
        if now - since <= grace or await self._workers.has_type(item.type):
            return None
        gone = await self._workers.type_gone_since(item.type)
        return "unknown_type" if now - max(since, gone) > grace else None

    async def _put_back(self, scan: ClaimScan) -> None:
        delay = UNWANTED_DELAY if scan.in_vain else 0.0
        for pulled in scan.to_put_back.values():
            await self._records.ports.fail(pulled, delay)

    # -- leasing ---------------------------------------------------------------------------------------

    async def _lease(self, scan: ClaimScan) -> list[Lease] | None:
        """None: the worker is no longer alive."""
        if not scan.picked:
            return []
        tokens = await self._records.new_tokens(len(scan.picked))
        worker, picked = scan.demand.worker, dict(zip(tokens, scan.picked, strict=True))
        items = {token: LeasedItem(*pick.stored.ref, pick.stored.group_id) for token, pick in picked.items()}
        if not await self._workers.add_leases(worker, items):
            return None
        by_group: dict[Ref, dict[int, PickedItem]] = {}
        for token, pick in picked.items():
            by_group.setdefault(pick.stored.group, {})[token] = pick
        members: dict[int, OpenMember] = {}
        for group, picks in by_group.items():
            leased = await self._lease_members(worker, group, picks)
            members.update(leased)
            for token in leased:
                scan.remove(picks[token].pulled)
                self._pointers.keep(token, worker, picks[token].pulled)
        await self._workers.drop(worker, picked.keys() - members.keys())
        return [lease_of(picked[token].stored, members[token]) for token in picked if token in members]

    async def _lease_members(
        self, worker: str, group: Ref, picks: Mapping[int, PickedItem]
    ) -> dict[int, OpenMember]:
        """Lease members of a group in one step, except those that another process has changed."""
        records, now = self._records, self._records.now()

        def step(record: GroupRecord | None) -> tuple[dict[int, OpenMember], GroupRecord | Unchanged]:
            if record is None:
                return {}, UNCHANGED
            leased: dict[int, OpenMember] = {}
            for token, pick in picks.items():
                member = record.open.get(pick.stored.item.id)
                if member is not None and _can_be_leased(member, pick.verdict, now):
                    groups.lease(member, token, worker, pick.verdict, now)
                    leased[token] = member
            self._effects.clear_applied(group, record)
            return leased, record if leased else UNCHANGED

        return await records.change(records.keys.group(group), GROUP, step)


def _can_be_leased(member: OpenMember, verdict: Verdict | None, now: float) -> bool:
    if member.token:
        return False
    if verdict is not None:
        return verdict == "unknown_type" or groups.verdict_on(member, now) == verdict
    return member.status == "ready" or (member.status == "scheduled" and member.due <= now)
