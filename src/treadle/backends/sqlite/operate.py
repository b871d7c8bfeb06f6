"""Operate: cancel, complete, trigger, hold, delete, requeue and update."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import UNSET

from treadle.errors import AlreadyEnded, NotFound, NotHoldable, NotTriggerable, NotUpdatable, ReferencedError
from treadle.item import (
    GROUP_MARK,
    Changed,
    Contribution,
    Counting,
    Filter,
    Item,
    ItemState,
    ItemUpdate,
    Ref,
    Status,
)
from treadle.store.rules.listing import narrowed_filter
from treadle.store.rules.repair import Condition, RepairLookups, gone_prerequisite, plan_repair
from treadle.store.rules.settlement import contributed, redrive, shortest_keep
from treadle.store.rules.submission import Dependencies, changers, count_dependencies, is_tolerant
from treadle.store.rules.times import changed_due_at, deadline_at, hold_due, is_held, keep_hold, unheld_due

from . import steps
from .dependencies import WaitingItem, find_known, replace_dependencies
from .endings import EndingBatch, OpenItem, open_items
from .groups import SqliteGroups
from .lists import oldest_numbers
from .read import root
from .retention import remove
from .rows import (
    BLOCKED,
    CANCELLED,
    DEAD,
    HAS_STEPS,
    READY,
    SCHEDULED,
    STATUS,
    SUCCESS,
    decode_ids,
    numbers,
    states,
)
from .statements import NULL, Tx, array, statements

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
        found = before[by_id[id]]
        if found.status != "scheduled" or found.held:
            raise NotTriggerable(id, found.status, found.held)
    suspended = [no for no, state in before.items() if state.suspended]
    if suspended:
        _wake(tx, suspended, before)
    nos = list(dict.fromkeys(by_id[id] for id in ids))
    first = tx.numbers(seq=len(nos)).seq
    tx.run(_SQL["trigger"], tx.now, tx.now, first, array(nos))
    return Changed(tuple(before.values()))


def _wake(tx: Tx, nos: Sequence[int], states: Mapping[int, ItemState]) -> None:
    """The sleeps of these suspended items are over."""
    asleep = steps.sleeping(tx, nos)
    for no in nos:
        if no not in asleep:
            raise NotTriggerable(states[no].id, states[no].status)
    steps.end_sleeps(tx, nos)


def hold(tx: Tx, ids: Sequence[str], held: bool, tenant: str | None) -> Changed:
    by_id = numbers(tx, ids, tenant)
    waiting: dict[int, float] = dict(tx.rows(_SQL["waiting"], array(by_id.values())))
    before = states(tx, by_id.values())
    for id in ids:
        if id not in by_id:
            raise NotFound(id)
        if held and by_id[id] not in waiting:
            raise NotHoldable(id, before[by_id[id]].status)
    nos = dict.fromkeys(by_id[id] for id in ids)
    changed = [no for no in nos if no in waiting and is_held(waiting[no]) != held]
    for no in changed:
        due = hold_due(waiting[no]) if held else unheld_due(waiting[no])
        ready = due <= tx.now
        place = (READY, tx.numbers(seq=1).seq, tx.now) if ready else (SCHEDULED, 0, None)
        tx.run(_SQL["hold"], due, *place, no)
    return Changed(tuple(before[no] for no in changed))


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


# -- requeue: open ended items, and block again what died or is doomed because of them ---------------


def requeue(
    tx: Tx,
    where: Sequence[str] | Filter,
    tenant: str | None,
    limit: int,
    redrives: int | None,
    backoff: float,
    *,
    alone: bool,
    cancelled: bool,
    from_step: str | None = None,
) -> Changed:
    wanted: tuple[Status, ...] = ("dead", "cancelled") if cancelled else ("dead",)
    if isinstance(where, Filter):
        narrowed = narrowed_filter(where, tenant, wanted)
        nos = [] if narrowed is None else oldest_numbers(tx, narrowed, limit, redrives=redrives)
    else:
        by_id = numbers(tx, where, tenant)
        nos = [by_id[id] for id in dict.fromkeys(where) if id in by_id]
    asked = [
        one
        for one in _ended_items(tx, "ended_items", nos)
        if STATUS[one.outcome] in wanted and (redrives is None or one.redrives < redrives)
    ]
    if from_step is not None:
        without = steps.without_step(tx, [one.no for one in asked], from_step)
        asked = [one for one in asked if one.no not in without]
    if not asked:
        return Changed(())
    opening = _Opening(tx, asked, alone=alone)
    before = states(tx, opening.opened)
    opening.write(redrives, backoff)
    recorded = [one for one in asked if one.records & HAS_STEPS and one.no in before]
    if recorded:
        dead = [one.no for one in recorded if one.outcome == DEAD]
        steps.requeue(tx, [one.no for one in recorded], dead, from_step)
    return Changed(tuple(before.values()))


class _Ended(NamedTuple):
    """An item that has ended, or is doomed, and what it waited for."""

    no: int
    id: str
    tenant: str
    group: int
    group_id: str
    has_group_row: int
    outcome: int
    """0: it is doomed."""
    fails_group: int
    redrives: int
    due: float
    keep: float
    keep_dead: float | None
    need: int
    met: int
    any_end_counts: int
    after: str | None
    waits_for: int
    """One of its prerequisites: the number of an item, or of a group, negated. 0: unknown."""
    records: int
    """See the column."""

    @property
    def condition(self) -> Condition:
        counting: Counting = "done" if self.any_end_counts else "success"
        return Condition(self.tenant, decode_ids(self.after), self.need, counting)

    @property
    def names(self) -> dict[Ref, int]:
        """The names by which others wait for it or for its group, with the numbers behind them."""
        return {(self.tenant, self.id): self.no, (self.tenant, GROUP_MARK + self.group_id): -self.group}


def _ended_items(tx: Tx, name: str, nos: Iterable[int]) -> list[_Ended]:
    return [_Ended._make(row) for row in tx.rows(_SQL[name], array(nos))]


class _Opening:
    """Which items open again, and what they then wait for."""

    def __init__(self, tx: Tx, asked: Sequence[_Ended], *, alone: bool) -> None:
        self._tx = tx
        self._items: dict[int, _Ended] = {}
        self._conditions: dict[int, Condition] = {}
        self._known: dict[Ref, tuple[int, int | None]] = {}
        self._numbers: dict[Ref, int] = {}
        self._dependents: defaultdict[int, list[int]] = defaultdict(list)
        self._asked = {one.no for one in self._add(asked)}
        if not alone:
            self._find_dependents()
        lookups = RepairLookups[int](
            self._conditions.__getitem__, self._ended, self._names_of, self._dependents_of
        )
        self.opened, self._names = plan_repair([one.no for one in asked], lookups)
        """The items that open again: those asked for come first."""
        self._doomed = [] if alone else self._find_doomed()

    # -- deciding --------------------------------------------------------------------------------------

    def _add(self, found: Iterable[_Ended]) -> list[_Ended]:
        """Add items that were not known. Return these."""
        new = {one.no: one for one in found if one.no not in self._items}
        for no, one in new.items():
            self._items[no] = one
            self._conditions[no] = one.condition
            self._numbers.update(one.names)
        conditions = [self._conditions[no] for no in new]
        named = {(one.tenant, name) for one in conditions for name in one.after}
        self._known |= find_known(self._tx, named - self._known.keys())
        return list(new.values())

    def _names_of(self, no: int) -> Iterable[Ref]:
        return self._items[no].names

    def _dependents_of(self, name: Ref) -> Iterable[int]:
        return self._dependents.get(self._numbers[name], ())

    def _find_dependents(self) -> None:
        """Find all items that died because of these, directly or through others."""
        new = list(self._items.values())
        while new:
            found = _ended_items(
                self._tx, "dead_dependents", {no for one in new for no in one.names.values()}
            )
            for one in found:
                self._dependents[one.waits_for].append(one.no)
            new = self._add(found)

    def _find_doomed(self) -> list[int]:
        """Doomed items that can wait again."""
        found = self._add(
            _ended_items(self._tx, "doomed_dependents", {self._numbers[name] for name in self._names})
        )
        return [one.no for one in found if self._waits(one.no).state == "waiting"]

    def _ended(self, no: int, name: str) -> Status | None:
        """How a prerequisite of an item had ended before."""
        item = self._items[no]
        found = self._known.get((item.tenant, name))
        if found is None:
            return gone_prerequisite(was_released=item.met >= item.need)
        return None if found[1] is None else STATUS[found[1]]

    def _waits(self, no: int) -> Dependencies:
        """What an item waits for once all of them are open."""
        tenant = self._items[no].tenant
        return count_dependencies(
            self._conditions[no],
            lambda name: None if (tenant, name) in self._names else self._ended(no, name),
        )

    # -- writing ---------------------------------------------------------------------------------------

    def write(self, redrives: int | None, backoff: float) -> None:
        if not self.opened:
            return
        tx = self._tx
        self._reopen_for_blocked(self._reopen_groups())
        waits = {no: self._waits(no) for no in (*self.opened, *self._doomed)}
        replace_dependencies(tx, [self._waiting(no, found) for no, found in waits.items()], self._known)
        seq = tx.numbers(seq=len(waits)).seq
        rows = [self._row(no, waits[no], seq + n, redrives, backoff) for n, no in enumerate(self.opened)]
        tx.run_rows(_SQL["open_again"], rows)
        opened = array(self.opened)
        tx.run(_SQL["delete_done"], opened)
        tx.run_rows(_SQL["block_again"], [(no, waits[no].met, waits[no].open) for no in self._doomed])

    def _reopen_groups(self) -> set[int]:
        """Count the items in their groups again. Return the numbers, negated, of the groups that had ended
        and did not count as success."""
        groups = SqliteGroups(self._tx)
        items = [self._items[no] for no in self.opened]
        groups.load(item.group for item in items if item.has_group_row)
        unsuccessful = {
            -item.no
            for item in items
            if not item.has_group_row and (item.fails_group or item.outcome == CANCELLED)
        }
        for item in items:
            group = groups.touched(item.group)
            if group is not None:
                if group.ended is not None and not group.counts_as_success:
                    unsuccessful.add(-group.no)
                group.failed -= item.fails_group
                group.cancelled -= item.outcome == CANCELLED
                group.add(1, shortest_keep(item.keep, item.keep_dead))
        groups.write()
        return unsuccessful

    def _reopen_for_blocked(self, groups: Collection[int]) -> None:
        """For items that are still blocked, these prerequisites are open again, unless their end counted."""
        names = array((*self.opened, *groups))
        pending = Counter[int]()
        for dependent, weight in self._tx.rows(_SQL["counted_in_vain"], names):
            pending[dependent] += weight
        if pending:
            self._tx.run(_SQL["uncount"], names)
            self._tx.run_rows(_SQL["add_pending"], list(pending.items()))

    def _waiting(self, no: int, found: Dependencies) -> WaitingItem:
        tenant, after, need, counting = self._conditions[no]
        return WaitingItem(no, tenant, after, is_tolerant(counting, need, after), found)

    def _row(
        self, no: int, waits: Dependencies, seq: int, most: int | None, backoff: float
    ) -> tuple[Any, ...]:
        """The open row: (no, status, seq, due, ready_since, redrives, has_dependencies, met, pending)"""
        item, now = self._items[no], self._tx.now
        redrives, due = item.redrives, item.due
        if no in self._asked:
            redrives, delay = redrive(item.redrives, most, backoff)
            due = now + delay
        status = BLOCKED if waits.state == "waiting" else SCHEDULED if due > now else READY
        place, since = (seq, now) if status == READY else (0, NULL)
        has_dependencies = 1 if self._conditions[no].after else 0
        return no, status, place, due, since, redrives, has_dependencies, waits.met, waits.open


# -- update: change items that have not started ------------------------------------------------------


class UnstartedItem(NamedTuple):
    no: int
    status: int
    queued_at: float
    queue: str
    lane: str
    priority: int
    due: float
    deadline: float | None
    ready_since: float | None


def update(tx: Tx, ids: Sequence[str], changes: ItemUpdate, tenant: str | None) -> Changed:
    by_id = numbers(tx, ids, tenant)
    before = states(tx, by_id.values())
    found = _unstarted(tx, by_id.values())
    for id in ids:
        if id not in by_id:
            raise NotFound(id)
        if by_id[id] not in found:
            raise NotUpdatable(id, before[by_id[id]].status)
    for no in dict.fromkeys(by_id[id] for id in ids):
        _update(tx, found[no], changes)
    return Changed(tuple(before[no] for no in dict.fromkeys(by_id[id] for id in ids)))


def _unstarted(tx: Tx, nos: Iterable[int]) -> dict[int, UnstartedItem]:
    return {row[0]: UnstartedItem._make(row) for row in tx.rows(_SQL["unstarted"], array(nos))}


def _update(tx: Tx, item: UnstartedItem, changes: ItemUpdate) -> None:
    changed = item._replace(
        queue=item.queue if changes.queue is UNSET else changes.queue,
        lane=item.lane if changes.lane is UNSET else changes.lane,
        priority=item.priority if changes.priority is UNSET else changes.priority,
        due=item.due if changes.run_at is UNSET else keep_hold(item.due, changes.run_at),
        deadline=item.deadline if changes.deadline is UNSET else changes.deadline,
    )
    if changed._replace(deadline=item.deadline) == item:
        tx.run(_SQL["set_deadline"], changed.deadline, item.no)
        return
    tx.run(_SQL["update_item"], changed.queue, changed.lane, changed.priority, item.no)
    _move(tx, changed if changed.due == item.due else changed._replace(ready_since=None))


def take_over(tx: Tx, changes: Mapping[Ref, Item]) -> None:
    """Let the items that hold keys take over what new items have."""
    for (tenant, id), new in changes.items():
        found = _unstarted(tx, numbers(tx, [id], tenant).values())
        for item in found.values():
            keep = (new.keep, new.keep_dead)
            columns = (new.queue, new.lane, new.priority, new.attempts, *keep, new.options, new.input)
            tx.run(_SQL["take_over"], *columns, item.no)
            _move(
                tx,
                item._replace(
                    queue=new.queue,
                    lane=new.lane,
                    priority=new.priority,
                    due=keep_hold(item.due, changed_due_at(new, item.queued_at, tx.now)),
                    deadline=deadline_at(new, tx.now),
                    ready_since=None,
                ),
            )
            _record_change(tx, (new.key, tenant, new.type), new.id)


def _move(tx: Tx, item: UnstartedItem) -> None:
    """Write where it waits now, at the end of its line. A blocked item stays blocked. `ready_since`: None
    means now."""
    status, seq, since = item.status, 0, None
    if status != BLOCKED and item.due > tx.now:
        status = SCHEDULED
    elif status != BLOCKED:
        status, seq, since = READY, tx.numbers(seq=1).seq, item.ready_since or tx.now
    place = (item.queue, item.lane, -item.priority)
    tx.run(_SQL["update_open"], status, *place, item.due, item.deadline, seq, since, item.no)


def _record_change(tx: Tx, key: tuple[str | None, str, str], new: str) -> None:
    before: str | None = tx.value(_SQL["changed_by"], *key)
    tx.run(_SQL["set_changed_by"], array(changers(decode_ids(before), new)), *key)
