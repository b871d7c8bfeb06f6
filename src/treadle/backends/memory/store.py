"""Store: all the tables of one in-memory backend, and the steps that keep them together.

Nothing here waits: a verb that runs on it runs to its end before anybody else has a turn, which is what makes
every verb atomic. `audit` says what must always be true of the tables.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from treadle.clock import Clock
from treadle.item import Item, Ref, Schedule
from treadle.rules import KeyHolder, KeyRef

from .doomed import Doomed
from .due import Due
from .fading import Fading
from .lines import Line, Lines, Parked, Turns
from .permits import Permits
from .pile import SLACK, Pile
from .rows import Expiry, Group, Kind, Row, Worker

if TYPE_CHECKING:
    from .strays import Search

K = TypeVar("K")
V = TypeVar("V")


class Namesakes(dict[str, Row]):
    """Rows of several tenants with the same id, by tenant, in the order of their submission."""


class Store:
    def __init__(self, clock: Clock) -> None:
        self.now = clock.now
        self.quick = True
        """Whether plain items may take the short way: see `quick`."""

        self.items: dict[str, Row | Namesakes] = {}
        self.log: list[Row] = []
        """In the order of submission; rows that are gone stay until there are too many of them."""
        self.gone = 0
        self.number = 0
        self.kinds: dict[tuple[str, str, str, str], Kind] = {}
        self.types: dict[str, dict[Kind, None]] = {}
        self.groups: dict[str, dict[str, Group]] = {}
        """By id and tenant: those that have had more than one member."""
        self.keys: dict[KeyRef, Row] = {}
        self.workflows: dict[Ref, dict[Row, None]] = {}
        self.dead: dict[Row, None] = {}

        self.place = 0
        self.turns = Turns()
        self.paused: set[tuple[str, str | None]] = set()
        self.lines: dict[tuple[str, str, str], Line] = {}
        self.ready = Lines(self.turns, self.paused)
        self.parked: dict[str, Parked] = {}
        self.due = Due()
        self.doomed = Doomed()
        self.deadlines: Pile[Expiry] = Pile()
        self.waiters: dict[Ref, dict[Row, None]] = {}
        """Who is open and names it in `after`: it need not exist."""

        self.token = 0
        self.workers: dict[str, Worker] = {}
        self.lapses: Pile[Worker] = Pile()
        self.beats = 0
        self.known: Counter[str] = Counter()
        """How many live workers have a type. Those that have every type are counted apart."""
        self.know_all = 0
        self.forgotten: dict[str | None, float] = {}
        """When the last live worker that had a type (None: every type) was gone."""

        self.searches: dict[str, Search] = {}
        """What was found of types that no live worker has."""

        self.fading = Fading()
        self.permits = Permits()
        self.schedules: dict[str, Schedule] = {}

    # -- finding -----------------------------------------------------------------------------------------

    def find(self, tenant: str | None, id: str) -> Row | None:
        """The row of this tenant; without one, the one that was submitted first."""
        row = self.items.get(id)
        if isinstance(row, Row):
            return row if tenant is None or tenant == row.kind.tenant else None
        if row is None:
            return None
        return next(iter(row.values())) if tenant is None else row.get(tenant)

    def exists(self, ref: Ref) -> bool:
        return self.find(*ref) is not None

    def key_holder(self, key: KeyRef) -> KeyHolder | None:
        row = self.keys.get(key)
        return None if row is None else KeyHolder(row.item.id, row.group_open, row.queued_at)

    def find_group(self, tenant: str | None, id: str) -> Row | Group | None:
        """The group, or the row of a root that is alone."""
        for row in self._namesakes(tenant, id):
            if row.group_id == id:
                return row if row.group is None else row.group
        # The root may be gone before the rest of its group.
        groups = self.groups.get(id, {})
        return next(iter(groups.values()), None) if tenant is None else groups.get(tenant)

    def _namesakes(self, tenant: str | None, id: str) -> Iterable[Row]:
        """All that an id can mean, in the order of their submission."""
        found = self.items.get(id)
        if tenant is None and isinstance(found, Namesakes):
            return found.values()
        row = self.find(tenant, id)
        return () if row is None else (row,)

    def rows(self, cursor: int | None, *, oldest_first: bool) -> Iterator[Row]:
        """All rows, from behind that number on, in the order of submission or against it."""
        log = self.log
        if oldest_first:
            begin = 0 if cursor is None else bisect_left(log, cursor + 1, key=_number)
            places = range(begin, len(log))
        else:
            end = len(log) if cursor is None else bisect_left(log, cursor, key=_number)
            places = range(end - 1, -1, -1)
        return (log[place] for place in places if not log[place].gone)

    def knows(self, type: str) -> bool:
        """Whether a live worker has this type."""
        return self.know_all > 0 or type in self.known

    # -- coming and going --------------------------------------------------------------------------------

    def kind(self, item: Item) -> Kind:
        key = (item.tenant, item.queue, item.lane, item.type)
        kind = self.kinds.get(key)
        return self._new_kind(key) if kind is None else kind

    def insert(self, row: Row) -> None:
        """Put a new row into the tables that every row is in."""
        item, kind = row.item, row.kind
        kind.counts[row.status] += 1
        self.log.append(row)
        namesake = self.items.setdefault(item.id, row)
        if namesake is not row:
            self._add_namesake(namesake, row)
        if item.key is not None:
            self.keys[kind.tenant, kind.type, item.key] = row
        if item.workflow is not None:
            self.workflows.setdefault((kind.tenant, item.workflow), {})[row] = None
        if item.parent is not None:
            self._adopt(row, item.parent)

    def delete(self, row: Row) -> None:
        """Take a row out of all tables. It holds no lease, and waits nowhere."""
        item, kind = row.item, row.kind
        row.gone = True
        kind.counts[row.status] -= 1
        if not any(kind.counts.values()):
            self._drop_kind(kind)
        self._drop_from_log()
        self._drop_id(row)
        if item.key is not None and self.keys.get(key := (kind.tenant, kind.type, item.key)) is row:
            del self.keys[key]
        if item.workflow is not None:
            discard(self.workflows, (kind.tenant, item.workflow), row)
        self.dead.pop(row, None)
        self._leave_family(row)
        if row.group is not None:
            self._leave_group(row, row.group)
        _cut(row)

    def dissolve(self) -> None:
        """Let go of all rows. The store is of no more use."""
        for row in self.log:
            _cut(row)

    def _new_kind(self, key: tuple[str, str, str, str]) -> Kind:
        tenant, queue, lane, type = key
        line = self.lines.get((queue, tenant, lane))
        if line is None:
            line = self.lines[queue, tenant, lane] = Line(self.ready, queue, tenant, lane)
        line.kinds += 1
        kind = self.kinds[key] = Kind(tenant, queue, lane, type, line)
        self.types.setdefault(type, {})[kind] = None
        return kind

    def _drop_kind(self, kind: Kind) -> None:
        del self.kinds[kind.tenant, kind.queue, kind.lane, kind.type]
        discard(self.types, kind.type, kind)
        kind.line.kinds -= 1
        if not kind.line.kinds:
            del self.lines[kind.queue, kind.tenant, kind.lane]

    def _add_namesake(self, namesake: Row | Namesakes, row: Row) -> None:
        if isinstance(namesake, Row):
            namesake = self.items[row.item.id] = Namesakes({namesake.kind.tenant: namesake})
        namesake[row.kind.tenant] = row

    def _drop_id(self, row: Row) -> None:
        namesakes = self.items[row.item.id]
        if isinstance(namesakes, Namesakes):
            del namesakes[row.kind.tenant]
        if not isinstance(namesakes, Namesakes) or not namesakes:
            del self.items[row.item.id]

    def _drop_from_log(self) -> None:
        self.gone += 1
        if self.gone * 2 > len(self.log) and (self.gone > SLACK or self.gone == len(self.log)):
            self.log = [row for row in self.log if not row.gone]
            self.gone = 0

    def _adopt(self, row: Row, parent: str) -> None:
        up = self.find(row.kind.tenant, parent)
        if up is not None and up is not row:
            row.up = up
            if up.kids is None:
                up.kids = {}
            up.kids[row] = None

    def _leave_family(self, row: Row) -> None:
        if row.up is not None and row.up.kids is not None:
            del row.up.kids[row]
        for kid in row.kids or ():
            kid.up = None
        row.up = row.kids = None

    def _leave_group(self, row: Row, group: Group) -> None:
        del group.members[row]
        group.dead.pop(row, None)
        group.cancelled.pop(row, None)
        if not group.members:
            if group.spot is not None:
                self.fading.groups.remove(group)
            self._drop_group(group)

    def _drop_group(self, group: Group) -> None:
        # Once its root is gone, another item may have come by that id, and have children of its own.
        groups = self.groups.get(group.id, {})
        if groups.get(group.tenant) is group:
            del groups[group.tenant]
            if not groups:
                del self.groups[group.id]


def _number(row: Row) -> int:
    return row.number


_NOWHERE = Kind("", "", "", "", Line(Lines(Turns(), set()), "", "", ""))


def _cut(row: Row) -> None:
    """Cut a row off from everything that leads back to it: see `Row`."""
    row.kind = _NOWHERE
    row.pile = row.spot = row.worker = row.gate = row.expiry = None
    row.group = row.up = row.kids = None


def discard(table: dict[K, dict[V, None]], key: K, member: V) -> bool:
    """Take a member out of the set under this key. Remove an empty set. True: it is empty."""
    members = table.get(key)
    if members is None:
        return False
    members.pop(member, None)
    if members:
        return False
    del table[key]
    return True
