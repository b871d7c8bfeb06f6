"""Groups: members, values, and how they end and open again.

A root that never had children is a group without an object: `Row.contributed` is all there is to know.
"""

from __future__ import annotations

from treadle.item import Contribution, EndedGroup
from treadle.rules import GroupValue, contributed, shortest_keep

from .following import Following
from .rows import Group, Row
from .store import Store


def group_of(store: Store, row: Row) -> Group:
    """Its group; a root that was alone gets one of its own."""
    if row.group is not None:
        return row.group
    group = Group(row)
    if row.contributed:
        group.contributed, group.version, group.value = True, 1, row.result
        row.contributed = False
    store.groups.setdefault(group.id, {})[group.tenant] = group
    join(group, row)
    return group


def join(group: Group, row: Row) -> None:
    row.group = group
    group.members[row] = None
    group.open += 1
    keep = shortest_keep(row.item.keep, row.item.keep_dead)
    group.keep = keep if group.keep is None else min(group.keep, keep)


# ----------------------------------------------------------------------------------------------------- values


def value_of(row: Row) -> GroupValue:
    group = row.group
    if group is not None:
        return GroupValue(group.version, group.value, group.final)
    return GroupValue(1, row.result) if row.contributed else GroupValue()


def contribute(store: Store, row: Row, contribution: Contribution) -> GroupValue | None:
    """Set the group's value, its result being set already. None: the value is locked, and stays."""
    if row.group is None and contribution.value is None and not contribution.final:
        row.contributed = True
        return GroupValue(1, row.result)
    group = group_of(store, row)
    if group.final:
        return None
    value = contributed(contribution, row.result, group.version)
    group.version, group.value, group.final = value
    group.contributed = True
    return value


# --------------------------------------------------------------------------------------------------- openings


def member_ended(store: Store, row: Row, now: float, following: Following) -> None:
    """Count an end. The last one ends the group."""
    group, kind = row.group, row.kind
    if group is None:
        value = row.result if row.contributed else None
        following.closed.append(EndedGroup(row.item.id, kind.tenant, value, kind.type))
        store.fading.add_member(row, now)
        return
    group.open -= 1
    if row.status == "dead":
        group.dead[row] = None
    elif row.status == "cancelled":
        group.cancelled[row] = None
    if not group.open:
        group.ended_at = now
        following.closed.append(EndedGroup(group.id, group.tenant, group.value, group.type))
        if group.keep is not None:
            store.fading.add_group(group, now + group.keep)


def reopen(store: Store, row: Row) -> None:
    """A member that had ended is open again."""
    group = row.group
    if group is None:
        return
    group.open += 1
    group.ended_at = None
    group.dead.pop(row, None)
    if group.spot is not None:
        store.fading.groups.remove(group)
