"""Groups, as they change within one verb: read once, changed in memory, written at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from treadle.item import EndedGroup
from treadle.store.rules.settlement import GroupValue, group_status

from .rows import DEAD, SUCCESS
from .statements import NULL, Tx, array, blob, statements

_SQL = statements("groups")


class SqliteGroup(msgspec.Struct):
    """A group that has a row: from its first child on."""

    no: int
    id: str
    tenant: str
    type: str
    open: int
    failed: int
    deaths: int
    cancelled: int
    version: int
    final: bool
    keep: float
    ended: float | None
    nested: int
    outermost: int | None
    total: int
    value: bytes | None
    stored: bool = True
    changed: bool = False
    closed: bool = False
    """It ended within this verb."""
    counted: bool = False
    """Its end was counted for the items that wait for it."""

    def set_value(self, new: GroupValue) -> None:
        self.version, self.value, self.final = new
        self.changed = True

    def join(self, count: int, keep: float) -> None:
        """Count new members."""
        self.total += count
        self.add(count, keep)

    def add(self, count: int, keep: float) -> None:
        """Count more open members. `keep`: the shortest time that one of them is kept."""
        self.open += count
        self.keep = min(self.keep, keep)
        self.ended = None
        self.closed = False
        self.counted = False
        self.changed = True

    def fail(self) -> int:
        """A death fails the group. Return its place among all deaths that did."""
        self.failed += 1
        self.deaths += 1
        self.changed = True
        return self.deaths

    def end_member(self, now: float, *, cancelled: bool) -> None:
        self.open -= 1
        self.cancelled += cancelled
        self.changed = True
        if self.open == 0:
            self.ended = now
            self.closed = True

    @property
    def counts_as_success(self) -> bool:
        """For what waits for it, once it has ended."""
        return group_status(self.failed, self.cancelled) == "success"

    def row(self) -> tuple[Any, ...]:
        ended: float | str = NULL if self.ended is None else self.ended
        prune_at: float | str = NULL if self.ended is None else self.ended + self.keep
        value = NULL if self.value is None else blob(self.value)
        counts = self.no, self.open, self.failed, self.deaths, self.cancelled
        return *counts, self.version, int(self.final), self.keep, ended, prune_at, self.total, value


def insert_nested(tx: Tx, rows: Sequence[tuple[Any, ...]]) -> None:
    """Write new nested groups: (no, id, tenant, type, open, total, keep, ended, outer_no, outermost)."""
    tx.run_rows(_SQL["insert_nested"], rows)
    tx.run(_SQL["set_nested"], array({no for row in rows for no in row[-2:]}))


class SqliteGroups:
    """The groups that one verb touches."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._touched: dict[int, SqliteGroup] = {}

    def load(self, nos: Iterable[int]) -> None:
        """Read these groups in one statement. They have rows."""
        wanted = set(nos) - self._touched.keys()
        if wanted:
            for row in self._tx.rows(_SQL["groups"], array(wanted)):
                found = self._touched[row[0]] = SqliteGroup(*row)
                found.final = bool(found.final)

    def get(self, no: int) -> SqliteGroup:
        """The group of this number. It has a row."""
        if no not in self._touched:
            self.load([no])
        return self._touched[no]

    def touched(self, no: int) -> SqliteGroup | None:
        """The group of this number if this verb has touched it; None for an item that is alone."""
        return self._touched.get(no)

    def create(self, no: int, id: str, tenant: str, type: str, keep: float) -> SqliteGroup:
        """Make an item that is alone a group with one member."""
        counts = 1, 0, 0, 0, 0, False, keep, None, 0, None, 1
        found = SqliteGroup(no, id, tenant, type, *counts, None, stored=False, changed=True)
        self._touched[no] = found
        return found

    def write(self) -> None:
        changed = [group for group in self._touched.values() if group.changed]
        if not changed:
            return
        self._tx.run_rows(_SQL["update_groups"], [group.row() for group in changed if group.stored])
        new = [(*group.row(), group.id, group.tenant, group.type) for group in changed if not group.stored]
        self._tx.run_rows(_SQL["insert_groups"], new)
        ended = {group.outermost or group.no for group in changed if group.closed and group.nested}
        if ended:
            self._tx.run(_SQL["let_nested_expire"], array(ended))
        for group in changed:
            group.stored = True
            group.changed = False

    def outcomes(self) -> dict[int, int]:
        """How groups ended since the last call. Each group is named by its negated number."""
        ended = [group for group in self._touched.values() if group.closed and not group.counted]
        for group in ended:
            group.counted = True
        return {-group.no: SUCCESS if group.counts_as_success else DEAD for group in ended}

    def closed(self) -> list[EndedGroup]:
        """The groups that ended within this verb."""
        return [
            EndedGroup(group.id, group.tenant, group.value, group.type, group.failed)
            for group in self._touched.values()
            if group.closed
        ]
