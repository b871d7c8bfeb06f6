"""Reads that take more than one call: items of several tenants, which may use one id; the groups around a
group, and its members with those of groups inside it; how a group ended, and the deaths that failed it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from treadle.backend import Backend
from treadle.item import GROUP_TYPE, Filter, GroupOutcome, GroupState, ItemState, Ref

from .rules.listing import LARGEST_PAGE, outcome_of
from .rules.settlement import SHOWN_DEATHS

S = TypeVar("S", ItemState, GroupState)


def by_tenant(items: Iterable[ItemState]) -> dict[str, list[ItemState]]:
    """The items of each tenant, in their order."""
    found: dict[str, list[ItemState]] = {}
    for item in items:
        found.setdefault(item.tenant, []).append(item)
    return found


async def get_refs(backend: Backend, refs: Iterable[Ref]) -> dict[Ref, ItemState]:
    """These items. Those that do not exist are left out."""
    return await _read_refs(backend.get, refs)


async def group_refs(backend: Backend, refs: Iterable[Ref]) -> dict[Ref, GroupState]:
    """These groups. Those that do not exist are left out."""
    return await _read_refs(backend.group, refs)


async def _read_refs(read: Callable[..., Awaitable[Sequence[S | None]]], refs: Iterable[Ref]) -> dict[Ref, S]:
    """One call for all tenants. An id that two tenants use takes one more call for each tenant."""
    wanted = set(refs)
    tenants = {tenant for tenant, _ in wanted}
    if not wanted:
        return {}
    ids = sorted({id for _, id in wanted})
    states = await read(ids, tenant=tenants.pop() if len(tenants) == 1 else None)
    found: dict[Ref, S] = {}
    known: set[str] = set()
    for state in states:
        if state is not None:
            known.add(state.id)
            found[state.tenant, state.id] = state
    left: dict[str, list[str]] = {}
    for tenant, id in sorted(wanted - found.keys()):
        if id in known:
            left.setdefault(tenant, []).append(id)
    for tenant, own in left.items():
        found.update({(tenant, each.id): each for each in await read(own, tenant=tenant) if each is not None})
    return {ref: state for ref, state in found.items() if ref in wanted}


async def outermost_groups(
    backend: Backend, ids: Iterable[str], *, tenant: str | None
) -> dict[str, GroupState]:
    """For each group the outermost one around it. Groups that do not exist are left out."""
    found: dict[str, GroupState] = {}
    unread = set(ids)
    wanted = set(unread)
    while unread:
        names = sorted(unread)
        states = await backend.group(names, tenant=tenant)
        read = {id: group for id, group in zip(names, states, strict=True) if group is not None}
        found.update(read)
        unread = {group.outer for group in read.values() if group.outer is not None} - found.keys()
    outermost: dict[str, GroupState] = {}
    for id in wanted & found.keys():
        group = found[id]
        while group.outer is not None and group.outer in found:
            group = found[group.outer]
        outermost[id] = group
    return outermost


async def group_members(backend: Backend, group: Ref, limit: int) -> tuple[list[ItemState], bool]:
    """Up to `limit` members of a group and of the groups inside it, those of each oldest first, and whether
    there are more."""
    tenant, root = group
    items: list[ItemState] = []
    waiting, cursor = [root], None
    while waiting and len(items) < limit:
        where = Filter(tenant=tenant, group_id=waiting[0])
        size = min(LARGEST_PAGE, limit - len(items))
        page = await backend.list(where, limit=size, cursor=cursor, oldest_first=True)
        items += page.items
        waiting += [item.id for item in page.items if item.type == GROUP_TYPE]
        cursor = page.cursor
        if cursor is None:
            waiting.pop(0)
    return items, bool(waiting)


MOST_LEVELS: Final = 10
"""Levels of nested groups that are read to find the deaths inside. Each takes one read."""


def group_ended(group: GroupState) -> GroupOutcome:
    """How a group that has ended counts."""
    cancelled = int(group.cancelled is not None)
    return outcome_of(0, group.failed, cancelled, contributed=group.contributed, final=group.final)


async def deaths_of(backend: Backend, group: GroupState) -> tuple[list[ItemState], int]:
    """The first deaths, causes first, and how many there are. A nested group that failed is replaced by the
    deaths inside."""
    found, count, level = list(group.deaths), group.failed, 0
    seen = {group.id}
    while level < MOST_LEVELS and (closing := _unread(found, seen)):
        level += 1
        seen.update(closing)
        nested = {each.id: each for each in await _read(backend, closing, group.tenant)}
        count += sum(each.failed - 1 for each in nested.values())
        found = [
            death
            for each in found
            for death in (
                nested[each.id].deaths if each.id in nested and closed_failed_group(each) else (each,)
            )
        ]
    found.sort(key=lambda death: death.reason == "unsatisfiable")
    return found[:SHOWN_DEATHS], count


def closed_failed_group(death: ItemState) -> bool:
    """Whether an item died because the nested group that it closes has failed."""
    return death.type == GROUP_TYPE and death.reason == "unsatisfiable"


def _unread(deaths: Sequence[ItemState], seen: set[str]) -> list[str]:
    return [death.id for death in deaths if closed_failed_group(death) and death.id not in seen][
        :SHOWN_DEATHS
    ]


async def _read(backend: Backend, ids: list[str], tenant: str) -> list[GroupState]:
    """The nested groups that failed. One that failed for another reason than its members is left out."""
    groups = await backend.group(ids, tenant=tenant)
    return [group for group in groups if group is not None and group.deaths]
