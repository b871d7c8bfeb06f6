"""Read refs: items of several tenants, and the groups around groups. Two tenants may use one id."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.backend import Backend
from treadle.item import GroupState, ItemState, Ref


def by_tenant(items: Iterable[ItemState]) -> dict[str, list[ItemState]]:
    """The items of each tenant, in their order."""
    found: dict[str, list[ItemState]] = {}
    for item in items:
        found.setdefault(item.tenant, []).append(item)
    return found


async def get_refs(backend: Backend, refs: Iterable[Ref]) -> dict[Ref, ItemState]:
    """These items. Those that do not exist are left out."""
    ids: dict[str, list[str]] = {}
    for tenant, id in refs:
        ids.setdefault(tenant, []).append(id)
    found: dict[Ref, ItemState] = {}
    for tenant, own in ids.items():
        for id, state in zip(own, await backend.get(own, tenant=tenant), strict=True):
            if state is not None:
                found[tenant, id] = state
    return found


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
