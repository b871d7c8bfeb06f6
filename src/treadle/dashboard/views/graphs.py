"""Groups and workflows: their items as a graph."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from treadle.dashboard.access import NotShown
from treadle.dashboard.graph import Graph, graph_of
from treadle.dashboard.view import View
from treadle.dashboard.visit import Visit
from treadle.item import GroupState, ItemState, Status
from treadle.item_json import group_json
from treadle.operator import core_of

MOST_ITEMS: Final = 5_000
"""So many items of a group or workflow are read."""
PAGE: Final = 1_000


class GraphPage(msgspec.Struct, frozen=True):
    id: str
    title: str
    """`group` or `workflow`."""
    tenant: str | None
    counts: dict[Status, int]
    more: bool
    """There are more items than were read."""
    started_at: float | None
    ended_at: float | None
    graph: Graph
    group: dict[str, Any] | None = None
    """The state of the group."""


async def read_group(visit: Visit) -> GraphPage:
    id = visit.part("id")
    client = visit.item_client
    group = await client.group(id)
    items, more = await _items(visit, group_id=id)
    if group is None and not items:
        raise NotShown(f"there is no group {id!r}")
    facts = None if group is None else group_facts(visit, group)
    return await asyncio.to_thread(_page, id, "group", items, more, facts)


async def read_workflow(visit: Visit) -> GraphPage:
    id = visit.part("id")
    items, more = await _items(visit, workflow=id)
    if not items:
        raise NotShown(f"there is no workflow {id!r}")
    return await asyncio.to_thread(_page, id, "workflow", items, more, None)


async def _items(
    visit: Visit, *, group_id: str | None = None, workflow: str | None = None
) -> tuple[list[ItemState], bool]:
    found: list[ItemState] = []
    cursor: str | None = None
    while len(found) < MOST_ITEMS:
        page = await visit.item_client.list(
            group_id=group_id, workflow=workflow, limit=PAGE, cursor=cursor, oldest_first=True
        )
        found += page.items
        cursor = page.cursor
        if cursor is None:
            return found, False
    return found, True


def _page(id: str, title: str, items: list[ItemState], more: bool, group: dict[str, Any] | None) -> GraphPage:
    counts: dict[Status, int] = {}
    for item in items:
        counts[item.status] = counts.get(item.status, 0) + 1
    starts = [item.queued_at for item in items]
    ends = [item.ended_at for item in items if item.ended_at is not None]
    return GraphPage(
        id=id,
        title=title,
        tenant=items[0].tenant if items else None,
        counts=counts,
        more=more,
        started_at=min(starts, default=None),
        ended_at=max(ends) if ends and len(ends) == len(items) else None,
        graph=graph_of(items),
        group=group,
    )


def group_facts(visit: Visit, group: GroupState) -> dict[str, Any]:
    """What is shown of a group. Its value is a payload."""
    shown = group_json(core_of(visit.client).registry, group)
    if visit.access.payloads:
        shown["value"] = visit.site.secrets.masked(shown["value"])
    else:
        shown["value"], shown["deaths"], shown["cancelled"] = None, [], None
        shown.pop("unreadable", None)
    return {**shown, "ids_of_deaths": [death.id for death in group.deaths]}


GROUP = View("/groups/{id}", "graph.html", read_group, "items")
WORKFLOW = View("/workflows/{id}", "graph.html", read_workflow, "items")
