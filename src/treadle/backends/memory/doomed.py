"""Doomed: rows that can only end, until a claim hands them out with their verdict; and how they are found."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeAlias, TypeVar

from .rows import Row

V = TypeVar("V")
# Ordered dicts, not dicts: taking from the front of a dict again and again gets slower and slower.
DoomedRows: TypeAlias = "OrderedDict[Row, None]"


class DoomedItems:
    """Rows by type, queue and tenant, in the order in which they were doomed."""

    def __init__(self) -> None:
        self.types: dict[str, dict[str, dict[str, DoomedRows]]] = {}

    def __iter__(self) -> Iterator[Row]:
        return self._find(lambda _: True, None, None)

    def add(self, row: Row) -> None:
        kind = row.kind
        queues = self.types.setdefault(kind.type, {})
        tenants = queues.setdefault(kind.queue, {})
        tenants.setdefault(kind.tenant, OrderedDict())[row] = None

    def remove(self, row: Row) -> None:
        kind = row.kind
        queues = self.types[kind.type]
        tenants = queues[kind.queue]
        rows = tenants[kind.tenant]
        del rows[row]
        if not rows:
            del tenants[kind.tenant]
        if not tenants:
            del queues[kind.queue]
        if not queues:
            del self.types[kind.type]

    def take(
        self,
        wanted: Callable[[str], bool],
        queues: Sequence[str] | None,
        tenants: Sequence[str] | None,
        most: int,
    ) -> list[Row]:
        """Remove up to `most` rows of these queues and tenants whose type is wanted."""
        taken = list(islice(self._find(wanted, queues, tenants), most))
        for row in taken:
            self.remove(row)
        return taken

    def _find(
        self, wanted: Callable[[str], bool], queues: Sequence[str] | None, tenants: Sequence[str] | None
    ) -> Iterator[Row]:
        for type, by_queue in self.types.items():
            if wanted(type):
                for by_tenant in _chosen(by_queue, queues):
                    for rows in _chosen(by_tenant, tenants):
                        yield from rows


def _chosen(named: Mapping[str, V], names: Sequence[str] | None) -> Iterable[V]:
    if names is None:
        return named.values()
    return (named[name] for name in names if name in named)


class UnknownTypeSearch:
    """The ready rows that one scan found of a type that no live worker has, by the time they became ready.

    A row that became ready after the scan has waited for less time than has passed since the scan. So one
    scan per grace period misses none.
    """

    __slots__ = ("at", "found")

    def __init__(self, at: float, found: Iterable[Row]) -> None:
        self.at = at
        self.found = deque(sorted(((row.ready_at, row.number, row) for row in found), key=lambda it: it[:2]))

    def take_until(self, ready_at: float) -> Iterator[Row]:
        """The rows that became ready before this, and have been ready since."""
        while self.found and self.found[0][0] < ready_at:
            since, _, row = self.found.popleft()
            if row.status == "ready" and row.verdict is None and row.ready_at == since and not row.gone:
                yield row
