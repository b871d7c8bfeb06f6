"""Strays: ready rows of a type that no live worker has. With a grace, they do not wait for ever."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator

from .moves import doom
from .rows import Kind, Row
from .store import Store


class Search:
    """What a look at all the rows of a type has found: those that are ready, longest first.

    What has become ready since then is younger than the look. So one look per grace is enough to miss nobody.
    """

    __slots__ = ("at", "found")

    def __init__(self, at: float, found: Iterable[Row]) -> None:
        self.at = at
        self.found = deque(sorted(((row.ready_at, row.number, row) for row in found), key=lambda it: it[:2]))

    def take_until(self, ready_at: float) -> Iterator[Row]:
        """Those that became ready before this, and are so still."""
        while self.found and self.found[0][0] < ready_at:
            since, _, row = self.found.popleft()
            if row.status == "ready" and row.doom is None and row.ready_at == since and not row.gone:
                yield row


def doom_strays(store: Store, grace: float, now: float) -> None:
    """Doom what was ready for longer than this while no live worker had its type."""
    if store.know_all:
        store.searches.clear()
        return
    for type in [type for type in store.searches if type not in store.types or type in store.known]:
        del store.searches[type]
    for type in store.types:
        if type not in store.known:
            _doom_type(store, type, grace, now)


def _doom_type(store: Store, type: str, grace: float, now: float) -> None:
    if now - _unknown_since(store, type) <= grace:
        return
    search = store.searches.get(type)
    if search is None or now - search.at > grace:
        search = store.searches[type] = Search(now, _ready(store, type))
    for row in search.take_until(now - grace):
        doom(store, row, "unknown_type")


def _unknown_since(store: Store, type: str) -> float:
    never = -math.inf
    return max(store.forgotten.get(type, never), store.forgotten.get(None, never))


def _ready(store: Store, type: str) -> Iterator[Row]:
    kinds = [kind for kind in store.types.get(type, ()) if kind.counts["ready"]]
    for kind in kinds:
        yield from _in_line(store, kind)


def _in_line(store: Store, kind: Kind) -> Iterator[Row]:
    parked = store.parked.get(kind.type)
    aside = parked.find(kind.queue, kind.tenant, kind.lane) if parked is not None else None
    for line in (kind.line, aside):
        if line is not None:
            yield from (row for row in line if row.kind is kind)
