"""Bulk actions: what changes many items now, and what has."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from treadle.bulk_action import BulkState
from treadle.dashboard.access import NotShown
from treadle.dashboard.view import View
from treadle.dashboard.visit import Visit
from treadle.fleet_json import audit_json, bulk_json
from treadle.records import AuditEntry

NEEDS: Final = frozenset(("listing", "watching", "recording"))
ENDED: Final = ("done", "stopped", "failed", "held_back")
SHOWN: Final = 50
PORTIONS: Final = 20


class BulkPage(msgspec.Struct, frozen=True):
    actions: list[BulkState]


class BulkActionPage(msgspec.Struct, frozen=True):
    action: BulkState
    ended: bool
    done: int
    """How many of those that matched were looked at, but no more than there are."""
    portions: list[AuditEntry]
    """The newest of them."""
    more_portions: bool


async def read(visit: Visit) -> BulkPage:
    actions = await visit.client.bulk.list(SHOWN)
    if any(action.state not in ENDED for action in actions):
        visit.site.bulk_runs.start()
    return BulkPage(actions)


async def read_one(visit: Visit) -> BulkActionPage:
    id = visit.part("id")
    action, audit = await asyncio.gather(
        visit.client.bulk.state(id), visit.client.audits(bulk=id, limit=PORTIONS)
    )
    if action is None:
        raise NotShown(f"there is no bulk action {id!r}")
    ended = action.state in ENDED
    if not ended:
        visit.site.bulk_runs.start()
    done = action.matched if action.more else min(action.matched, action.total)
    return BulkActionPage(action, ended, done, list(audit.entries), audit.cursor is not None)


def to_json(visit: Visit, page: BulkPage) -> dict[str, Any]:
    """The actions as `treadle bulk --json` has them."""
    return {"actions": [bulk_json(each) for each in page.actions]}


def one_json(visit: Visit, page: BulkActionPage) -> dict[str, Any]:
    return {
        **bulk_json(page.action),
        "portions": [audit_json(each) for each in page.portions],
        "more_portions": page.more_portions,
    }


VIEW = View("/bulk", "bulk.html", read, "bulk", needs=NEEDS, to_json=to_json)
VIEW_ONE = View("/bulk/{id}", "bulk_action.html", read_one, "bulk", needs=NEEDS, to_json=one_json)
