"""Settle: attempts end.

    children are reserved, results written -> the ledger is replaced, in one step -> what follows from it
    -> the note is acked -> the worker's record lets go

Up to the ledger everything can be undone, from there on everything can be repeated: a crash can do work
twice, never lose it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from treadle.item import Effects, EndedGroup, Item, Outcome, Ref, Rejected, ReleasedItem, Settled, Settlement

from . import ledger as moves
from .admit import Admission, Admitter
from .archive import LEDGER, Archive, give_way
from .ending import (
    ENDS,
    apply_end,
    contributed,
    contributes,
    erase_end,
    group_of,
    ref_of,
    write_end,
    write_failure,
)
from .follow import Following
from .gates import Gates
from .hands import Hands
from .ledger import Moves, Standing
from .papers import Header, Ledger
from .workers import Workers

AGAIN = Outcome(verb="applied", again=True)
NOBODY = Admission(())


class Call:
    """What one call of settle adds up to."""

    def __init__(self) -> None:
        self.released: list[Ref] = []
        self.closed: list[EndedGroup] = []
        self.doomed = 0
        self.refused: set[Ref] = set()
        """Groups of which a fold was refused: later folds were computed from what did not come to be."""
        self.dropped: dict[str, set[int]] = defaultdict(set)
        """Tokens that are done with, by worker."""


class Step:
    """One settlement, applied to a ledger that is not written yet; or why not."""

    __slots__ = ("due", "failed", "followed", "outcome", "settlement", "worker")

    def __init__(self, settlement: Settlement, outcome: Outcome, worker: str = "") -> None:
        self.settlement = settlement
        self.outcome = outcome
        self.worker = worker
        """Who held it; none if it is not applied."""
        self.followed: Moves | None = None
        self.failed: list[int] = []
        """The tokens of failed attempts that are part of its end now."""
        self.due = 0.0


class Settling:
    def __init__(
        self,
        archive: Archive,
        admitter: Admitter,
        gates: Gates,
        following: Following,
        hands: Hands,
        workers: Workers,
    ) -> None:
        self._archive = archive
        self._admitter = admitter
        self._gates = gates
        self._following = following
        self._hands = hands
        self._workers = workers

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        call = Call()
        outcomes: dict[int, Outcome] = {}
        for run in runs(settlements):
            answers = await self._settle([settlements[index] for index in run], call)
            outcomes.update(zip(run, answers, strict=True))
        for worker, tokens in call.dropped.items():
            self._workers.forget(worker, tokens)
        going_on = [released(header) for header in await self._archive.headers(call.released)]
        effects = Effects(tuple(going_on), tuple(call.closed), call.doomed)
        return Settled(tuple(outcomes[index] for index in range(len(settlements))), effects)

    async def _settle(self, run: list[Settlement], call: Call) -> list[Outcome]:
        """Settlements of one group, in one step."""
        admission = await self._admit(run[0])
        if isinstance(admission, Rejected):
            return [await self._reject(run[0], admission, call)]
        group = group_of(run[0])
        key = self._archive.names.group(group)
        while True:
            draft = await self._archive.draft(key, LEDGER)
            ledger = draft.paper
            refused = set(call.refused)
            steps = [await self._step(one, ledger, admission, refused) for one in run]
            if ledger is None or not any(step.worker for step in steps):
                break
            self._following.paid(group, ledger)
            if await self._archive.put(key, draft, ledger):
                break
            await give_way()
        call.refused = refused
        for step in steps:
            await (self._follow(step, ledger, call) if step.worker else self._refuse(step, ledger, admission))
        return [step.outcome for step in steps]

    # -- children --------------------------------------------------------------------------------------

    async def _admit(self, settlement: Settlement) -> Admission | Rejected:
        """Reserve the children, and note what they wait for in other groups."""
        if not settlement.children:
            return NOBODY
        lease, group = settlement.lease, group_of(settlement)
        ledger = await self._archive.ledger(group)
        if ledger is None or moves.standing(ledger, lease.id, lease.token) != "held":
            return NOBODY
        children = [_child(settlement, item) for item in settlement.children]
        now = self._archive.now()
        admission = await self._admitter.admit(children, now, by=lease.token, group_id=lease.group_id)
        if isinstance(admission, Rejected):
            return admission
        inside = {lease.id, *(id for _, id in admission.headers), *ledger.open, *ledger.past}
        for header in admission.headers.values():
            await self._gates.register(header, [id for id in header.item.after if id not in inside])
        return admission

    async def _reject(self, settlement: Settlement, rejected: Rejected, call: Call) -> Outcome:
        if _folds(settlement):
            call.refused.add(group_of(settlement))
        return Outcome(verb="rejected", rejected=rejected)

    # -- one settlement on a ledger --------------------------------------------------------------------

    async def _step(
        self, settlement: Settlement, ledger: Ledger | None, admission: Admission, refused: set[Ref]
    ) -> Step:
        lease = settlement.lease
        found = moves.standing(ledger, lease.id, lease.token)
        if found != "held" or ledger is None:
            if _folds(settlement) and found != "again":
                refused.add(group_of(settlement))
            return Step(settlement, _refusal(found))
        if settlement.kind not in ENDS:
            return await self._put_back(settlement, ledger)
        moved = await self._moved(settlement, ledger, refused)
        return moved or await self._end(settlement, ledger, admission)

    async def _moved(self, settlement: Settlement, ledger: Ledger, refused: set[Ref]) -> Step | None:
        """A fold that was computed from another value than the group's."""
        contribution, group = settlement.contribution, group_of(settlement)
        if contribution is None or contribution.version is None:
            return None
        if contribution.version == ledger.version and group not in refused:
            return None
        refused.add(group)
        value = await self._archive.value(group, ledger)
        outcome = Outcome(verb="moved", version=ledger.version, value=value, final=ledger.final)
        return Step(settlement, outcome)

    async def _put_back(self, settlement: Settlement, ledger: Ledger) -> Step:
        member, now = ledger.open[settlement.lease.id], self._archive.now()
        step = Step(settlement, Outcome(verb="applied"), member.worker)
        await write_failure(self._archive, settlement, member, now)
        moves.put_back(ledger, settlement, now)
        step.due = moves.look_at(member) or 0.0
        return step

    async def _end(self, settlement: Settlement, ledger: Ledger, admission: Admission) -> Step:
        member, now = ledger.open[settlement.lease.id], self._archive.now()
        await write_end(self._archive, settlement, member, now)
        locked = ledger.final
        followed = apply_end(ledger, settlement, admission, now)
        pairs = zip(settlement.children, admission.answers, strict=True)
        existing = {child.id: ref[1] for child, (ref, is_existing) in pairs if is_existing}
        outcome = Outcome(verb="applied", existing=existing or None)
        if contributes(settlement):
            value = await self._locked(settlement, ledger) if locked else contributed(settlement)
            outcome = replace(outcome, version=ledger.version, value=value)
        step = Step(settlement, outcome, member.worker)
        step.followed, step.failed = followed, member.failed
        return step

    async def _locked(self, settlement: Settlement, ledger: Ledger) -> bytes | None:
        return await self._archive.value(group_of(settlement), ledger)

    # -- afterwards ------------------------------------------------------------------------------------

    async def _follow(self, step: Step, ledger: Ledger | None, call: Call) -> None:
        assert ledger is not None
        settlement, now = step.settlement, self._archive.now()
        ref, group, token = ref_of(settlement), group_of(settlement), settlement.lease.token
        if step.followed is not None:
            told = await self._following.follow(ref, group, ledger)
            for failed in step.failed:
                await self._archive.ports.delete(self._archive.names.failed(ref, failed))
            await self._hands.done(token)
            call.released += [*((ref[0], id) for id in step.followed.released), *told.released]
            call.doomed += len(step.followed.doomed) + told.doomed
            if step.followed.closed:
                value = await self._archive.value(group, ledger)
                call.closed.append(EndedGroup(group[1], group[0], value, ledger.type))
        elif settlement.kind == "release":
            await self._hands.put_back(token, ref, step.due, now)
        else:
            await self._hands.renew(token, ref, step.due, now)
        call.dropped[step.worker].add(token)

    async def _refuse(self, step: Step, ledger: Ledger | None, admission: Admission) -> None:
        settlement = step.settlement
        token = settlement.lease.token
        if step.outcome.again:
            await self._repeat(settlement, ledger)
            return
        await self._admitter.undo(admission)
        if step.outcome.verb == "stale":
            if settlement.kind in ENDS:
                await erase_end(self._archive, settlement)
            await self._hands.let_go(token)

    async def _repeat(self, settlement: Settlement, ledger: Ledger | None) -> None:
        """It was settled before, and perhaps cut short before all that follows was done."""
        lease, ref = settlement.lease, ref_of(settlement)
        member = None if ledger is None else ledger.open.get(lease.id)
        if member is None:
            await self._following.finish(ref, group_of(settlement), ledger)
        elif member.settled[-1:] == [lease.token] and (due := moves.look_at(member)) is not None:
            await self._archive.notify(ref, due, self._archive.now())
        await self._hands.done(lease.token)


def runs(settlements: Sequence[Settlement]) -> Iterable[list[int]]:
    """Which settlements are applied in one step: those of a group that bring no children. Those that do stand
    alone, where they are: of ids and keys, the first one wins."""
    stretch: dict[Ref, list[int]] = {}
    for index, settlement in enumerate(settlements):
        if settlement.children:
            yield from stretch.values()
            stretch = {}
            yield [index]
        else:
            stretch.setdefault(group_of(settlement), []).append(index)
    yield from stretch.values()


def _folds(settlement: Settlement) -> bool:
    return settlement.contribution is not None and settlement.contribution.version is not None


def _child(settlement: Settlement, item: Item) -> Item:
    lease = settlement.lease
    return replace(item, tenant=lease.tenant, parent=lease.id if item.parent is None else item.parent)


def _refusal(found: Standing) -> Outcome:
    return AGAIN if found == "again" or found == "held" else Outcome(verb="stale", loss=found)


def released(header: Header) -> ReleasedItem:
    item = header.item
    return ReleasedItem(item.id, item.tenant, item.type, header.group_id, item.queue, item.parent, item.after)
