"""Related: the children of an item, and the items that wait for it."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.records import Related, RelatedItem

from .read import root
from .rows import numbers
from .statements import Tx, array, statements
from .status_codes import STATUS

_SQL = statements("related")


def related(tx: Tx, id: str, tenant: str | None, count: int) -> Related | None:
    no = numbers(tx, [id], tenant).get(id)
    if no is None:
        return None
    group, owner = tx.rows(_SQL["item"], no)[0]
    children = _queued(tx, no, group, count)
    children |= {each for (each,) in tx.rows(_SQL["named"], id, owner, count)}
    dependents = {each for (each,) in tx.rows(_SQL["dependents"], no, count)}
    group_no = root(tx, id, owner)
    if group_no is not None:
        dependents |= {each for (each,) in tx.rows(_SQL["dependents"], -group_no, count)}
    return Related(
        children=_in_short(tx, sorted(children)[:count]), dependents=_in_short(tx, sorted(dependents)[:count])
    )


def _queued(tx: Tx, no: int, group: int, count: int) -> set[int]:
    """What its settlement queued: in its group, and in the nested groups that some of these close."""
    found: set[int] = set()
    groups = [group]
    while groups and len(found) < count:
        own = [each for (each,) in tx.rows(_SQL["queued"], groups.pop(0), no, count)]
        found.update(own)
        groups += (each for (each,) in tx.rows(_SQL["closed"], array(own)))
    return found


def _in_short(tx: Tx, nos: Iterable[int]) -> tuple[RelatedItem, ...]:
    rows = tx.rows(_SQL["in_short"], array(nos))
    return tuple(RelatedItem(id, type, STATUS[status]) for id, type, status in rows)
