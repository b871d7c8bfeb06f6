"""Dependencies: items that wait for items of other groups, cycles of new items, and what the end of an item
causes (`PortsEffects`).

Both sides write first and read afterwards. A dependent is registered with its prerequisites, stored, and
then checks whether they have ended. A prerequisite is stored as ended, and then reads which dependents are
registered. At least one of the two sees the other. The dependent's group counts each prerequisite once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from treadle.item import DEFAULT_TENANT, Effects, EndedGroup, Item, Ref, Rejected, ReleasedItem, Status
from treadle.store.rules.submission import count_dependencies, find_cycle, is_tolerant

from . import groups
from .async_ports import Pointers
from .groups import EffectTotals, GroupChange
from .records import (
    DEPENDENTS,
    GROUP,
    UNCHANGED,
    DependentsRecord,
    GroupRecord,
    OpenMember,
    Records,
    StoredItem,
    Unchanged,
    encode,
)


class PortsDependencies:
    def __init__(self, records: Records, pointers: Pointers) -> None:
        self._records = records
        self._pointers = pointers

    async def register(self, stored: StoredItem, prerequisites: Iterable[str]) -> None:
        """Write, with each prerequisite, that an item is about to wait for it."""
        tenant, id = stored.ref

        def add(record: DependentsRecord | None) -> tuple[None, DependentsRecord | Unchanged]:
            known = {} if record is None else record.dependents
            if known.get(id) == stored.group_id:
                return None, UNCHANGED
            return None, DependentsRecord({**known, id: stored.group_id})

        for prerequisite in dict.fromkeys(prerequisites):
            await self._records.change(self._records.keys.dependents((tenant, prerequisite)), DEPENDENTS, add)

    async def count_ended(self, stored: StoredItem, prerequisites: Iterable[str]) -> str | None:
        """Count the prerequisites that have ended. Return `released` or `doomed` if that decides about the
        item."""
        for prerequisite in dict.fromkeys(prerequisites):
            ended = await self._ended((stored.item.tenant, prerequisite))
            if ended is not None and (
                decided := await self._count(stored.group, stored.ref, prerequisite, ended)
            ):
                return decided
        return None

    async def count_for_dependents(self, ref: Ref, ended: Status, total: EffectTotals) -> None:
        """Count an item that has ended for its dependents in other groups. May be repeated."""
        records = self._records
        key = records.keys.dependents(ref)
        draft = await records.draft(key, DEPENDENTS)
        if draft.record is None:
            return
        for id, group_id in draft.record.dependents.items():
            dependent = (ref[0], id)
            match await self._count((ref[0], group_id), dependent, ref[1], ended):
                case "released":
                    total.released.append(dependent)
                case "doomed":
                    total.doomed += 1
                case _:
                    pass
        # A dependent that was registered meanwhile checks by itself whether this item has ended.
        await records.replace(key, draft, None)

    async def is_tolerated(self, ref: Ref) -> bool:
        """Whether an item of another group runs although this one dies."""
        found = await self._records.draft(self._records.keys.dependents(ref), DEPENDENTS)
        dependents = () if found.record is None else found.record.dependents
        for id in dependents:
            stored = await self._records.item((ref[0], id))
            if stored is not None and _is_tolerant(stored.item):
                return True
        return False

    async def _ended(self, ref: Ref) -> Status | None:
        """How an item ended. None: it has not, or does not exist."""
        stored = await self._records.item(ref)
        record = None if stored is None else await self._records.group(stored.group)
        ended = None if record is None else record.ended.get(ref[1])
        return None if ended is None else ended.status

    async def _count(self, group: Ref, dependent: Ref, prerequisite: str, ended: Status) -> str | None:
        records, id, now = self._records, dependent[1], self._records.now()

        def step(
            record: GroupRecord | None,
        ) -> tuple[tuple[str | None, OpenMember | None], GroupRecord | Unchanged]:
            member = None if record is None else record.open.get(id)
            if record is None or member is None or prerequisite not in member.waits_for:
                return (None, member), UNCHANGED
            return (groups.count_prerequisite(record, id, prerequisite, ended, now), member), record

        decided, member = await records.change(records.keys.group(group), GROUP, step)
        # Push also if it was counted before: the process that counted it may have died before its push.
        unblocked = member is not None and (member.status != "blocked" or member.doomed is not None)
        if member is not None and unblocked and (due := groups.look_at(member)) is not None:
            await self._pointers.push(dependent, due, now)
        return decided

    # -- cycles ----------------------------------------------------------------------------------------

    async def find_cycle(self, new: Mapping[Ref, StoredItem]) -> Rejected | None:
        """Find new items that would wait for each other, directly or through stored items."""
        blocked = {ref: stored for ref, stored in new.items() if stored.item.after}
        if not blocked or not await self._has_dependents(blocked):
            return None
        graph = await self._read_graph(blocked)
        cycle = find_cycle(blocked, lambda ref: graph.get(ref, ()))
        return None if cycle is None else Rejected("cycle", tuple(id for _, id in cycle))

    async def _has_dependents(self, blocked: Mapping[Ref, StoredItem]) -> bool:
        """Whether any item waits for one of these. Otherwise they cannot be part of a cycle."""
        named = {(tenant, id) for (tenant, _), stored in blocked.items() for id in stored.item.after}
        if not named.isdisjoint(blocked):
            return True
        for stored in blocked.values():
            if await self._is_awaited(stored):
                return True
        return False

    async def _is_awaited(self, stored: StoredItem) -> bool:
        records = self._records
        if (await records.draft(records.keys.dependents(stored.ref), DEPENDENTS)).record is not None:
            return True
        record = await records.group(stored.group) if stored.queued_by else None
        return record is not None and any(stored.item.id in one.waits_for for one in record.open.values())

    async def _read_graph(self, blocked: Mapping[Ref, StoredItem]) -> dict[Ref, list[Ref]]:
        """The prerequisites of each item that can be reached from these."""
        graph: dict[Ref, list[Ref]] = {}
        reached = list(blocked)
        for ref in reached:
            if ref not in graph:
                new = blocked.get(ref)
                graph[ref] = await (self._stored_edges(ref) if new is None else self._new_edges(new.item))
                reached += graph[ref]
        return graph

    async def _new_edges(self, item: Item) -> list[Ref]:
        """What a new item will wait for. None, if the prerequisites that have ended release or doom it."""
        ended: dict[str, Status | None]
        ended = {id: await self._ended((item.tenant, id)) for id in item.after}
        found = count_dependencies(item, ended.get)
        return [(item.tenant, id) for id in found.pending] if found.state == "waiting" else []

    async def _stored_edges(self, ref: Ref) -> list[Ref]:
        stored = await self._records.item(ref)
        record = None if stored is None else await self._records.group(stored.group)
        member = None if record is None else record.open.get(ref[1])
        if member is None or member.status != "blocked" or member.doomed is not None:
            return []
        return [(ref[0], id) for id in member.waits_for]


def _is_tolerant(item: Item) -> bool:
    return is_tolerant(item.counting, item.need, item.after)


SHORTEST_KEEP = 60.0
"""Seconds for which ended items are kept at least: a process may be about to read them."""
REMEMBERED = 1000


@dataclass(eq=False)
class PortsEffects:
    """What the end of an item causes outside its GroupRecord.

    It may be applied more than once. The GroupRecord lists it as pending before any of it is applied, and the
    pointer to the ended item stays in the queue until all of it is. So a crash in between leaves a pointer
    that leads back here.
    """

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
