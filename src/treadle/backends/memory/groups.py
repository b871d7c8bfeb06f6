"""Groups: their members and values.

A root that never had children is a group without an object. `Row.contributed` is all there is to know of it.
"""

from __future__ import annotations

from treadle.item import Contribution
from treadle.store.rules.settlement import LONE_VERSION, GroupValue, contributed, shortest_keep

from .rows import MemoryGroup, Row
from .tables import MemoryTables


def group_of(store: MemoryTables, row: Row) -> MemoryGroup:
    """The group of a row. A root that was alone gets a new one."""
    if row.group is not None:
        return row.group
    group = MemoryGroup(row.kind.tenant, row.item.id, row.kind.type, row.number)
    store.groups.setdefault(group.id, {})[group.tenant] = group
    join(group, row)
    return group


def nest(store: MemoryTables, outer: MemoryGroup, closer: Row) -> MemoryGroup:
    """Make the group that an item closes. It has no members yet."""
    kind, id = closer.kind, closer.item.id
    group = MemoryGroup(kind.tenant, id, kind.type, closer.number, outer=outer, closer=closer)
    outer.nested[group] = None
    store.groups.setdefault(group.id, {})[group.tenant] = group
    return group


def join(group: MemoryGroup, row: Row) -> None:
    row.group = group
    group.members[row] = None
    group.open += 1
    group.total += 1
    keep = shortest_keep(row.item.keep, row.item.keep_dead)
    group.keep = keep if group.keep is None else min(group.keep, keep)


def reopen(store: MemoryTables, row: Row) -> None:
    """A member that had ended is open again."""
    group = row.group
    if group is None:
        row.failed_group = False
        return
    group.open += 1
    group.ended_at = None
    group.failed -= row.failed_group
    group.deaths.pop(row, None)
    group.cancelled.pop(row, None)
    group.cancellations -= row.status == "cancelled"
    row.failed_group = False
    if group.position is not None:
        store.retention.groups.remove(group)


def value_of(row: Row) -> GroupValue:
    group = row.group
    if group is not None:
        return GroupValue(group.version, group.value, group.final)
    return GroupValue(LONE_VERSION, row.result) if row.contributed else GroupValue()


def contribute(store: MemoryTables, row: Row, contribution: Contribution, token: int) -> GroupValue | None:
    """Set the group's value. The row's result must be set already, and its group be there if it has children.
    None: the value is final, and stays."""
    if row.group is None and contribution.value is None and not contribution.final:
        row.contributed = True
        return GroupValue(LONE_VERSION, row.result)
    group = group_of(store, row)
    if group.final:
        return None
    value = contributed(contribution, row.result, token)
    group.version, group.value, group.final = value
    group.contributed = True
    return value
