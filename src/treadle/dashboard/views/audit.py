"""Audit: who did what to which items, when, from where, and why."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from treadle.base.timing import iso
from treadle.dashboard.views import View
from treadle.dashboard.visit import Visit
from treadle.operate.fleet_json import audit_json
from treadle.records import AuditEntry
from treadle.store.audit_note import in_one

SHOWN: Final = 100
LOOKED_AT: Final = 500
"""Entries of all actors that are looked at for one page of an actor."""


class AuditPageShown(msgspec.Struct, frozen=True):
    entries: list[AuditEntry]
    """As they are stored."""
    cursor: str | None
    """Continues after this page."""
    actor: str
    """Empty: of all actors."""
    looked_back_to: float | None
    """With an actor: how far this page looked."""

    @property
    def changes(self) -> list[AuditEntry]:
        """The entries, with the portions of one change as one."""
        return in_one(self.entries)


async def read(visit: Visit) -> AuditPageShown:
    actor = visit.query("actor")
    page = await visit.client.audits(
        limit=LOOKED_AT if actor else SHOWN, cursor=visit.query("cursor") or None
    )
    entries = [each for each in page.entries if not actor or each.actor == actor]
    back_to = page.entries[-1].at if actor and page.cursor and page.entries else None
    return AuditPageShown(entries, page.cursor, actor, back_to)


def to_json(visit: Visit, page: AuditPageShown) -> dict[str, Any]:
    """The entries as `treadle audit --json` has them."""
    return {
        "entries": [audit_json(each) for each in page.entries],
        "cursor": page.cursor,
        "reached_at": iso(page.looked_back_to),
    }


VIEW = View("/audit", "audit.html", read, "audit", needs=frozenset(("recording",)), to_json=to_json)
