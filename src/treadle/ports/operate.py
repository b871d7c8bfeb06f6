"""Operate: cancel items and their open descendants, one group at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.item import Changed, ItemState, Ref

from . import groups
from .dependencies import PortsEffects
from .groups import EffectTotals
from .read import PortsRead
from .records import GROUP, GroupRecord, ItemEnd, Records, back_off
from .workers import PortsWorkers


@dataclass(eq=False)
class PortsOperate:
    _records: Records
    _read: PortsRead
    _effects: PortsEffects
    _workers: PortsWorkers

    async def cancel(self, ids: Sequence[str], tenant: str | None, *, only_open: bool) -> Changed:
        by_group: dict[Ref, list[str]] = {}
        for id in dict.fromkeys(ids):
            stored = await self._records.find_item(id, tenant)
            if stored is not None:
                by_group.setdefault(stored.group, []).append(id)
        total = EffectTotals()
        before: list[ItemState] = []
        for group, members in by_group.items():
            before += await self._cancel_in_group(group, members, total, only_open=only_open)
        return Changed(tuple(before), await self._effects.report(total))

    async def _cancel_in_group(
        self, group: Ref, ids: list[str], total: EffectTotals, *, only_open: bool
    ) -> list[ItemState]:
        """Return the cancelled items as they were before."""
        records, key, tenant = self._records, self._records.keys.group(group), group[0]
        (token,) = await records.new_tokens(1)
        while True:
            draft = await records.draft(key, GROUP)
            record = draft.record
            if record is None:
                return []
            named = [id for id in ids if id in record.open] if only_open else ids
            cancelled = {id: record.open[id] for id in groups.open_descendants(record, named)}
            if not cancelled:
                # They have ended, perhaps by a cancellation that was interrupted.
                for id in ids:
                    await self._effects.resume((tenant, id), group, record)
                return []
            before = await self._states(tenant, list(cancelled), record)
            for state in before:
                await self._write_end(state, token)
            change = groups.cancel(record, cancelled, token, records.now())
            if await records.replace(key, draft, record):
                break
            await back_off()
        for id, member in cancelled.items():
            await self._effects.apply((tenant, id), group, record, total)
            if member.token:
                await self._workers.drop(member.worker, [member.token])
        await self._effects.add_change(group, record, change, total)
        return before

    async def _states(self, tenant: str, ids: Sequence[str], record: GroupRecord) -> list[ItemState]:
        states: list[ItemState] = []
        for stored in await self._records.items((tenant, id) for id in ids):
            state = await self._read.state(stored, record)
            assert state is not None
            states.append(state)
        return states

    async def _write_end(self, state: ItemState, token: int) -> None:
        end = ItemEnd(
            "cancelled",
            self._records.now(),
            attempt=state.attempt,
            due_at=state.due_at,
            started_at=state.started_at,
            claimed_at=state.claimed_at,
            history=state.history,
            failures=state.failures,
            losses=state.losses,
            deferrals=state.deferrals,
        )
        await self._records.write(self._records.keys.item_end((state.tenant, state.id), token), end)
