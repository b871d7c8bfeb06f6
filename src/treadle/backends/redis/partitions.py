"""Partitions: the namespaces of an app that takes a whole cluster, `redis+cluster://one,two?partitions=16`.

Each partition is a namespace with its own hash tag, and a store by root (treadle.backends.many). The tags are
searched so that their slots are evenly spaced on the ring of the cluster: however many nodes divide it, each
gets as many partitions as the others, or one more. The names say nothing about nodes: a cluster that moves
slots takes the partitions along.

The first is the plain namespace. It does not depend on how many there are: an app that names another number,
or none, finds it, and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count
from math import gcd
from typing import Final, NamedTuple

from treadle.errors import WrongStore

from .nodes import ClusterNodes
from .topology import SLOTS, slot_of

NEAR: Final = 16
"""Part of the distance between two tags by which one may be off its place."""
NAME: Final = re.compile(r"p(\d+)-of-(\d+)")


class Partition(NamedTuple):
    """nodes: the connections that all partitions of an app share."""

    prefix: str
    number: int
    partitions: int
    nodes: ClusterNodes

    @property
    def name(self) -> str:
        """As a store. It is kept in the namespace (treadle.backends.many.places)."""
        return f"p{self.number}-of-{self.partitions}"


def partitions_of(prefix: str, partitions: int) -> Sequence[Partition]:
    nodes = ClusterNodes()
    prefixes = partition_prefixes(prefix, partitions)
    return [Partition(each, number, partitions, nodes) for number, each in enumerate(prefixes)]


def check_partitions(prefix: str, partition: Partition | None, said: str | None) -> None:
    """`WrongStore` if a namespace is a partition of an app with another number of them. said: what it says
    about itself as a store. partition: what it is to be; None: the whole."""
    found = None if said is None else NAME.fullmatch(said.split(" ")[1])
    if found is None or (partition is not None and found[0] == partition.name):
        return
    if partition is None:
        raise WrongStore(
            f"the namespace {prefix!r} is one of {found[2]} partitions: write "
            f"partitions={found[2]} into its URL, which begins with redis+cluster://"
        )
    raise WrongStore(
        f"the namespace {prefix!r} has {found[2]} partitions, and the URL says {partition.partitions}. Their "
        f"number stays: write partitions={found[2]}, or begin with another prefix="
    )


def partition_prefixes(prefix: str, partitions: int) -> Sequence[str]:
    """The namespaces of the partitions. Those that follow each other are on different nodes, as far as there
    are several."""
    first, distance = slot_of(prefix), SLOTS / partitions
    return [prefix, *(_tag(prefix, first + n * distance, distance / NEAR) for n in _order(partitions))]


def _order(partitions: int) -> list[int]:
    """1 to `partitions` - 1, each far from the ones before it on the ring."""
    step = next(n for n in count(max(1, round(partitions * 0.382))) if gcd(n, partitions) == 1)
    return [n * step % partitions for n in range(1, partitions)]


def _tag(prefix: str, place: float, off: float) -> str:
    """A hash tag whose slot is at this place of the ring, or next to it."""
    names = (f"{prefix}.{n}" for n in count(1))
    return next(name for name in names if _distance(slot_of(name), place) <= max(8.0, off))


def _distance(slot: int, place: float) -> float:
    """Between two places of a ring."""
    gap = abs(slot - place) % SLOTS
    return min(gap, SLOTS - gap)
