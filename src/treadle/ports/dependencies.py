"""Dependencies: items that wait for items of other groups, and cycles of new items.

Both sides write first and read afterwards. A dependent is registered with its prerequisites, stored, and
then checks whether they have ended. A prerequisite is stored as ended, and then reads which dependents are
registered. At least one of the two sees the other. The dependent's group counts each prerequisite once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from treadle.item import Item, Ref, Rejected, Status
from treadle.store.rules.submission import count_dependencies, find_cycle, is_tolerant

from . import groups
from .groups import EffectTotals
from .pointers import Pointers
from .records import DEPENDENTS, GROUP, UNCHANGED, Records, Unchanged
from .stored import DependentsRecord, GroupRecord, OpenMember, StoredItem


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
