"""Read: items and groups as they stand."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.item import Attempt, Ended, GroupState, ItemState, Lease, Ref

from .archive import Archive
from .papers import Ending, Header, Ledger, Member


def lease_of(header: Header, member: Member) -> Lease:
    item = header.item
    return Lease(
        id=item.id,
        tenant=item.tenant,
        token=member.token,
        type=item.type,
        input=item.input,
        attempt=member.attempt,
        group_id=header.group_id,
        queue=item.queue,
        lane=item.lane,
        priority=item.priority,
        attempts=item.attempts,
        parent=item.parent,
        workflow=item.workflow,
        workflow_type=item.workflow_type,
        after=item.after,
        options=item.options,
        queued_at=header.queued_at,
        due_at=member.due,
        claimed_at=member.started,
        deadline=header.deadline,
        verdict=member.verdict,
    )


def _submitted(header: Header) -> ItemState:
    """All that a header says of an item."""
    item = header.item
    return ItemState(
        id=item.id,
        type=item.type,
        status="ready",
        tenant=item.tenant,
        attempts=item.attempts,
        queued_at=header.queued_at,
        due_at=header.due_at,
        deadline=header.deadline,
        priority=item.priority,
        lane=item.lane,
        queue=item.queue,
        group_id=header.group_id,
        parent=item.parent,
        workflow=item.workflow,
        workflow_type=item.workflow_type,
        after=item.after,
        key=item.key,
        input=item.input,
        options=item.options,
    )


def _with_history(state: ItemState, history: tuple[Attempt, ...]) -> ItemState:
    state.history = history
    if history:
        last = history[-1]
        state.error_type = last.error_type
        state.error = f"{last.error_type}: {last.message}" if last.message else last.error_type
    return state


def open_state(header: Header, member: Member, history: tuple[Attempt, ...]) -> ItemState:
    state = _submitted(header)
    state.status, state.attempt, state.due_at = member.status, member.attempt, member.due
    if member.status == "running":
        state.worker = member.worker
    state.started_at = member.started or None
    return _with_history(state, history)


def ended_state(header: Header, ending: Ending) -> ItemState:
    state = _submitted(header)
    state.status, state.reason, state.result = ending.status, ending.reason, ending.result
    state.attempt, state.due_at, state.worker = ending.attempt, ending.due_at, ending.worker
    state.started_at, state.ended_at = ending.started_at, ending.ended_at
    return _with_history(state, ending.history)


class Reading:
    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def get(self, ids: Sequence[str], tenant: str | None) -> list[ItemState | None]:
        return [await self._item(await self._archive.find(id, tenant)) for id in ids]

    async def group(self, ids: Sequence[str], tenant: str | None) -> list[GroupState | None]:
        return [await self._group(await self._archive.find(id, tenant)) for id in ids]

    async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
        ended_items: dict[Ref, ItemState] = {}
        ended_groups: dict[Ref, GroupState] = {}
        missing: set[Ref] = set()
        for ref in items:
            item = await self._item(await self._archive.header(ref))
            if item is None:
                missing.add(ref)
            elif item.ended_at is not None:
                ended_items[ref] = item
        for ref in groups:
            group = await self._group(await self._archive.header(ref))
            if group is None:
                missing.add(ref)
            elif group.ended_at is not None:
                ended_groups[ref] = group
        return Ended(ended_items, ended_groups, frozenset(missing))

    async def _item(self, header: Header | None) -> ItemState | None:
        ledger = None if header is None else await self._archive.ledger(header.group)
        if header is None or ledger is None:
            return None
        return await self.state(header, ledger)

    async def state(self, header: Header, ledger: Ledger) -> ItemState | None:
        """None: the ledger does not know it."""
        archive, (tenant, id) = self._archive, header.ref
        if (member := ledger.open.get(id)) is not None:
            state = open_state(header, member, await archive.history(header.ref, member.failed))
            if member.status == "blocked":
                there = [await archive.header((tenant, each)) for each in member.waits]
                names = zip(member.waits, there, strict=True)
                state.waiting_for = tuple(each for each, found in names if found is None)
            return state
        past = ledger.past.get(id)
        ending = None if past is None else await archive.ending(header.ref, past.token)
        return None if ending is None else ended_state(header, ending)

    async def _group(self, header: Header | None) -> GroupState | None:
        if header is None or header.by:
            return None
        ledger = await self._archive.ledger(header.group)
        if ledger is None:
            return None
        return GroupState(
            id=header.group_id,
            tenant=header.item.tenant,
            type=ledger.type,
            open=len(ledger.open),
            value=await self._archive.value(header.group, ledger),
            contributed=ledger.value != 0,
            final=ledger.final,
            version=ledger.version,
            ended_at=ledger.ended_at,
            failed=None if ledger.ended_at is None else await self._failed(header.item.tenant, ledger),
        )

    async def _failed(self, tenant: str, ledger: Ledger) -> ItemState | None:
        """A member that is dead, else one that was cancelled."""
        for status in ("dead", "cancelled"):
            for id, past in ledger.past.items():
                if past.status == status:
                    header = await self._archive.header((tenant, id))
                    return None if header is None else await self.state(header, ledger)
        return None
