"""Read refs: items of several tenants, and the groups around groups. Two tenants may use one id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from treadle.backend import Backend
from treadle.item import GroupState, ItemState, Ref

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
    """One call, of however many tenants they are. Only for an id that two tenants use, one more for each
    tenant."""
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
