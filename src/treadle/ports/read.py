"""Read: items and groups as they are now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from treadle.item import Attempt, Ended, GroupState, ItemState, Lease, Ref
from treadle.store.rules.settlement import SHOWN_DEATHS

from .records import GroupRecord, ItemEnd, OpenMember, Records, StoredItem


class PortsRead:
    def __init__(self, records: Records) -> None:
        self._records = records

    async def get(self, ids: Sequence[str], tenant: str | None) -> list[ItemState | None]:
        return [await self._item(await self._records.find_item(id, tenant)) for id in ids]

    async def group(self, ids: Sequence[str], tenant: str | None) -> list[GroupState | None]:
        return [await self._group(await self._records.find_item(id, tenant)) for id in ids]

    async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
        found = {ref: await self._item(await self._records.item(ref)) for ref in items}
        found_groups = {ref: await self._group(await self._records.item(ref)) for ref in groups}
        missing = [ref for ref, state in (*found.items(), *found_groups.items()) if state is None]
        return Ended(
            {ref: item for ref, item in found.items() if item and item.ended_at is not None},
            {ref: group for ref, group in found_groups.items() if group and group.ended_at is not None},
            frozenset(missing),
        )

    async def _item(self, stored: StoredItem | None) -> ItemState | None:
        record = None if stored is None else await self._records.group(stored.group)
        if stored is None or record is None:
            return None
        return await self.state(stored, record)

    async def state(self, stored: StoredItem, record: GroupRecord) -> ItemState | None:
        """None: the group does not have it."""
        records, (tenant, id) = self._records, stored.ref
        if (member := record.open.get(id)) is not None:
            state = _open_state(stored, member, await records.history(stored.ref, member.failed_tokens))
            if member.status == "blocked":
                present = [await records.item((tenant, each)) for each in member.waits_for]
                pairs = zip(member.waits_for, present, strict=True)
                state.waiting_for = tuple(each for each, found in pairs if found is None)
            return state
        ended = record.ended.get(id)
        end = None if ended is None else await records.item_end(stored.ref, ended.token)
        return None if end is None else _ended_state(stored, end)

    async def _group(self, stored: StoredItem | None) -> GroupState | None:
        if stored is None or stored.queued_by:
            return None
        record = await self._records.group(stored.group)
        if record is None:
            return None
        tenant = stored.item.tenant
        deaths = await self._states(tenant, record.deaths[:SHOWN_DEATHS], record)
        cancelled = [id for id, ended in record.ended.items() if ended.status == "cancelled"]
        shown = [] if record.open else await self._states(tenant, cancelled[:1], record)
        return GroupState(
            id=stored.group_id,
            tenant=tenant,
            type=record.type,
            open=len(record.open),
            value=await self._records.group_value(stored.group, record),
            contributed=record.value_token != 0,
            final=record.final,
            version=record.version,
            ended_at=record.ended_at,
            total=len(record.open) + len(record.ended),
            failed=len(record.deaths),
            deaths=tuple(deaths),
            cancelled=shown[0] if shown else None,
        )

    async def _states(self, tenant: str, ids: Iterable[str], record: GroupRecord) -> list[ItemState]:
        """Those of these members that are still stored, without history."""
        states: list[ItemState] = []
        for stored in await self._records.items((tenant, id) for id in ids):
            if (state := await self.state(stored, record)) is not None:
                state.history = ()
                states.append(state)
        return states


def _open_state(stored: StoredItem, member: OpenMember, history: tuple[Attempt, ...]) -> ItemState:
    state = _new_state(stored)
    state.status, state.attempt, state.due_at = member.status, member.attempt, member.due
    state.failures, state.losses, state.deferrals = member.failures, member.losses, member.deferrals
    if member.status == "running":
        state.worker = member.worker
    state.claimed_at = member.started or None
    state.started_at = state.claimed_at if member.status == "running" else member.began or None
    return _with_history(state, history)


def _ended_state(stored: StoredItem, end: ItemEnd) -> ItemState:
    state = _new_state(stored)
    state.status, state.reason, state.result = end.status, end.reason, end.result
    state.attempt, state.due_at, state.worker = end.attempt, end.due_at, end.worker
    state.claimed_at, state.started_at, state.ended_at = end.claimed_at, end.started_at, end.ended_at
    state.failures, state.losses, state.deferrals = end.failures, end.losses, end.deferrals
    return _with_history(state, end.history)


def _new_state(stored: StoredItem) -> ItemState:
    """The state of an item without what changes after its submission."""
    item = stored.item
    return ItemState(
        id=item.id,
        type=item.type,
        status="ready",
        tenant=item.tenant,
        attempts=item.attempts,
        queued_at=stored.queued_at,
        due_at=stored.due_at,
        deadline=stored.deadline,
        priority=item.priority,
        lane=item.lane,
        queue=item.queue,
        group_id=stored.group_id,
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
    if history and state.status != "success":
        last = history[-1]
        state.error_type = last.error_type
        state.error = f"{last.error_type}: {last.message}" if last.message else last.error_type
    return state


def lease_of(stored: StoredItem, member: OpenMember) -> Lease:
    item = stored.item
    return Lease(
        id=item.id,
        tenant=item.tenant,
        token=member.token,
        type=item.type,
        input=item.input,
        attempt=member.attempt,
        group_id=stored.group_id,
        queue=item.queue,
        lane=item.lane,
        priority=item.priority,
        attempts=item.attempts,
        parent=item.parent,
        workflow=item.workflow,
        workflow_type=item.workflow_type,
        after=item.after,
        options=item.options,
        queued_at=stored.queued_at,
        due_at=member.due,
        claimed_at=member.started,
        deadline=stored.deadline,
        verdict=member.verdict,
        failures=member.failures,
        losses=member.losses,
        deferrals=member.deferrals,
        ready_at=max(member.ready_since, member.due),
    )
