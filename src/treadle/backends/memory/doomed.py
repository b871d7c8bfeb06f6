"""Doomed: rows that can only end, until a claim hands them out with their verdict."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeAlias, TypeVar

from .rows import Row

V = TypeVar("V")
# Ordered dicts, not dicts: taking from the front of a dict again and again gets slower and slower.
Rows: TypeAlias = "OrderedDict[Row, None]"


class Doomed:
    """By type, queue and tenant; those that were doomed first come first."""

    __slots__ = ("_types",)

    def __init__(self) -> None:
        self._types: dict[str, dict[str, dict[str, Rows]]] = {}

    def __iter__(self) -> Iterator[Row]:
        return self._find(lambda _: True, None, None)

    def add(self, row: Row) -> None:
        kind = row.kind
        queues = self._types.setdefault(kind.type, {})
        tenants = queues.setdefault(kind.queue, {})
        tenants.setdefault(kind.tenant, OrderedDict())[row] = None

    def remove(self, row: Row) -> None:
        kind = row.kind
        queues = self._types[kind.type]
        tenants = queues[kind.queue]
        rows = tenants[kind.tenant]
        del rows[row]
        if not rows:
            del tenants[kind.tenant]
        if not tenants:
            del queues[kind.queue]
        if not queues:
            del self._types[kind.type]

    def take(
        self,
        has: Callable[[str], bool],
        queues: Sequence[str] | None,
        tenants: Sequence[str] | None,
        most: int,
    ) -> list[Row]:
        """Take out some rows of these queues and tenants whose types somebody has."""
        if not self._types:
            return []
        taken = list(islice(self._find(has, queues, tenants), most))
        for row in taken:
            self.remove(row)
        return taken

    def _find(
        self, has: Callable[[str], bool], queues: Sequence[str] | None, tenants: Sequence[str] | None
    ) -> Iterator[Row]:
        for type, by_queue in self._types.items():
            if has(type):
                for by_tenant in _chosen(by_queue, queues):
                    for rows in _chosen(by_tenant, tenants):
                        yield from rows


def _chosen(named: Mapping[str, V], wanted: Sequence[str] | None) -> Iterable[V]:
    if wanted is None:
        return named.values()
    return (named[name] for name in wanted if name in named)
