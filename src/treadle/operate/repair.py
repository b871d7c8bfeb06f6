"""Repair: which dead members of a failed group have to run again."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from treadle.backend import Backend
from treadle.item import GROUP_MARK, GROUP_TYPE, Filter, GroupState, ItemState

PORTION: Final = 1000


async def deaths_to_repair(backend: Backend, group: GroupState) -> list[str]:
    """The ids of the dead members that failed the group, oldest first, in nested groups too: the causes, then
    those that died because of others. The store opens those of them whose condition can be met.

    A tolerated death is a cause only if another member could not run because of it, and failed the group."""
    found: dict[str, ItemState] = {}
    groups = [group.id]
    for id in groups:  # it grows: a nested group that failed is read too
        new = await _failing_deaths(backend, group.tenant, id)
        while new:
            found |= {item.id: item for item in new}
            groups += [item.id for item in new if item.type == GROUP_TYPE and item.id not in groups]
            new = await _dead_prerequisites(backend, group.tenant, groups, new, found)
    return [item.id for item in sorted(found.values(), key=lambda one: one.reason == "unsatisfiable")]


async def _failing_deaths(backend: Backend, tenant: str, group_id: str) -> list[ItemState]:
    where, cursor = Filter(tenant=tenant, status=("dead",), group_id=group_id, failed_group=True), None
    found: list[ItemState] = []
    while True:
        page = await backend.list(where, limit=PORTION, cursor=cursor, oldest_first=True)
        found += page.items
        cursor = page.cursor
        if cursor is None:
            return found


async def _dead_prerequisites(
    backend: Backend,
    tenant: str,
    groups: Container[str],
    items: Iterable[ItemState],
    known: Container[str],
) -> list[ItemState]:
    """The dead members of these groups that items could not run because of, and that are not known yet."""
    after = dict.fromkeys(name for item in items if item.reason == "unsatisfiable" for name in item.after)
    names = [name for name in after if name not in known and not name.startswith(GROUP_MARK)]
    found: list[ItemState] = []
    for start in range(0, len(names), PORTION):
        states = await backend.get(names[start : start + PORTION], tenant=tenant)
        found += [
            one for one in states if one is not None and one.status == "dead" and one.group_id in groups
        ]
    return found
