"""Removing items: by an operator, or because their time is over."""

from __future__ import annotations

from collections.abc import Iterable

from .statements import Statements
from .tx import Tx, array

_SQL = Statements("remove")

_TABLES = ("jobs", "done", "attempts", "edges_from", "edges_to", "awaited", "items")
_MOST_GROUPS = 100


def remove(tx: Tx, nos: Iterable[int]) -> None:
    """Remove these items from every table, and the groups of which they were the last."""
    wanted = array(nos)
    groups = array(no for (no,) in tx.rows(_SQL["groups_of"], wanted))
    for table in _TABLES:
        tx.run(_SQL[table], wanted)
    tx.run(_SQL["groups"], groups)


def prune(tx: Tx, limit: int) -> int:
    """Remove up to `limit` items whose time is over, and what else has expired."""
    tx.run(_SQL["once"], tx.now, limit)
    tx.run(_SQL["gauges"], tx.now, limit)
    found = [no for (no,) in tx.rows(_SQL["expired"], tx.now, limit)]
    for no, ended in tx.rows(_SQL["groups_to_look_at"], tx.now, _MOST_GROUPS):
        if len(found) >= limit:
            break
        found += _expired_members(tx, no, ended, limit - len(found))
    if found:
        remove(tx, found)
    return len(found)


def _expired_members(tx: Tx, group: int, ended: float, most: int) -> list[int]:
    """Members that may go now, and a note when to look at the group again: as long as it is not certain that
    nothing will happen before, at once."""
    found: list[int] = []
    later: list[float] = []
    for no, keep, referred in tx.rows(_SQL["members"], group, group):
        if keep is None:
            continue
        if ended + keep > tx.now or referred:
            later.append(ended + keep)
        elif len(found) < most:
            found.append(no)
        else:
            later.append(ended + keep)
    tx.run(_SQL["look_at"], min(later, default=None), group)
    return found
