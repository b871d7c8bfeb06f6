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

from treadle.item import Item, Ref, Rejected, Status, Submission, Submitted
from treadle.store.rules.times import waiting_status

from . import groups
from .dependencies import PortsDependencies
from .pointers import Pointers
from .read import lease_of
from .records import GROUP, Records
from .reserve import Reserver
from .stored import GroupRecord, LeasedItem, OpenMember, StoredItem
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
