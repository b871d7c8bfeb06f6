"""Groups, as they change within one verb: read once, changed in memory, written at the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from treadle.item import EndedGroup

from .statements import Statements
from .tx import NULL, Row, Tx, array, blob

_SQL = Statements("finish")


class Group:
    """A group with a row of its own: from its first child on."""

    __slots__ = (
        "changed",
        "closed",
        "ended",
        "failed",
        "final",
        "id",
        "keep",
        "no",
        "open",
        "stored",
        "tenant",
        "type",
        "value",
        "version",
    )

    def __init__(self, row: Row, *, stored: bool) -> None:
        self.no: int = row[0]
        self.id: str = row[1]
        self.tenant: str = row[2]
        self.type: str = row[3]
        self.open: int = row[4]
        self.failed: int = row[5]
        self.version: int = row[6]
        self.final = bool(row[7])
        self.keep: float = row[8]
        self.ended: float | None = row[9]
        self.value: bytes | None = row[10]
        self.stored = stored
        self.changed = not stored
        self.closed = False
        """It ended within this verb."""

    def contribute(self, value: bytes | None, final: bool) -> bool:
        """Set the value; False if it was final already."""
        if self.final:
            return False
        self.value, self.final = value, final
        self.version += 1
        self.changed = True
        return True

    def add(self, count: int, keep: float) -> None:
        """So many more members are open; the shortest time that one of them is kept."""
        self.open += count
        self.keep = min(self.keep, keep)
        self.ended = None
        self.closed = False
        self.changed = True

    def leave(self, now: float, *, failed: bool) -> None:
        """A member has ended."""
        self.open -= 1
        self.failed += failed
        self.changed = True
        if self.open == 0:
            self.ended = now
            self.closed = True

    def announcement(self) -> EndedGroup:
        return EndedGroup(self.id, self.tenant, self.value, self.type)

    def row(self) -> tuple[Any, ...]:
        ended: float | str = NULL if self.ended is None else self.ended
        look: float | str = NULL if self.ended is None else self.ended + self.keep
        value = NULL if self.value is None else blob(self.value)
        return self.no, self.open, self.failed, self.version, int(self.final), self.keep, ended, look, value


class Groups:
    """The groups that one verb touches."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._touched: dict[int, Group] = {}

    def load(self, nos: Iterable[int]) -> None:
        """Read these groups at once. They have rows."""
        wanted = set(nos) - self._touched.keys()
        if wanted:
            for row in self._tx.rows(_SQL["groups"], array(wanted)):
                self._touched[row[0]] = Group(row, stored=True)

    def of(self, no: int) -> Group:
        """The group of this number. It has a row."""
        if no not in self._touched:
            self.load([no])
        return self._touched[no]

    def touched(self, no: int) -> Group | None:
        """The group of this number, if this verb has dealt with it; an item that is alone has none."""
        return self._touched.get(no)

    def begin(self, no: int, id: str, tenant: str, type: str, keep: float) -> Group:
        """A lone item becomes a group, of which it is the one member."""
        row = (no, id, tenant, type, 1, 0, 0, 0, keep, None, None)
        found = self._touched[no] = Group(row, stored=False)
        return found

    def write(self) -> None:
        changed = [group for group in self._touched.values() if group.changed]
        if not changed:
            return
        self._tx.run_rows(_SQL["update_groups"], [group.row() for group in changed if group.stored])
        fresh = [(*one.row(), one.id, one.tenant, one.type) for one in changed if not one.stored]
        self._tx.run_rows(_SQL["insert_groups"], fresh)
        for group in changed:
            group.stored = True
            group.changed = False

    def closed(self) -> list[EndedGroup]:
        return [group.announcement() for group in self._touched.values() if group.closed]
