"""Gates: what an item waits for, as it stands when the item is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from treadle.item import Item, Ref
from treadle.rules import counts, dependency_state

from .codes import STATUS
from .statements import Statements
from .tx import Tx, array

_SQL = Statements("submit")

Known: TypeAlias = "dict[Ref, tuple[int, int | None]]"
"""The number of an item, and its outcome if it has ended."""


class Edge(NamedTuple):
    src: int
    counted: bool
    """It has ended, and is counted."""
    weight: int
    """How often it is named: two ids may have become one, which then counts twice."""


class Gate(NamedTuple):
    need: int
    met: int
    open: int
    edges: list[Edge]
    pending: list[str]
    """The ids of those that have not ended."""
    awaited: list[str]
    """The ids of those that do not exist."""

    @property
    def standing(self) -> Literal["released", "doomed", "waiting"]:
        return dependency_state(self.need, self.met, self.open)


FREE = Gate(0, 0, 0, [], [], [])


def prerequisites(tx: Tx, waiting: Iterable[tuple[str, Item]]) -> Known:
    """Those of the ids that these items (each with its tenant) wait for which exist."""
    wanted: dict[str, set[str]] = {}
    for tenant, item in waiting:
        wanted.setdefault(tenant, set()).update(item.after)
    found: Known = {}
    for tenant, ids in wanted.items():
        for id, no, outcome in tx.rows(_SQL["prerequisites"], array(ids), tenant):
            found[tenant, id] = no, outcome
    return found


def assess(item: Item, tenant: str, known: Mapping[Ref, tuple[int, int | None]]) -> Gate:
    met = ended = 0
    edges: list[Edge] = []
    pending: list[str] = []
    awaited: list[str] = []
    for id, weight in Counter(item.after).items():
        src, outcome = known.get((tenant, id), (None, None))
        if outcome is None:
            pending.append(id)
        else:
            ended += weight
            met += weight if counts(item.counting, STATUS[outcome]) else 0
        if src is None:
            awaited.append(id)
        else:
            edges.append(Edge(src, outcome is not None, weight))
    return Gate(item.need, met, len(item.after) - ended, edges, pending, awaited)
