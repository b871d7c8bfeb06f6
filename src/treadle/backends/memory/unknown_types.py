"""Doom ready items of a type that no live worker has had for a grace period."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .doomed import UnknownTypeSearch
from .rows import ItemKind, Row
from .tables import MemoryTables
from .transitions import doom


def doom_unknown_types(store: MemoryTables, grace: float, now: float) -> None:
    """Doom the items that were ready for longer than this while no live worker had their type."""
    searches = store.unknown_searches
    if store.workers_of_all_types:
        searches.clear()
        return
    for type in [type for type in searches if type not in store.types or type in store.workers_by_type]:
        del searches[type]
    for type in store.types:
        if type not in store.workers_by_type:
            _doom_type(store, type, grace, now)


def _doom_type(store: MemoryTables, type: str, grace: float, now: float) -> None:
    since = store.unknown_since
    if now - max(since.get(type, -math.inf), since.get(None, -math.inf)) <= grace:
        return
    search = store.unknown_searches.get(type)
    if search is None or now - search.at > grace:
        found = (row for kind in store.types[type] if kind.counts["ready"] for row in _ready(store, kind))
        search = store.unknown_searches[type] = UnknownTypeSearch(now, found)
    for row in search.take_until(now - grace):
        doom(store, row, "unknown_type")


def _ready(store: MemoryTables, kind: ItemKind) -> Iterator[Row]:
    parked = store.parked.get(kind.type)
    aside = parked.find(kind.queue, kind.tenant, kind.lane) if parked is not None else None
    for line in (kind.line, aside):
        if line is not None:
            yield from (row for row in line if row.kind is kind)
