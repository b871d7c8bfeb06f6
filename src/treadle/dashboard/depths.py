"""Depths: how many items of a queue, a type or a tenant are open or dead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import msgspec

from treadle.item import Count, Status
from treadle.operate.fleet_json import counts_json

K = TypeVar("K", bound=Hashable)


class Depth(msgspec.Struct, frozen=True):
    """How many items are in each status."""

    counts: dict[Status, int] = {}
    estimated: list[Status] = []
    """Statuses of which not all items were counted."""

    def of(self, status: Status) -> int:
        return self.counts.get(status, 0)

    @property
    def open(self) -> int:
        return sum(count for status, count in self.counts.items() if status != "dead")


def depths(counts: Iterable[Count], by: Callable[[Count], K]) -> dict[K, Depth]:
    """The depths by queue, type or tenant: by what `by` returns."""
    found: dict[K, Counter[Status]] = {}
    estimated: dict[K, set[Status]] = {}
    for each in counts:
        found.setdefault(by(each), Counter())[each.status] += each.count
        if each.estimated:
            estimated.setdefault(by(each), set()).add(each.status)
    return {key: Depth(dict(found[key]), sorted(estimated.get(key, ()))) for key in found}


def depth_json(depth: Depth) -> dict[str, Any]:
    """A count for each status, as `treadle status --json` has it."""
    return counts_json({status: (count, status in depth.estimated) for status, count in depth.counts.items()})
