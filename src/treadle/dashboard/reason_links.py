"""Reason links: the pages of what a reason speaks of."""

from __future__ import annotations

from typing import Final, NamedTuple

from treadle.item import ItemState
from treadle.why import Reason, ReasonKind

from .addresses import segment
from .visit import Visit

OF_ITEMS: Final[frozenset[ReasonKind]] = frozenset(
    ("dependency", "doomed", "group_failed", "open", "lane_held", "isolated", "ended")
)
OF_LIMITS: Final[frozenset[ReasonKind]] = frozenset(("concurrency", "rate"))
OF_TYPES: Final[frozenset[ReasonKind]] = frozenset(("no_worker_for_type",))
OF_QUEUES: Final[frozenset[ReasonKind]] = frozenset(("no_worker_for_queue", "paused", "turn"))
OF_WORKERS: Final[frozenset[ReasonKind]] = frozenset(
    ("worker_full", "worker_blocked", "pressed", "declined", "undecodable", "lease_lapsed", "running")
)
MOST_LINKS: Final = 5


class ReasonLink(NamedTuple):
    text: str
    url: str


def reason_links(visit: Visit, reason: Reason, item: ItemState | None = None) -> list[ReasonLink]:
    """The pages of what a reason speaks of. item: the item of which it is a reason."""
    kind, refs = reason.kind, reason.refs
    tenant = None if item is None else item.tenant
    if kind in OF_LIMITS:
        limits = [ReasonLink("limits", visit.url("/limits"))]
        return limits + [_item(visit, each, tenant) for each in refs[1:MOST_LINKS]]
    if kind in OF_WORKERS and refs:
        return [ReasonLink("workers", visit.url("/workers"))] if visit.sees_fleet else []
    if kind in OF_TYPES:
        return [ReasonLink(each, visit.url(f"/types/{segment(each)}")) for each in refs[:MOST_LINKS]]
    if kind in OF_QUEUES:
        pages = [(each, f"/queues/{segment(each)}") for each in refs[:MOST_LINKS]]
        return [ReasonLink(each, visit.url(path)) for each, path in pages if path != visit.path]
    if kind not in OF_ITEMS or (kind == "ended" and item is not None and item.reason == "lease_lost"):
        return []  # those are workers that are gone
    known = ("", reason.about, "" if item is None else item.type)
    return [_item(visit, each, tenant) for each in refs[:MOST_LINKS] if each not in known]


def _item(visit: Visit, id: str, tenant: str | None) -> ReasonLink:
    return ReasonLink(id, visit.item_url(id, tenant))
