"""requeue: open ended items again, and block again what died or is doomed because of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from treadle.item import Changed, Filter, Ref, Status
from treadle.rules.settlement import redrive, shortest_keep
from treadle.rules.submission import Dependencies, counts, is_tolerant

from .dependencies import Waiting, find_known, replace_dependencies
from .groups import SqliteGroups
from .read import numbers_where
from .rows import decode_ids, numbers, states
from .statements import NULL, Tx, array, statements
from .status_codes import BLOCKED, CANCELLED, READY, SCHEDULED, STATUS

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
        nos = _numbers_where(tx, where, tenant, limit, redrives, wanted)
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


def _numbers_where(
    tx: Tx, where: Filter, tenant: str | None, limit: int, redrives: int | None, wanted: tuple[Status, ...]
) -> list[int]:
    status = tuple(one for one in wanted if not where.status or one in where.status)
    if not status or (tenant is not None and where.tenant not in (None, tenant)):
        return []
    narrowed = replace(where, status=status, tenant=where.tenant if tenant is None else tenant)
    return numbers_where(tx, narrowed, limit, redrives=redrives)


class _Ended(NamedTuple):
    """An item that has ended, or is doomed, and what it waited for."""

    no: int
    tenant: str
    group: int
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


def _ended_items(tx: Tx, name: str, nos: Iterable[int]) -> list[_Ended]:
    return [_Ended._make(row) for row in tx.rows(_SQL[name], array(nos))]


class _Prerequisite(NamedTuple):
    """A name in `after`."""

    name: str
    number: int | None
    """Of the item, or of the group, negated. None: it does not exist."""
    outcome: int | None
    """How it ended. None: it is open."""


class _Opening:
    """Which items open again, and what they then wait for."""

    def __init__(self, tx: Tx, asked: Sequence[_Ended], *, alone: bool) -> None:
        self._tx = tx
        self._items: dict[int, _Ended] = {}
        self._prerequisites: dict[int, list[_Prerequisite]] = {}
        self._known: dict[Ref, tuple[int, int | None]] = {}
        self._add(asked)
        candidates = [] if alone else self._find_dependents()
        self.opened = self._decide([one.no for one in asked], candidates)
        """The items that open again: those asked for come first."""
        self._asked = {one.no for one in asked}
        self._names = self._opened_names(self.opened)
        self._doomed = [] if alone else self._find_doomed()

    # -- deciding --------------------------------------------------------------------------------------

    def _add(self, found: Iterable[_Ended]) -> list[_Ended]:
        """Add items that were not known. Return these."""
        new = {one.no: one for one in found if one.no not in self._items}
        self._items.update(new)
        after = {no: decode_ids(one.after) for no, one in new.items()}
        wanted = {(new[no].tenant, name) for no, names in after.items() for name in names}
        self._known |= find_known(self._tx, wanted - self._known.keys())
        for no, names in after.items():
            refs: list[Ref] = [(new[no].tenant, name) for name in names]
            self._prerequisites[no] = [
                _Prerequisite(ref[1], *self._known.get(ref, (None, None))) for ref in refs
            ]
        return list(new.values())

    def _find_dependents(self) -> list[int]:
        """All items that died because of these, directly or through others."""
        found: list[int] = []
        new = list(self._items.values())
        while new:
            names = self._opened_names(one.no for one in new)
            new = self._add(_ended_items(self._tx, "dead_dependents", names))
            found += [one.no for one in new]
        return found

    def _find_doomed(self) -> list[int]:
        """Doomed items that can wait again."""
        found = self._add(_ended_items(self._tx, "doomed_dependents", self._names))
        return [one.no for one in found if self._waits(one.no, self._names).state != "doomed"]

    def _opened_names(self, nos: Iterable[int]) -> set[int]:
        """The numbers of these items and, negated, of their groups."""
        return {name for no in nos for name in (no, -self._items[no].group)}

    def _decide(self, asked: list[int], candidates: Sequence[int]) -> list[int]:
        """Open what was asked for, and then what can wait for something that is open again. What was asked
        for stays ended if its condition cannot be met even so."""
        while True:
            opened = dict.fromkeys(asked)
            names = self._opened_names(opened)
            new = list(asked)
            while new:
                new = [no for no in candidates if no not in opened and self._can_wait(no, names)]
                opened.update(dict.fromkeys(new))
                names |= self._opened_names(new)
            left = [no for no in asked if self._waits(no, names).state != "doomed"]
            if len(left) == len(asked):
                return list(opened)
            asked = left

    def _can_wait(self, no: int, names: Collection[int]) -> bool:
        concerned = any(one.number in names for one in self._prerequisites[no])
        return concerned and self._waits(no, names).state != "doomed"

    def _waits(self, no: int, names: Collection[int]) -> Dependencies:
        """What an item waits for once these items and groups are open."""
        item = self._items[no]
        counting = "done" if item.any_end_counts else "success"
        found = Dependencies(item.need)
        for one in self._prerequisites[no]:
            if one.number is None and item.met >= item.need:
                # It was removed after it had counted.
                found.met += 1
            elif one.number in names or one.outcome is None:
                found.pending[one.name] = found.pending.get(one.name, 0) + 1
                found.open += 1
            else:
                found.met += counts(counting, STATUS[one.outcome])
        return found

    # -- writing ---------------------------------------------------------------------------------------

    def write(self, redrives: int | None, backoff: float) -> None:
        if not self.opened:
            return
        tx = self._tx
        self._reopen_for_blocked(self._reopen_groups())
        waits = {no: self._waits(no, self._names) for no in (*self.opened, *self._doomed)}
        replace_dependencies(tx, [self._waiting(no, found) for no, found in waits.items()], self._known)
        seq = tx.numbers(seq=len(waits)).seq
        rows = [self._row(no, waits[no], seq + n, redrives, backoff) for n, no in enumerate(self.opened)]
        tx.run_rows(_SQL["open_again"], rows)
        tx.run(_SQL["delete_done"], array(self.opened))
        tx.run_rows(_SQL["block_again"], [(no, waits[no].met, waits[no].open) for no in self._doomed])

    def _reopen_groups(self) -> set[int]:
        """Count the items in their groups again. Return the numbers, negated, of the groups that had ended
        and failed."""
        groups = SqliteGroups(self._tx)
        items = [self._items[no] for no in self.opened]
        groups.load(item.group for item in items if item.has_group_row)
        failed = {-item.no for item in items if not item.has_group_row and item.fails_group}
        for item in items:
            group = groups.touched(item.group)
            if group is not None:
                if group.ended is not None and group.failed:
                    failed.add(-group.no)
                group.failed -= item.fails_group
                group.cancelled -= item.outcome == CANCELLED
                group.add(1, shortest_keep(item.keep, item.keep_dead))
        groups.write()
        return failed

    def _reopen_for_blocked(self, groups: Collection[int]) -> None:
        """For items that are still blocked, these prerequisites are open again, unless their end counted."""
        names = array((*self.opened, *groups))
        pending = Counter[int]()
        for dependent, weight in self._tx.rows(_SQL["counted_in_vain"], names):
            pending[dependent] += weight
        if pending:
            self._tx.run(_SQL["uncount"], names)
            self._tx.run_rows(_SQL["add_pending"], list(pending.items()))

    def _waiting(self, no: int, found: Dependencies) -> Waiting:
        item, after = self._items[no], [one.name for one in self._prerequisites[no]]
        tolerant = is_tolerant("done" if item.any_end_counts else "success", item.need, after)
        return Waiting(no, item.tenant, after, tolerant, found)

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
        has_dependencies = 1 if self._prerequisites[no] else 0
        return no, status, place, due, since, redrives, has_dependencies, waits.met, waits.open
