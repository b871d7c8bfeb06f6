"""Removing items: by an operator, or because their time is over."""

from __future__ import annotations

from collections.abc import Iterable

from .statements import Statements
from .tx import Tx, array

_SQL = Statements("remove")

_TABLES = ("jobs", "done", "attempts", "edges_from", "edges_to", "awaited", "keys", "items")
_MOST_GROUPS = 100


def remove(tx: Tx, nos: Iterable[int]) -> None:
    """Remove these items from every table, and the groups of which they were the last."""
    wanted = array(nos)
    groups = array(no for (no,) in tx.rows(_SQL["groups_of"], wanted))
    let_go(tx, wanted)
    for table in _TABLES:
        tx.run(_SQL[table], wanted)
    tx.run(_SQL["groups"], groups)


def let_go(tx: Tx, nos: str) -> None:
    """These items (a JSON array) end or are removed: before the edges to them are."""
    tx.run(_SQL["let_go_items"], nos)
    tx.run(_SQL["let_go_groups"], nos)


def prune(tx: Tx, limit: int) -> int:
    """Remove up to `limit` items whose time is over, and what else has expired."""
    tx.run(_SQL["once"], tx.now, limit)
    tx.run(_SQL["gauges"], tx.now, limit)
    found = _expired(tx, limit)
    while len(found) < limit:
        groups = tx.rows(_SQL["groups_to_look_at"], tx.now, _MOST_GROUPS)
        for no, ended in groups:
            found += _expired_members(tx, no, ended, limit - len(found))
        if len(groups) < _MOST_GROUPS:
            break
    if found:
        remove(tx, found)
    return len(found)


def _expired(tx: Tx, most: int) -> list[int]:
    """Items that are alone and may go. One that is referred to is not looked at again before it is let go."""
    found: list[int] = []
    while len(found) < most:
        rows = tx.rows(_SQL["expired"], tx.now, most)
        kept = [no for no, referred in rows if referred]
        found = [no for no, referred in rows if not referred]
        if not kept:
            break
        tx.run(_SQL["retain"], array(kept))
    return found


def _expired_members(tx: Tx, group: int, ended: float, most: int) -> list[int]:
    """Members that may go now; and a note when to look at the group again. For those that are referred to,
    that is when they are let go."""
    found: list[int] = []
    later: list[float] = []
    for no, keep, referred in tx.rows(_SQL["members"], group, group):
        if keep is None or referred:
            continue
        if ended + keep <= tx.now and len(found) < most:
            found.append(no)
        else:
            later.append(ended + keep)
    tx.run(_SQL["look_at"], min(later, default=None), group)
    return found
