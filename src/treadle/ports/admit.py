"""Admit: new items on their way in. Keys are resolved, ids reserved, cycles refused; nothing is a member yet.

Each of these is undone if a later one fails. What a crash leaves behind is a Header that no ledger knows: it
does not exist for anybody, and does not stand in anybody's way but that of a root with the same id, which
finishes what was begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from treadle import rules
from treadle.item import DEFAULT_TENANT, Item, Ref, Rejected

from .archive import Archive, written
from .cycles import Cycles
from .gates import Gates
from .papers import Header, Ledger
from .records import Seen


class KeyRef(NamedTuple):
    tenant: str
    type: str
    key: str


class Plan:
    """What a submission, or a settlement's children, come to."""

    __slots__ = ("answers", "keys", "new")

    def __init__(self) -> None:
        self.new: dict[Ref, Item] = {}
        self.answers: list[tuple[Ref, bool]] = []
        """For each item asked for, in order: who answers, and whether that is an earlier item."""
        self.keys: dict[KeyRef, tuple[Ref, Seen]] = {}
        """Keys to take: for whom, and what was seen to be there."""


class Admission:
    """What has been reserved. `undo` it, or make its headers members of a ledger."""

    __slots__ = ("answers", "headers", "taken")

    def __init__(self, answers: Sequence[tuple[Ref, bool]]) -> None:
        self.answers = answers
        self.headers: dict[Ref, Header] = {}
        self.taken: list[tuple[str, str, str | None]] = []
        """Keys that were taken: where, by whom, from whom."""


class Admitter:
    def __init__(self, archive: Archive, gates: Gates) -> None:
        self._archive = archive
        self._cycles = Cycles(archive, gates)

    async def admit(
        self, items: Sequence[Item], now: float, *, by: int = 0, group_id: str | None = None
    ) -> Admission | Rejected:
        """Reserve these: roots, or children that the settlement `by` queues into a group."""
        while True:
            plan = await self._plan(items, now)
            if isinstance(plan, Rejected):
                return plan
            admission = Admission(plan.answers)
            rejected = await self._reserve(plan, admission, now, by, group_id)
            rejected = rejected or await self._cycles.find(admission.headers)
            if rejected is None and await self._take_keys(plan, admission):
                return admission
            await self.undo(admission)
            if rejected is not None and not await self._resume(plan, rejected):
                return rejected
            # Somebody else has a key now: see who answers.

    async def undo(self, admission: Admission) -> None:
        archive = self._archive
        for key, mine, before in reversed(admission.taken):
            seen = await archive.records.read(key)
            if seen.text == mine:
                await archive.records.replace(key, seen, before)
        for ref in admission.headers:
            await archive.ports.delete(archive.names.item(ref))

    # -- keys ------------------------------------------------------------------------------------------

    async def _plan(self, items: Sequence[Item], now: float) -> Plan | Rejected:
        """Who answers for whom. Changes nothing."""
        plan = Plan()
        renamed: dict[Ref, str] = {}
        twice: dict[str, None] = {}
        for item in items:
            ref = (item.tenant, item.id)
            earlier = None if item.key is None else await self._holder(plan, item, item.key, now)
            if earlier is not None:
                renamed[ref] = earlier[1]
            elif ref in plan.new:
                twice[item.id] = None
            else:
                plan.new[ref] = item
            plan.answers.append((earlier or ref, earlier is not None))
        if twice:
            return Rejected("duplicate_id", tuple(twice))
        for ref, item in plan.new.items():
            after = tuple(renamed.get((item.tenant, id), id) for id in item.after)
            plan.new[ref] = replace(item, after=after)
        return plan

    async def _holder(self, plan: Plan, item: Item, key: str, now: float) -> Ref | None:
        """The earlier item that answers for this one. None: this one is to hold the key."""
        wanted = KeyRef(item.tenant, item.type, key)
        if wanted in plan.keys:
            return plan.keys[wanted][0]
        seen = await self._archive.records.read(self._archive.names.key(*wanted))
        if seen.text is not None:
            earlier = (item.tenant, seen.text)
            if await self._answers(earlier, item, now):
                return earlier
        plan.keys[wanted] = ((item.tenant, item.id), seen)
        return None

    async def _answers(self, earlier: Ref, item: Item, now: float) -> bool:
        header = await self._archive.header(earlier)
        if header is None:
            return False
        ledger = await self._archive.ledger(header.group)
        if header.by and not knows(ledger, header):
            return False
        is_open = ledger is None or ledger.ended_at is None
        return rules.key_answers(item.key_scope, group_open=is_open, age=now - header.queued_at)

    async def _take_keys(self, plan: Plan, admission: Admission) -> bool:
        """In one order for all, so that no two hold what the other needs."""
        archive = self._archive
        for wanted, (ref, seen) in sorted(plan.keys.items(), key=lambda entry: entry[0]):
            key = archive.names.key(*wanted)
            if not await archive.records.replace(key, seen, ref[1]):
                return False
            admission.taken.append((key, ref[1], seen.text))
        return True

    async def _resume(self, plan: Plan, rejected: Rejected) -> bool:
        """An id may be taken by an item of the same key, of a submission that was cut short before it took
        that key. It takes it now, and answers."""
        resumed = False
        for wanted, (ref, seen) in plan.keys.items():
            there = await self._archive.header(ref) if ref[1] in rejected.ids else None
            if there is None or there.by or (there.item.type, there.item.key) != (wanted.type, wanted.key):
                continue
            if await self._archive.ledger(there.group) is None:
                await self._archive.records.replace(self._archive.names.key(*wanted), seen, ref[1])
                resumed = True
        return resumed

    # -- ids -------------------------------------------------------------------------------------------

    async def _reserve(
        self, plan: Plan, admission: Admission, now: float, by: int, group_id: str | None
    ) -> Rejected | None:
        taken: list[str] = []
        for ref, item in plan.new.items():
            header = Header(
                item,
                item.id if group_id is None else group_id,
                now,
                rules.due_at(item, now),
                rules.deadline_at(item, now),
                by,
            )
            if await self._reserved(header):
                admission.headers[ref] = header
            else:
                taken.append(item.id)
        return Rejected("duplicate_id", tuple(taken)) if taken else None

    async def _reserved(self, header: Header) -> bool:
        archive, key = self._archive, self._archive.names.item(header.ref)
        while not await archive.ports.set_if_absent(key, written(header)):
            there = await archive.header(header.ref)
            if there is None:
                continue
            if header.by and there.by == header.by:
                return True  # this very settlement did, and was cut short
            if not there.by or not await self._is_void(there):
                return False
            await archive.ports.delete(key)
        await self._note_first(header)
        return True

    async def _is_void(self, header: Header) -> bool:
        """It was reserved by a settlement that never came to be."""
        ledger = await self._archive.ledger(header.group)
        if ledger is None:
            return True
        return not knows(ledger, header) and all(one.token != header.by for one in ledger.open.values())

    async def _note_first(self, header: Header) -> None:
        tenant, id = header.ref
        if tenant == DEFAULT_TENANT:
            return
        archive = self._archive
        first = tenant if await archive.header((DEFAULT_TENANT, id)) is None else DEFAULT_TENANT
        await archive.ports.set_if_absent(archive.names.first(id), first)


def knows(ledger: Ledger | None, header: Header) -> bool:
    id = header.item.id
    return ledger is not None and (id in ledger.open or id in ledger.past)
