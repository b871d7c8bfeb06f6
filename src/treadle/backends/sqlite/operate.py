"""Operator verbs: cancel, complete, trigger, delete, pause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from treadle.errors import AlreadyEnded, NotFound, NotTriggerable, ReferencedError
from treadle.item import Changed, Contribution, ItemState
from treadle.store.rules.settlement import contributed

from .dependencies import find_known
from .endings import EndingBatch, OpenItem, open_items
from .read import root
from .retention import remove
from .rows import CANCELLED, STATUS, SUCCESS, numbers, states
from .statements import Tx, array, statements

_SQL = statements("operate")


def _shown(tx: Tx, nos: Iterable[int]) -> tuple[ItemState, ...]:
    return tuple(states(tx, nos).values())


# -- ending --------------------------------------------------------------------------------------------


def cancel(tx: Tx, ids: Sequence[str], tenant: str | None, *, only_open: bool) -> Changed:
    named: Iterable[int] = numbers(tx, ids, tenant).values()
    found = open_items(tx, _with_descendants(tx, open_items(tx, named) if only_open else named))
    before = _shown(tx, found)
    endings = EndingBatch(tx)
    endings.groups.load(item.group for item in found.values() if item.group is not None)
    for item in found.values():
        endings.end(item, CANCELLED)
    return Changed(before, endings.effects())


def _with_descendants(tx: Tx, nos: Iterable[int]) -> list[int]:
    found = dict.fromkeys(nos)
    new = list(found)
    while new:
        new = [no for no in _children(tx, new) if no not in found]
        found.update(dict.fromkeys(new))
    return list(found)


def _children(tx: Tx, nos: Iterable[int]) -> list[int]:
    """The items in the groups of these that their settlements queued, and the members of the nested groups
    that these close."""
    parents = array(nos)
    return [no for name in ("children", "closed_members") for (no,) in tx.rows(_SQL[name], parents)]


def complete(tx: Tx, id: str, result: bytes | None, tenant: str | None) -> Changed:
    no = numbers(tx, [id], tenant).get(id)
    if no is None:
        raise NotFound(id)
    item = open_items(tx, [no]).get(no)
    if item is None:
        raise AlreadyEnded(id, STATUS[tx.value(_SQL["outcome"], no)])
    before = _shown(tx, [no])
    endings = EndingBatch(tx)
    _complete(tx, endings, item, result)
    return Changed(before, endings.effects())


def _complete(tx: Tx, endings: EndingBatch, item: OpenItem, result: bytes | None) -> None:
    if item.group is None:
        endings.end(item, SUCCESS, result=result, contributed=item.contributes)
        return
    group = endings.groups.get(item.group)
    if item.contributes and not group.final:
        group.set_value(contributed(Contribution(), result, tx.numbers(token=1).token))
    endings.end(item, SUCCESS, result=result)


# -- running earlier ------------------------------------------------------------------------------------


def trigger(tx: Tx, ids: Sequence[str], tenant: str | None) -> Changed:
    by_id = numbers(tx, ids, tenant)
    before = states(tx, by_id.values())
    for id in ids:
        if id not in by_id:
            raise NotFound(id)
        status = before[by_id[id]].status
        if status != "scheduled":
            raise NotTriggerable(id, status)
    nos = list(dict.fromkeys(by_id[id] for id in ids))
    first = tx.numbers(seq=len(nos)).seq
    tx.run(_SQL["trigger"], tx.now, tx.now, first, array(nos))
    return Changed(tuple(before.values()))


# -- removing ------------------------------------------------------------------------------------------


def delete(tx: Tx, group_ids: Sequence[str], tenant: str | None, *, cascade: bool) -> Changed:
    groups = _with_nested(tx, {no for no in (root(tx, id, tenant) for id in group_ids) if no is not None})
    members = _members(tx, groups)
    new = members
    while cascade and new:
        more = _with_nested(tx, _prerequisite_groups(tx, new)) - groups
        groups |= more
        new = _members(tx, more)
        members += new
    _check_references(tx, members)
    before = _shown(tx, sorted(members))
    remove(tx, members)
    return Changed(before)


def _prerequisite_groups(tx: Tx, nos: Iterable[int]) -> set[int]:
    """The groups that these items wait or waited for, and those of the items that they wait or waited for."""
    named = {(tenant, name) for tenant, name in tx.rows(_SQL["names_waited_for"], array(nos))}
    known = [no for no, _ in find_known(tx, named).values()]
    groups = {-no for no in known if no < 0}
    return groups | {no for (no,) in tx.rows(_SQL["groups_of"], array(no for no in known if no > 0))}


def _with_nested(tx: Tx, groups: Iterable[int]) -> set[int]:
    """These groups, and all groups inside them."""
    found = set(groups)
    new = found
    while new:
        new = {no for (no,) in tx.rows(_SQL["nested_groups"], array(new))} - found
        found |= new
    return found


def _members(tx: Tx, groups: Iterable[int]) -> list[int]:
    wanted = array(groups)
    return [no for name in ("roots", "members") for (no,) in tx.rows(_SQL[name], wanted)]


def _check_references(tx: Tx, members: Sequence[int]) -> None:
    """Refuse to delete items, the groups that they close, and their own, if open items outside depend on
    them. (A group has the number of its root, or of the item that closes it.)"""
    deleted = set(members)
    groups = deleted | {no for (no,) in tx.rows(_SQL["groups_of"], array(members))}
    rows = tx.rows(_SQL["references"], array((*members, *(-no for no in groups))))
    references = [(id, dependent_id) for id, dependent_id, dependent in rows if dependent not in deleted]
    if references:
        raise ReferencedError(references)


# -- pausing -------------------------------------------------------------------------------------------


def pause(tx: Tx, queue: str, tenant: str | None, *, paused: bool) -> bool:
    """Whether something was changed."""
    return tx.run(_SQL["pause" if paused else "resume"], queue, tenant or "") > 0


def paused(tx: Tx) -> list[tuple[str, str | None]]:
    return [(queue, tenant or None) for queue, tenant in tx.rows(_SQL["paused"])]
