"""Submit: each root becomes a group of one.

    reserve its id -> register it with its prerequisites -> push a pointer -> write its GroupRecord
    -> count the prerequisites that have ended

The StoredItem says what was submitted: a process that finds one without a GroupRecord completes the
submission. Where there is a GroupRecord, a pointer was pushed before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec import Struct

from treadle.item import DEFAULT_TENANT, Item, Ref, Rejected, Status, Submission, Submitted
from treadle.store.rules.submission import KeyHolder, KeyRef, SubmitPlan, plan_submission
from treadle.store.rules.times import deadline_at, due_at, waiting_status

from . import groups
from .async_ports import Pointers
from .dependencies import PortsDependencies
from .read import lease_of
from .records import GROUP, GroupRecord, LeasedItem, OpenMember, Records, Snapshot, StoredItem, encode
from .workers import PortsWorkers


@dataclass(eq=False)
class PortsSubmit:
    _records: Records
    _pointers: Pointers
    _reserver: Reserver
    _dependencies: PortsDependencies
    _workers: PortsWorkers

    async def submit(self, submissions: Sequence[Submission]) -> list[tuple[Submitted, ...] | Rejected]:
        return [await self.submit_together(submission.items) for submission in submissions]

    async def submit_together(self, items: Sequence[Item]) -> tuple[Submitted, ...] | Rejected:
        """Store all items, or none. (A crash may leave some of them stored.)"""
        now = self._records.now()
        reservation = await self._reserver.reserve(items, now)
        if isinstance(reservation, Rejected):
            await self._resume_rejected(items, reservation)
            return reservation
        new = reservation.items
        for stored in new.values():
            await self._dependencies.register(stored, stored.item.after)
        tokens = await self._lease(new.values(), now)
        submitted = {ref: await self._create_group(stored, tokens.get(ref, 0)) for ref, stored in new.items()}
        answers: list[Submitted] = []
        for ref, existing in reservation.plan.answers:
            answers.append(await self._existing(ref) if existing else submitted[ref])
        return tuple(answers)

    async def resume(self, stored: StoredItem) -> None:
        """Complete the submission of an item that has no group."""
        await self._dependencies.register(stored, stored.item.after)
        await self._create_group(stored)

    async def _lease(self, new: Iterable[StoredItem], now: float) -> dict[Ref, int]:
        """Tokens for the items that a live worker is to lease at once."""
        wanted: dict[str, list[StoredItem]] = defaultdict(list)
        for stored in new:
            overdue = stored.deadline is not None and stored.deadline <= now
            if stored.item.lease_to and not stored.item.after and stored.due_at <= now and not overdue:
                wanted[stored.item.lease_to].append(stored)
        tokens: dict[Ref, int] = {}
        for worker, items in wanted.items():
            given = dict(zip(await self._records.new_tokens(len(items)), items, strict=True))
            leases = {token: LeasedItem(*stored.ref, stored.group_id) for token, stored in given.items()}
            if await self._workers.add_leases(worker, leases):
                tokens.update({stored.ref: token for token, stored in given.items()})
        return tokens

    async def _create_group(self, stored: StoredItem, token: int = 0) -> Submitted:
        """Create the group of a root. May be repeated."""
        now, id = self._records.now(), stored.item.id
        record = GroupRecord(stored.item.type)
        groups.add_member(record, stored)
        groups.unblock(record, id, now)
        if token:
            groups.lease(record.open[id], token, stored.item.lease_to or "", None, now)
        else:
            # A worker that looks at a blocked item counts its prerequisites.
            due = now if stored.item.after else groups.look_at(record.open[id])
            await self._pointers.push(stored.ref, now if due is None else due, now)
        member = await self._write_group(stored, record)
        status: Status = member.status
        if member.waits_for and await self._dependencies.count_ended(stored, member.waits_for) == "released":
            status = waiting_status(member.due, now)
        leased = token and member.token == token
        return Submitted(
            id, False, status, lease_of(stored, member) if leased else None, id, stored.queued_at
        )

    async def _write_group(self, stored: StoredItem, record: GroupRecord) -> OpenMember:
        """Return the member as it is in the store. The record of an older item with the same id is
        overwritten."""
        records, id = self._records, stored.item.id
        key = records.keys.group(stored.group)
        while not await records.create(key, record):
            draft = await records.draft(key, GROUP)
            if draft.record is not None and id in draft.record.open:
                return draft.record.open[id]
            if draft.record is None or await records.replace(key, draft, record):
                break
        return record.open[id]

    async def _existing(self, ref: Ref) -> Submitted:
        """The earlier item that answers for a key."""
        stored = await self._records.item(ref)
        if stored is None:
            return Submitted(ref[1], existing=True, group_id=ref[1])
        record = await self._records.group(stored.group)
        if record is None:
            await self.resume(stored)
        member = None if record is None else record.open.get(ref[1]) or record.ended.get(ref[1])
        status: Status = "ready" if member is None else member.status
        return Submitted(ref[1], existing=True, status=status, group_id=stored.group_id)

    async def _resume_rejected(self, items: Iterable[Item], rejected: Rejected) -> None:
        """An id may be taken by a submission that crashed, perhaps an earlier try of this one."""
        if rejected.why != "duplicate_id":
            return
        for item in items:
            if item.id in rejected.ids:
                stored = await self._records.item((item.tenant, item.id))
                if stored is None or stored.queued_by:
                    continue
                if await self._records.group(stored.group) is None:
                    await self.resume(stored)


class Reservation(Struct):
    """Items and keys that are reserved. Undo it, or add the items to a GroupRecord."""

    plan: SubmitPlan
    items: dict[Ref, StoredItem] = {}
    taken_keys: list[tuple[str, str, str | None]] = []
    """The key, its new owner, and its owner before."""


class Reserver:
    """Has new items take their ids and idempotency keys, and refuses cycles. No item exists yet.

    Each reservation is undone if a later step fails. A crash may leave a StoredItem that no GroupRecord
    lists. That item does not exist. It blocks only a root with the same id, and submitting that root
    completes it.
    """

    def __init__(self, records: Records, dependencies: PortsDependencies) -> None:
        self._records = records
        self._dependencies = dependencies

    async def reserve(
        self, items: Sequence[Item], now: float, *, queued_by: int = 0, group_id: str | None = None
    ) -> Reservation | Rejected:
        """Reserve roots, or children that the settlement `queued_by` adds to a group."""
        while True:
            keys = await self._read_keys(items)
            owners = {key: await self._owner(key[0], seen) for key, seen in keys.items()}
            # Whether an id is taken is decided when it is reserved.
            plan = plan_submission(items, now, owners.__getitem__, (await self._present(items)).__contains__)
            if isinstance(plan, Rejected):
                return plan
            reservation = Reservation(plan)
            rejected = await self._reserve_ids(reservation, now, queued_by, group_id)
            rejected = rejected or await self._dependencies.find_cycle(reservation.items)
            if rejected is None and await self._take_keys(reservation, keys):
                return reservation
            await self.undo(reservation)
            if rejected is not None and not await self._resume(plan, keys, rejected):
                return rejected
            # Another item owns a key now: plan again.

    async def undo(self, reservation: Reservation) -> None:
        records = self._records
        for key, owner, before in reversed(reservation.taken_keys):
            seen = await records.texts.read(key)
            if seen.text == owner:
                await records.texts.replace(key, seen, before)
        for ref in reservation.items:
            await records.ports.delete(records.keys.item(ref))

    async def _present(self, items: Sequence[Item]) -> set[Ref]:
        """The items that must exist, and do."""
        refs = {(item.tenant, id) for item in items for id in item.must_exist}
        return {ref for ref in refs if await self._records.item(ref) is not None}

    # -- keys ------------------------------------------------------------------------------------------

    async def _read_keys(self, items: Sequence[Item]) -> dict[KeyRef, Snapshot]:
        keys = {(item.tenant, item.type, item.key): None for item in items if item.key is not None}
        records = self._records
        return {key: await records.texts.read(records.keys.idempotency_key(*key)) for key in keys}

    async def _owner(self, tenant: str, seen: Snapshot) -> KeyHolder | None:
        """The item that owns a key. None: there is none, or it was reserved and never became a member."""
        stored = None if seen.text is None else await self._records.item((tenant, seen.text))
        if stored is None:
            return None
        record = await self._records.group(stored.group)
        if stored.queued_by and (record is None or not record.has(stored.item.id)):
            return None
        return KeyHolder(stored.item.id, record is None or record.ended_at is None, stored.queued_at)

    async def _take_keys(self, reservation: Reservation, keys: dict[KeyRef, Snapshot]) -> bool:
        """All processes take keys in the same order, so that no two block each other."""
        texts = self._records.texts
        for key_ref, ref in sorted(reservation.plan.keys.items()):
            key, seen = self._records.keys.idempotency_key(*key_ref), keys[key_ref]
            if not await texts.replace(key, seen, ref[1]):
                return False
            reservation.taken_keys.append((key, ref[1], seen.text))
        return True

    async def _resume(self, plan: SubmitPlan, keys: dict[KeyRef, Snapshot], rejected: Rejected) -> bool:
        """A submission that crashed may have reserved an id and not taken the key of that item. Take the key
        for it, so that it answers for the new item. Return whether there was one."""
        resumed = False
        records = self._records
        for key_ref, ref in plan.keys.items():
            stored = await records.item(ref) if ref[1] in rejected.ids else None
            if stored is None or stored.queued_by:
                continue
            same_key = (stored.item.type, stored.item.key) == key_ref[1:]
            if same_key and await records.group(stored.group) is None:
                await records.texts.replace(records.keys.idempotency_key(*key_ref), keys[key_ref], ref[1])
                resumed = True
        return resumed

    # -- ids -------------------------------------------------------------------------------------------

    async def _reserve_ids(
        self, reservation: Reservation, now: float, queued_by: int, group_id: str | None
    ) -> Rejected | None:
        taken: list[str] = []
        for ref, item in reservation.plan.new.items():
            stored = StoredItem(
                item,
                item.id if group_id is None else group_id,
                now,
                due_at(item, now),
                deadline_at(item, now),
                queued_by,
            )
            if await self._reserve_id(stored):
                reservation.items[ref] = stored
            else:
                taken.append(item.id)
        return Rejected("duplicate_id", tuple(taken)) if taken else None

    async def _reserve_id(self, stored: StoredItem) -> bool:
        records, key = self._records, self._records.keys.item(stored.ref)
        while not await records.ports.set_if_absent(key, encode(stored)):
            present = await records.item(stored.ref)
            if present is None:
                continue
            if stored.queued_by and present.queued_by == stored.queued_by:
                return True  # this settlement reserved it before, and did not finish
            if not present.queued_by or not await self._is_void(present):
                return False
            await records.ports.delete(key)
        await self._record_tenant(stored)
        return True

    async def _is_void(self, stored: StoredItem) -> bool:
        """Whether a child was reserved by a settlement that was never applied, and never will be."""
        record = await self._records.group(stored.group)
        if record is None:
            return True
        token = stored.queued_by
        return not record.has(stored.item.id) and all(one.token != token for one in record.open.values())

    async def _record_tenant(self, stored: StoredItem) -> None:
        """Write which tenant used the id first."""
        tenant, id = stored.ref
        if tenant == DEFAULT_TENANT:
            return
        records = self._records
        first = tenant if await records.item((DEFAULT_TENANT, id)) is None else DEFAULT_TENANT
        await records.ports.set_if_absent(records.keys.first_tenant(id), first)
