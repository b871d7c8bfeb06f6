"""Partitions: the namespaces of an app that takes a whole cluster, `redis+cluster://one,two?partitions=16`.

Each partition is a namespace with its own hash tag, and a store by root (treadle.backends.many). The tags are
searched so that their slots are evenly spaced on the ring of the cluster: however many nodes divide it, each
gets as many partitions as the others, or one more. The names say nothing about nodes: a cluster that moves
slots takes the partitions along.

The first is the plain namespace. It does not depend on how many there are: an app that names another number
finds it, and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Final

from .topology import SLOTS, slot_of

NEAR: Final = 16
"""Part of the distance between two tags by which one may be off its place."""


def partition_prefixes(prefix: str, partitions: int) -> Sequence[str]:
    """The namespaces of the partitions. Those that follow each other are on different nodes, as far as there
    are several."""
    first, distance = slot_of(prefix), SLOTS / partitions
    return [prefix, *(_tag(prefix, first + n * distance, distance / NEAR) for n in _order(partitions))]


def _order(partitions: int) -> list[int]:
    """1 to `partitions` - 1, each far from the ones before it on the ring."""
    step = next(n for n in count(max(1, round(partitions * 0.382))) if _is_coprime(n, partitions))
    return [n * step % partitions for n in range(1, partitions)]


def _is_coprime(one: int, other: int) -> bool:
    while other:
        one, other = other, one % other
    return one == 1


def _tag(prefix: str, place: float, off: float) -> str:
    """A hash tag whose slot is at this place of the ring, or next to it."""
    names = (f"{prefix}.{n}" for n in count(1))
    return next(name for name in names if _distance(slot_of(name), place) <= max(8.0, off))


def _distance(slot: int, place: float) -> float:
    """Between two places of a ring."""
    gap = abs(slot - place) % SLOTS
    return min(gap, SLOTS - gap)
