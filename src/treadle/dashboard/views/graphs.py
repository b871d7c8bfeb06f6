"""Groups and workflows: their items as a graph."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from treadle.bulk_action import BULK_TYPE
from treadle.codec.large_values import read_value
from treadle.dashboard.access import Action, NotShown
from treadle.dashboard.graph import Graph, graph_of
from treadle.dashboard.view import View
from treadle.dashboard.visit import Visit
from treadle.item import GroupState, ItemState, Page, Status
from treadle.operate.item_json import exact_json, member_json

MOST_ITEMS: Final = 5_000
"""So many items of a group or workflow are read, the oldest."""


class GraphPage(msgspec.Struct, frozen=True):
    id: str
    title: str
    """`group` or `workflow`."""
    tenant: str
    counts: dict[Status, int]
    more: bool
    """There are more items than were read."""
    started_at: float | None
    ended_at: float | None
    graph: Graph
    items: list[ItemState]
    group: dict[str, Any] | None = None
    """The state of the group."""
    verbs: list[Action] = []
    """What can be done with it."""


async def read_group(visit: Visit) -> GraphPage:
    id, client = visit.part("id"), visit.item_client
    # As the store has it: the stored value names its type, which says what is secret.
    group = await client.group(id, decode=False)
    if group is not None:
        client = visit.client_of(group.tenant)
    found = await client.list(group_id=id, limit=MOST_ITEMS, oldest_first=True)
    if group is None and not found.items:
        raise NotShown(f"there is no group {id!r}")
    tenant = group.tenant if group is not None else found.items[0].tenant
    page = await asyncio.to_thread(_page, id, "group", tenant, found)
    if group is None:
        return page
    facts = await read_value(group.value, group_facts, visit, group)
    return msgspec.structs.replace(page, group=facts, verbs=group_verbs(group))


async def read_workflow(visit: Visit) -> GraphPage:
    name = visit.part("id")
    first = await visit.item_client.list(workflow=name, limit=1, oldest_first=True)
    if not first.items:
        raise NotShown(f"there is no workflow {name!r}")
    tenant = first.items[0].tenant
    client = visit.client_of(tenant)
    found = await client.list(workflow=name, limit=MOST_ITEMS, oldest_first=True)
    return await asyncio.to_thread(_page, name, "workflow", tenant, found)


def _page(id: str, title: str, tenant: str, found: Page) -> GraphPage:
    """What is shown of items of one tenant."""
    items = [item for item in found.items if item.tenant == tenant]
    counts: dict[Status, int] = {}
    for item in items:
        counts[item.status] = counts.get(item.status, 0) + 1
    starts = [item.queued_at for item in items]
    ends = [item.ended_at for item in items if item.ended_at is not None]
    return GraphPage(
        id=id,
        title=title,
        tenant=tenant,
        counts=counts,
        more=found.cursor is not None,
        started_at=min(starts, default=None),
        ended_at=max(ends) if ends and len(ends) == len(items) else None,
        graph=graph_of(items),
        items=items,
    )


def group_verbs(group: GroupState) -> list[Action]:
    """What can be done with a group as it is."""
    if group.type == BULK_TYPE:
        return []  # the page of the bulk action has what can be done
    verbs: list[Action] = ["requeue"] if group.failed else []
    return [*verbs, "cancel"] if group.open else verbs


def group_facts(visit: Visit, group: GroupState) -> dict[str, Any]:
    """What is shown of a group. Its value is a payload."""
    shown = visit.client.values.group(group)
    if visit.access.payloads:
        shown["value"] = exact_json(visit.site.secrets.masked(shown["value"]))
        return shown
    shown["value"] = None
    shown.pop("unreadable", None)
    named: list[dict[str, Any] | None] = [*shown["deaths"], shown["cancelled"]]
    for each in named:
        if each is not None:
            each["error"] = None
    return shown


def to_json(visit: Visit, page: GraphPage) -> dict[str, Any]:
    """The group or the workflow as `treadle group --json` has it: items, and what they come from and wait
    for."""
    hidden = {} if visit.access.payloads else {"error": None}
    return {
        **(page.group or {"id": page.id, "tenant": page.tenant}),
        "items": [{**member_json(item), **hidden} for item in page.items],
        "more": page.more,
    }


GROUP = View("/groups/{id}", "graph.html", read_group, "items", to_json=to_json)
WORKFLOW = View("/workflows/{id}", "graph.html", read_workflow, "items", to_json=to_json)
