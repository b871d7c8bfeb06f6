"""requeue: open ended items again, and block again what died or is doomed because of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from treadle.item import GROUP_MARK, Changed, Counting, Filter, Ref, Status
from treadle.store.rules.listing import narrowed_filter
from treadle.store.rules.repair import Condition, RepairLookups, gone_prerequisite, plan_repair
from treadle.store.rules.settlement import redrive, shortest_keep
from treadle.store.rules.submission import Dependencies, count_dependencies, is_tolerant

from .dependencies import WaitingItem, find_known, replace_dependencies
from .groups import SqliteGroups
from .lists import oldest_numbers
from .rows import BLOCKED, CANCELLED, READY, SCHEDULED, STATUS, decode_ids, numbers, states
from .statements import NULL, Tx, array, statements

_SQL = statements("requeue")


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
    if not asked:
        return Changed(())
    opening = _Opening(tx, asked, alone=alone)
    before = states(tx, opening.opened)
    opening.write(redrives, backoff)
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
