"""Effects: what the end of an item causes outside its GroupRecord.

They may be applied more than once. The GroupRecord lists them as pending before any is applied, and the
pointer to the ended item stays in the queue until all are. So a crash in between leaves a pointer that
leads back here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from treadle.item import DEFAULT_TENANT, Effects, EndedGroup, Ref, ReleasedItem

from . import groups
from .dependencies import PortsDependencies
from .groups import EffectTotals, GroupChange
from .pointers import Pointers
from .records import GROUP, Records, encode
from .stored import GroupRecord, StoredItem

SHORTEST_KEEP = 60.0
"""Ended items are kept for at least so many seconds: a process may be about to read them."""
REMEMBERED = 1000


@dataclass(eq=False)
class PortsEffects:
    _records: Records
    _pointers: Pointers
    _dependencies: PortsDependencies
    _applied: dict[Ref, list[str]] = field(default_factory=dict[Ref, list[str]])
    """By group: the ended members whose effects this process has applied, and that are still listed as
    pending."""

    def clear_applied(self, group: Ref, record: GroupRecord) -> None:
        """Remove applied effects from a record that is about to be written for another reason."""
        for id in self._applied.pop(group, ()):
            record.pending_effects.pop(id, None)

    async def resume(self, ref: Ref, group: Ref, record: GroupRecord | None) -> None:
        """Apply the effects of an item that has ended, if they are still pending."""
        if record is not None and ref[1] in record.pending_effects:
            await self.apply(ref, group, record, EffectTotals())

    async def apply(self, ref: Ref, group: Ref, record: GroupRecord, total: EffectTotals) -> None:
        ended = record.ended[ref[1]]
        await self._dependencies.count_for_dependents(ref, ended.status, total)
        for id in record.pending_effects.get(ref[1], ()):
            await self._push_member((ref[0], id), record)
        if ended.status == "dead":
            await self._send_dead_letter(ref, ended.token)
        self._remember(group, ref[1])
        if record.last_ended == ref[1]:
            await self._expire_group(group)

    def _remember(self, group: Ref, id: str) -> None:
        self._applied.setdefault(group, []).append(id)
        if len(self._applied) > REMEMBERED:
            del self._applied[next(iter(self._applied))]

    async def _push_member(self, ref: Ref, record: GroupRecord) -> None:
        """Push a pointer to a member that is new, released or doomed."""
        member = record.open.get(ref[1])
        if member is None:
            return
        outside = [id for id in member.waits_for if id not in record.open]
        if outside and member.status == "blocked" and member.doomed is None:
            stored = await self._records.item(ref)
            if stored is not None and await self._dependencies.count_ended(stored, outside):
                return
        if (due := groups.look_at(member)) is not None:
            await self._pointers.push(ref, due, self._records.now())

    async def _send_dead_letter(self, ref: Ref, token: int) -> None:
        records = self._records
        if not records.ports.has_dead_letter:
            return
        stored, end = await records.item(ref), await records.item_end(ref, token)
        if stored is None or end is None:
            return
        item = stored.item
        body = {
            "id": item.id,
            "tenant": item.tenant,
            "type": item.type,
            "input": item.input.decode(errors="replace"),
            "attempt": end.attempt,
            "reason": end.reason,
        }
        last = end.history[-1] if end.history else None
        error = str(end.reason) if last is None else f"{last.error_type}: {last.message}"
        await records.ports.dead_letter(msgspec.json.encode(body).decode(), error)

    # -- totals ----------------------------------------------------------------------------------------

    async def add_change(
        self, group: Ref, record: GroupRecord, change: GroupChange, total: EffectTotals
    ) -> None:
        total.released += [(group[0], id) for id in change.released]
        total.doomed += len(change.doomed)
        if change.closed:
            value = await self._records.group_value(group, record)
            total.ended_groups.append(EndedGroup(group[1], group[0], value, record.type))

    async def report(self, total: EffectTotals) -> Effects:
        released = [_released(stored) for stored in await self._records.items(total.released)]
        return Effects(tuple(released), tuple(total.ended_groups), total.doomed)

    # -- retention -------------------------------------------------------------------------------------

    async def _expire_group(self, group: Ref) -> None:
        """The group has ended: everything that is stored of it gets its time to live."""
        records, key = self._records, self._records.keys.group(group)
        draft = await records.draft(key, GROUP)
        record = draft.record
        if record is None or record.ended_at is None:
            return
        self.clear_applied(group, record)
        longest: float | None = SHORTEST_KEEP
        for id, ended in record.ended.items():
            stored = await records.item((group[0], id))
            if stored is not None:
                keep = _keep(stored, ended.status == "dead")
                await self._expire_item(stored, ended.token, keep)
                longest = None if keep is None or longest is None else max(longest, keep)
        if longest is None:
            await records.replace(key, draft, record)
            return
        await records.texts.expire(key, draft.seen, encode(record), longest)
        if record.value_token:
            await self._set_ttl(records.keys.group_value(group, record.value_token), longest)

    async def _expire_item(self, stored: StoredItem, token: int, keep: float | None) -> None:
        if keep is not None:
            keys = self._records.keys
            await self._records.write(keys.item(stored.ref), stored, keep)
            await self._set_ttl(keys.item_end(stored.ref, token), keep)
            if stored.item.tenant != DEFAULT_TENANT:
                await self._set_ttl(keys.first_tenant(stored.item.id), keep)

    async def _set_ttl(self, key: str, ttl: float) -> None:
        if (text := await self._records.ports.get(key)) is not None:
            await self._records.ports.set(key, text, ttl)


def _released(stored: StoredItem) -> ReleasedItem:
    item = stored.item
    return ReleasedItem(item.id, item.tenant, item.type, stored.group_id, item.queue, item.parent, item.after)


def _keep(stored: StoredItem, dead: bool) -> float | None:
    keep = stored.item.keep_dead if dead else stored.item.keep
    return None if keep is None else max(keep, SHORTEST_KEEP)
