"""Repair: which dead members of a failed group have to run again."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from treadle.backend import Backend
from treadle.item import GROUP_TYPE, Filter, GroupState, ItemState

PORTION: Final = 1000


async def deaths_to_repair(backend: Backend, group: GroupState) -> list[str]:
    """The ids of the causes: the dead members that did not die because of others, oldest first, in nested
    groups too. If all died because of others, as of an item of another group: those."""
    causes: list[str] = []
    others: list[str] = []
    groups = [group.id]
    for id in groups:  # it grows: a nested group that failed is read too
        async for item in _dead_members(backend, group.tenant, id):
            (others if item.reason == "unsatisfiable" else causes).append(item.id)
            if item.type == GROUP_TYPE:
                groups.append(item.id)
    return causes or others


async def _dead_members(backend: Backend, tenant: str, group_id: str) -> AsyncGenerator[ItemState]:
    where, cursor = Filter(tenant=tenant, status=("dead",), group_id=group_id), None
    while True:
        page = await backend.list(where, limit=PORTION, cursor=cursor, oldest_first=True)
        for item in page.items:
            yield item
        cursor = page.cursor
        if cursor is None:
            return
