"""Tenants: who has open work."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

import msgspec

from treadle.bulk_action import OPERATORS
from treadle.dashboard.queue_states import Depth, depth_json, depths
from treadle.dashboard.views import Pages, View, page_of, pages_json
from treadle.dashboard.visit import Visit

PER_PAGE: Final = 200


ALL: Final = "all"
"""In place of a queue: the tenant is paused in all queues."""


class TenantRow(msgspec.Struct, frozen=True):
    name: str
    depth: Depth
    queues: list[str]
    """Queues in which it has open items."""
    paused: list[str]
    """Queues and types that are paused for it alone, or `ALL`."""


class TenantsPage(msgspec.Struct, frozen=True):
    tenants: list[TenantRow] | None
    """None: not in time."""
    pages: Pages
    partial: bool
    """Not all items were counted: there may be more tenants."""


async def read(visit: Visit) -> TenantsPage:
    overview = await visit.in_time(visit.overview())
    if overview is None:
        return TenantsPage(None, Pages(1, 1, 0), False)
    found = depths(overview.counts, attrgetter("tenant"))
    queues: dict[str, set[str]] = {}
    for count in overview.counts:
        if count.status != "dead":
            queues.setdefault(count.tenant, set()).add(count.queue)
    paused: dict[str, list[str]] = {}
    for each in overview.paused:
        if each.tenant is not None:
            paused.setdefault(each.tenant, []).append(each.queue or each.type or ALL)
    rows = [
        TenantRow(name, found.get(name, Depth()), sorted(queues.get(name, ())), sorted(paused.get(name, ())))
        for name in {*found, *paused} - {OPERATORS}
    ]
    rows.sort(key=lambda row: (-row.depth.open, row.name))
    shown, pages = page_of(visit, rows, PER_PAGE)
    return TenantsPage(shown, pages, any(count.estimated for count in overview.counts))


def to_json(visit: Visit, page: TenantsPage) -> dict[str, Any]:
    """The tenants as `treadle status --json` has them, and more."""
    tenants = [
        {"tenant": row.name, **depth_json(row.depth), "queues": row.queues, "paused_queues": row.paused}
        for row in page.tenants or ()
    ]
    return {
        "tenants": None if page.tenants is None else tenants,
        **pages_json(page.pages),
        "partial": page.partial,
    }


VIEW = View("/tenants", "tenants.html", read, "tenants", of_fleet=True, to_json=to_json)
