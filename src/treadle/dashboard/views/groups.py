"""Groups and workflows as lists: how each stands, how much of it is done, and what can be done with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from treadle.base.timing import iso
from treadle.bulk_action import BULK_TYPE
from treadle.dashboard.payloads import shown_error
from treadle.dashboard.views import View
from treadle.dashboard.visit import Visit
from treadle.errors import InputError
from treadle.item import DEFAULT_TENANT, GroupSummary, Page
from treadle.operate.filters import read_time
from treadle.operate.item_json import group_summary_json
from treadle.store.rules.listing import OUTCOMES

ROWS: Final = 50
MOST_GROUPS: Final = 5000
"""Groups that a page looks at."""
WORKFLOW_ROOTS: Final = 500
"""Roots of workflows that a page looks at: the items of each workflow are counted."""


class GroupsPage(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    """`group` or `workflow`."""
    outcome: str
    outcomes: tuple[str, ...] = OUTCOMES
    wrong: str = ""
    rows: list[GroupSummary] | None = None
    """None: not in time."""
    errors: list[str] = []
    """Of each row: what its first death says."""
    cursor: str | None = None
    reached_at: float | None = None
    several_tenants: bool = False


async def read_groups(visit: Visit) -> GroupsPage:
    return await _read(visit, "group", visit.client.groups, MOST_GROUPS)


async def read_workflows(visit: Visit) -> GroupsPage:
    return await _read(visit, "workflow", visit.client.workflows, WORKFLOW_ROOTS)


async def _read(
    visit: Visit, kind: str, read: Callable[..., Awaitable[Page[GroupSummary]]], reach: int
) -> GroupsPage:
    outcome = visit.query("outcome")
    try:
        page = await visit.in_time(
            read(
                outcome or None,
                visit.query("type") or None,
                since=read_time(visit.query("since") or None, visit.site.now(), "since"),
                limit=ROWS,
                cursor=visit.query("cursor") or None,
                reach=reach,
                store=visit.store,
            )
        )
    except InputError as error:
        return GroupsPage(kind=kind, outcome=outcome, wrong=str(error), rows=[])
    if page is None:
        return GroupsPage(kind=kind, outcome=outcome)
    # Bulk actions have a page of their own.
    rows = [row for row in page.items if row.type != BULK_TYPE or visit.query("type") == BULK_TYPE]
    return GroupsPage(
        kind=kind,
        outcome=outcome,
        rows=rows,
        errors=["" if row.death is None else shown_error(visit, row.death) for row in rows],
        cursor=page.cursor,
        reached_at=page.reached_at,
        several_tenants=visit.tenant is None and any(row.tenant != DEFAULT_TENANT for row in rows),
    )


def to_json(visit: Visit, page: GroupsPage) -> dict[str, Any]:
    """The groups as `treadle groups --json` has them."""
    if page.wrong:
        return {"error": "InputError", "message": page.wrong}
    rows = [group_summary_json(row) for row in page.rows or ()]
    for row in rows:
        if row["death"] is not None and not visit.access.payloads:
            row["death"]["error"] = None
    return {
        f"{page.kind}s": None if page.rows is None else rows,
        "cursor": page.cursor,
        "reached_at": iso(page.reached_at),
    }


GROUPS = View("/groups", "groups.html", read_groups, "groups", to_json=to_json)
WORKFLOWS = View("/workflows", "groups.html", read_workflows, "groups", to_json=to_json)
