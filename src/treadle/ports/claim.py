"""Claim: pop notes, look at what they name, and lease what is wanted.

A note says no more than "look at this item": what it finds may be to be run, to be ended, not wanted here,
not yet due, being run, or long done. Only what is done is acked.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from treadle.item import Claim, Demand, Item, Lease, Ref, Verdict

from . import ledger as moves
from .archive import LEDGER, UNCHANGED, Archive, Unchanged
from .follow import Following
from .gates import Gates
from .hands import Hands
from .names import read_note
from .papers import Header, Held, Ledger, Member, Worker
from .protocols import Pulled
from .read import lease_of
from .submit import Submitting
from .workers import LOOK, Workers

log = logging.getLogger("treadle")

PORTION = 100
"""The most to pop at once, and the most verdicts of one claim."""
SCAN = 1000
"""The most notes to look at in one claim."""
AWAY = 1.0
"""Where many notes are not wanted here, they are put back for so long, and others come to light."""


class Room:
    """What a demand has room for, as it fills."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self._types = None if demand.types is None else dict(demand.types)
        self.left = demand.limit
        self.verdicts = PORTION

    def concerns(self, item: Item) -> bool:
        """It is of the demanded queues and tenants."""
        queues, tenants = self._demand.queues, self._demand.tenants
        return (queues is None or item.queue in queues) and (tenants is None or item.tenant in tenants)

    def knows(self, type: str) -> bool:
        return self._types is None or type in self._types

    def take(self, item: Item) -> bool:
        """Whether there is room for it, which it fills then."""
        types, type = self._types, item.type
        avoided = (item.tenant, item.lane) in self._demand.avoid
        if self.left <= 0 or avoided or not self.concerns(item):
            return False
        if types is not None:
            if types.get(type, 0) <= 0:
                return False
            types[type] -= 1
        self.left -= 1
        return True


class Pick:
    """A note whose item is to be leased."""

    __slots__ = ("header", "pulled", "verdict")

    def __init__(self, pulled: Pulled, header: Header, verdict: Verdict | None) -> None:
        self.pulled = pulled
        self.header = header
        self.verdict: Verdict | None = verdict


class Look:
    """One claim: what was picked, and what is to be put back."""

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.room = Room(demand)
        self.seen: set[Ref] = set()
        self.picked: list[Pick] = []
        self._popped: dict[int, Pulled] = {}
        self._ledgers: dict[Ref, Ledger | None] = {}
        self.scanned = 0

    async def ledger(self, archive: Archive, group: Ref) -> Ledger | None:
        """As it was when this claim first met it: leasing looks again."""
        if group not in self._ledgers:
            self._ledgers[group] = await archive.ledger(group)
        return self._ledgers[group]

    def popped(self, popped: Sequence[Pulled]) -> None:
        self.scanned += len(popped)
        self._popped.update({id(pulled): pulled for pulled in popped})

    def dealt_with(self, pulled: Pulled) -> None:
        """It is not to be put back."""
        del self._popped[id(pulled)]

    def unwanted(self) -> list[Pulled]:
        return list(self._popped.values())

    @property
    def most(self) -> int:
        """How many notes to look at, at the most: for verdicts alone, not many."""
        return SCAN if self.demand.limit else 2 * PORTION

    def pick(self, pulled: Pulled, header: Header, verdict: Verdict | None) -> None:
        self.seen.add(header.ref)
        self.picked.append(Pick(pulled, header, verdict))


