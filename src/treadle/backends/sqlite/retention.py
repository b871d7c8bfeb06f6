"""Retention: remove items that an operator deletes, or whose time is over."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.records import KEPT_AUDIT, KEPT_REMOVALS

from .orders import prune_orders
from .records import prune_stats
from .statements import Tx, array, statements
from .steps import remove as remove_recorded

_SQL = statements("retention")

_DELETES = (
    "delete_open",
    "delete_done",
    "delete_attempts",
    "delete_logs",
    "delete_dependents",
    "delete_dependencies",
    "delete_missing",
    "delete_keys",
    "delete_items",
)
_MOST_GROUPS = 100


def remove(tx: Tx, nos: Iterable[int]) -> None:
    """Remove these items from every table, and the groups whose last members they were."""
    wanted = array(nos)
    groups = array(no for (no,) in tx.rows(_SQL["groups_of"], wanted))
    let_prerequisites_expire(tx, wanted)
    remove_recorded(tx, wanted)
    for name in _DELETES:
        tx.run(_SQL[name], wanted)
    tx.run(_SQL["delete_groups"], groups)


def let_prerequisites_expire(tx: Tx, nos: str) -> None:
    """These items (a JSON array of numbers) end or are removed: they no longer keep their prerequisites from
    being pruned. To be called before their dependencies are deleted."""
    tx.run(_SQL["let_prerequisites_expire"], nos)
    tx.run(_SQL["let_prerequisite_groups_expire"], nos)


def prune(tx: Tx, limit: int) -> int:
    """Remove up to `limit` items whose time is over, and expired keys and limits."""
    tx.run(_SQL["delete_claimed_keys"], tx.now, limit)
    tx.run(_SQL["delete_limits"], tx.now, limit)
    prune_stats(tx, limit)
    tx.run(_SQL["delete_audits"], tx.now - KEPT_AUDIT, limit)
    tx.run(_SQL["delete_removals"], tx.now - KEPT_REMOVALS)
    prune_orders(tx)
    count = 0
    while found := _prunable(tx, limit - count):
        remove(tx, found)
        count += len(found)
        # What only these items needed may be pruned too.
    return count


def _prunable(tx: Tx, limit: int) -> list[int]:
    found = _expired(tx, limit)
    while len(found) < limit:
        groups = tx.rows(_SQL["groups_to_prune"], tx.now, _MOST_GROUPS)
        for no, ended, outer, is_needed in groups:
            since = ended if outer is None else _kept_since(tx, outer, ended)
            if since is None or is_needed:
                tx.run(_SQL["set_prune_at"], None, no)
            else:
                found += _expired_members(tx, no, since, limit - len(found))
        if len(groups) < _MOST_GROUPS:
            break
    return found


def _expired(tx: Tx, most: int) -> list[int]:
    """Items that are alone and may be removed. One that is needed is not looked at again before the item that
    needs it has ended, or is removed."""
    found: list[int] = []
    while len(found) < most:
        rows = tx.rows(_SQL["expired"], tx.now, most)
        needed = [no for no, is_needed in rows if is_needed]
        found = [no for no, is_needed in rows if not is_needed]
        if not needed:
            break
        tx.run(_SQL["retain"], array(needed))
    return found


def _kept_since(tx: Tx, outer: int, ended: float) -> float | None:
    """When a nested group and all groups around it had ended. None: one of them is open, and its end sets a
    new time."""
    latest, open = tx.rows(_SQL["groups_around"], outer)[0]
    return None if open else max(ended, latest or ended)


def _expired_members(tx: Tx, group: int, ended: float, most: int) -> list[int]:
    """Members that may be removed now. Stores when to look at the group again. Members that are needed do not
    count for that: the end or the removal of the item that needs them sets a new time."""
    found: list[int] = []
    later: list[float] = []
    for no, keep, is_needed in tx.rows(_SQL["members"], group):
        if keep is None or is_needed:
            continue
        if ended + keep <= tx.now and len(found) < most:
            found.append(no)
        else:
            later.append(ended + keep)
    tx.run(_SQL["set_prune_at"], min(later, default=None), group)
    return found
