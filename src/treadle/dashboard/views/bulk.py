"""Bulk actions: what changes many items now, and what has."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from treadle.base.wording import first_line
from treadle.bulk_action import BulkState
from treadle.dashboard.access import NotShown
from treadle.dashboard.views import View
from treadle.dashboard.visit import Visit
from treadle.item import Status
from treadle.operate.fleet_json import audit_json, bulk_json
from treadle.records import AuditEntry

NEEDS: Final = frozenset(("listing", "watching", "recording"))
ENDED: Final = ("done", "stopped", "failed", "held_back")
SHOWN: Final = 50
PORTIONS: Final = 20
STARTED_AGAIN: Final = ("stopped", "failed", "held_back")
MOST_HELD_BACK: Final = 20
LOOKED_AT: Final = 500
"""Entries of the audit."""


class BulkPage(msgspec.Struct, frozen=True):
    actions: list[BulkState]


class HeldBack(msgspec.Struct, frozen=True):
    id: str
    tenant: str | None
    status: Status | None
    """None: it does not exist any more."""
    error: str


class BulkActionPage(msgspec.Struct, frozen=True):
    action: BulkState
    ended: bool
    done: int
    """How many of those that matched were looked at, but no more than there are."""
    portions: list[AuditEntry]
    """The newest of them."""
    more_portions: bool
    held_back: list[HeldBack]
    """Items of the canary that have not succeeded: the first of them."""
    stopped_by: AuditEntry | None
    again: str
    """The filter, to start it again. Empty: it named items, or has not ended early."""


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
    return BulkActionPage(
        action=action,
        ended=ended,
        done=action.total if action.state == "done" else done,
        portions=list(audit.entries),
        more_portions=audit.cursor is not None,
        held_back=await _held_back(visit, action),
        stopped_by=await _stopped_by(visit, action),
        again=action.where if action.state in STARTED_AGAIN and ":" in action.where else "",
    )


async def _held_back(visit: Visit, action: BulkState) -> list[HeldBack]:
    named = action.held_back_by[:MOST_HELD_BACK]
    found = await visit.client.get([each.id for each in named]) if named else []
    items = {(item.id, item.tenant): item for item in found if item is not None}
    shown: list[HeldBack] = []
    for each in named:
        item = items.get((each.id, each.tenant or ""))
        error = "" if item is None or not item.error or not visit.access.payloads else first_line(item.error)
        shown.append(HeldBack(each.id, each.tenant, None if item is None else item.status, error))
    return shown


async def _stopped_by(visit: Visit, action: BulkState) -> AuditEntry | None:
    """Who has stopped it, as far as the audit says: one page of it is looked at."""
    if action.state != "stopped":
        return None
    page = await visit.client.audits(limit=LOOKED_AT)
    return next((each for each in page.entries if each.verb == "bulk stop" and action.id in each.ids), None)


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