class Claiming:
    def __init__(
        self,
        archive: Archive,
        workers: Workers,
        hands: Hands,
        following: Following,
        submitting: Submitting,
        gates: Gates,
    ) -> None:
        self._archive = archive
        self._workers = workers
        self._hands = hands
        self._following = following
        self._submitting = submitting
        self._gates = gates
        self._in_vain: tuple[float, int, Demand | None] = (-math.inf, 0, None)
        """Who last looked for verdicts alone and found none: when, with how many notes pushed from here."""

    async def claim(self, demand: Demand) -> Claim:
        archive = self._archive
        worker = await self._workers.get(demand.worker)
        if worker is None or worker.dying or worker.until <= archive.now():
            await self._workers.remove_worker(demand.worker)
            return Claim(alive=False)
        await self._workers.bury_lapsed()
        if demand.limit == 0 and not self._worth_a_look(demand):
            return Claim()
        look = Look(demand)
        try:
            await self._pop(look, worker)
            leases = await self._lease(look)
        finally:
            await self._put_back(look)
        if leases is None:
            return Claim(alive=False)
        if demand.limit == 0 and not leases:
            self._in_vain = (archive.now(), archive.pushed, demand)
        return Claim(tuple(leases), next_due=archive.next_due(archive.now()))

    def _worth_a_look(self, demand: Demand) -> bool:
        at, pushed, asked = self._in_vain
        return self._archive.now() - at >= LOOK or self._archive.pushed != pushed or demand != asked

    # -- popping ---------------------------------------------------------------------------------------

    async def _pop(self, look: Look, worker: Worker) -> None:
        while look.scanned < look.most and (look.room.left > 0 or look.demand.limit == 0):
            asked = min(PORTION, look.room.left or PORTION)
            popped = await self._archive.ports.pop(asked, worker.lease)
            look.popped(popped)
            for pulled in popped:
                await self._look(pulled, look)
            if not popped or (look.picked and len(popped) < asked):
                return

    async def _look(self, pulled: Pulled, look: Look) -> None:
        """Decide what becomes of a note. Until then it is one to be put back."""
        archive = self._archive
        note = read_note(pulled.body)
        if note is None:
            log.warning("what is not ours was found in the queue, and dropped: %.200s", pulled.body)
            await archive.ports.dead_letter(pulled.body, "unreadable")
            await self._done(pulled, look)
            return
        header = await archive.header(note)
        ledger = None if header is None else await look.ledger(archive, header.group)
        member = None if ledger is None else ledger.open.get(note.id)
        if header is None or member is None:
            await self._gone(note, header, ledger)
            await self._done(pulled, look)
        elif member.token:
            await self._leased(pulled, header, member, look)
        elif header.ref not in look.seen:
            await self._free(pulled, header, member, look)

    async def _gone(self, ref: Ref, header: Header | None, ledger: Ledger | None) -> None:
        """There is nothing to be leased, but perhaps something to be finished."""
        if header is not None and ledger is not None:
            await self._following.finish(ref, header.group, ledger)
        elif header is not None and not header.by:
            await self._submitting.finish(header)

    async def _done(self, pulled: Pulled, look: Look) -> None:
        await self._archive.ports.ack(pulled)
        look.dealt_with(pulled)

    async def _leased(self, pulled: Pulled, header: Header, member: Member, look: Look) -> None:
        """Somebody has it. It is looked at again when that one's lease is over, and freed if that is now."""
        now = self._archive.now()
        worker = await self._workers.get(member.worker)
        if worker is not None and worker.until > now and not worker.dying and member.token in worker.held:
            await self._archive.ports.fail(pulled, worker.until - now)
        else:
            held = Held(*header.ref, header.group_id)
            await self._workers.free(member.worker, member.token, held)
            await self._archive.ports.ack(pulled)
        look.dealt_with(pulled)

    async def _free(self, pulled: Pulled, header: Header, member: Member, look: Look) -> None:
        """Nobody has it."""
        now, room = self._archive.now(), look.room
        verdict = moves.verdict_on(member, now) or await self._unknown(header.item, member, look, now)
        if verdict is not None:
            if (
                room.verdicts > 0
                and room.concerns(header.item)
                and await self._may_judge(header.item.type, room)
            ):
                room.verdicts -= 1
                look.pick(pulled, header, verdict)
        elif member.status == "blocked" or member.due > now:
            await self._too_early(header, member, now)
            await self._done(pulled, look)
        elif room.take(header.item):
            look.pick(pulled, header, None)

    async def _too_early(self, header: Header, member: Member, now: float) -> None:
        """It is looked at again when it is due. What is blocked may be so because nobody has looked."""
        counted = None
        if member.status == "blocked":
            counted = await self._gates.look(header, member.waits)
        due = moves.look_at(member)
        if counted is None and due is not None:
            await self._archive.notify(header.ref, due, now)

    async def _may_judge(self, type: str, room: Room) -> bool:
        """A worker that has the type, or any if nobody has it."""
        return room.knows(type) or not await self._workers.has_type(type)

    async def _unknown(self, item: Item, member: Member, look: Look, now: float) -> Verdict | None:
        """Nobody has had its type for too long."""
        grace = look.demand.unknown_grace
        if grace is None or look.room.knows(item.type) or member.status == "blocked":
            return None
        since = max(member.since, member.due)
        if now - since <= grace or await self._workers.has_type(item.type):
            return None
        gone = await self._workers.gone_since(item.type)
        return "unknown_type" if now - max(since, gone) > grace else None

    async def _put_back(self, look: Look) -> None:
        delay = AWAY if look.scanned >= SCAN and not look.picked else 0.0
        for pulled in look.unwanted():
            await self._archive.ports.fail(pulled, delay)

    # -- leasing ---------------------------------------------------------------------------------------

    async def _lease(self, look: Look) -> list[Lease] | None:
        """None: the worker is no longer alive."""
        if not look.picked:
            return []
        worker, picked = look.demand.worker, dict(zip(await self._tokens(look), look.picked, strict=True))
        held = {token: Held(*pick.header.ref, pick.header.group_id) for token, pick in picked.items()}
        if not await self._workers.hold(worker, held):
            return None
        groups: dict[Ref, dict[int, Pick]] = {}
        for token, pick in picked.items():
            groups.setdefault(pick.header.group, {})[token] = pick
        members: dict[int, Member] = {}
        for group, some in groups.items():
            members.update(await self._leased_to(worker, group, some))
            self._take(look, worker, {token: pick for token, pick in some.items() if token in members})
        await self._workers.drop(worker, picked.keys() - members.keys())
        return [lease_of(picked[token].header, members[token]) for token in picked if token in members]

    async def _tokens(self, look: Look) -> range:
        return await self._archive.tokens(len(look.picked))

    def _take(self, look: Look, worker: str, picked: Mapping[int, Pick]) -> None:
        for token, pick in picked.items():
            look.dealt_with(pick.pulled)
            self._hands.take(token, worker, pick.pulled)

    async def _leased_to(self, worker: str, group: Ref, picked: Mapping[int, Pick]) -> dict[int, Member]:
        """Lease these members of a group, in one step, but for those that somebody else was faster for."""
        archive, now = self._archive, self._archive.now()

        def step(ledger: Ledger | None) -> tuple[dict[int, Member], Ledger | Unchanged]:
            if ledger is None:
                return {}, UNCHANGED
            leased: dict[int, Member] = {}
            for token, pick in picked.items():
                member = ledger.open.get(pick.header.item.id)
                if member is not None and _is_free(member, pick.verdict, now):
                    moves.lease(member, token, worker, pick.verdict, now)
                    leased[token] = member
            self._following.paid(group, ledger)
            return leased, ledger if leased else UNCHANGED

        return await archive.change(archive.names.group(group), LEDGER, step)


def _is_free(member: Member, verdict: Verdict | None, now: float) -> bool:
    if member.token:
        return False
    if verdict is not None:
        return verdict == "unknown_type" or moves.verdict_on(member, now) == verdict
    return member.status == "ready" or (member.status == "scheduled" and member.due <= now)
