"""Retention: ended items by the time they may be pruned."""

from __future__ import annotations

from itertools import count

from .priority_queue import SLACK, Position, PriorityQueue
from .rows import MemoryGroup, Row


class RetentionBundle:
    """Rows that ended in one call and are kept equally long. They share one position."""

    __slots__ = ("_owner", "_rows", "keep", "position", "size")

    def __init__(self, owner: PriorityQueue[RetentionBundle], keep: float) -> None:
        self._owner = owner
        self._rows: list[Row] = []
        self.keep = keep
        self.size = 0
        self.position: Position | None = None

    def add(self, row: Row) -> None:
        row.container = self
        self._rows.append(row)
        self.size += 1

    def remove(self, member: Row) -> None:
        self.size -= 1
        if not self.size:
            self._owner.remove(self)
        elif len(self._rows) > 2 * self.size + SLACK:
            self._rows = [row for row in self._rows if row is not member and row.container is self]

    def pop(self) -> Row:
        while True:
            row = self._rows.pop()
            if row.container is self:
                self.remove(row)
                return row


class Retention:
    """Ended rows in ended groups."""

    def __init__(self) -> None:
        self._ties = count(1)
        self.rows: PriorityQueue[Row] = PriorityQueue()
        self.bundles: PriorityQueue[RetentionBundle] = PriorityQueue()
        self.groups: PriorityQueue[MemoryGroup] = PriorityQueue()
        """Groups whose members are not among the rows yet, by the time the first may be pruned."""

    def add(self, row: Row, at: float) -> None:
        row.container = self.rows
        self.rows.push(at, row.number, row)

    def add_member(self, row: Row, group_ended_at: float) -> None:
        """Add a row whose group has ended."""
        keep = row.keep
        if keep is not None:
            self.add(row, group_ended_at + keep)

    def add_group(self, group: MemoryGroup) -> None:
        """Add a group that has just ended, and the groups in it, unless a group around it is open."""
        if group.kept_since is None:
            return
        stack = [group]
        while stack:
            group = stack.pop()
            since = group.kept_since
            if since is None:
                continue
            stack += group.nested
            if group.keep is not None and group.members:
                if group.position is not None:
                    self.groups.remove(group)
                self.groups.push(since + group.keep, next(self._ties), group)

    def new_bundle(self, ended_at: float, row: Row) -> RetentionBundle:
        """A bundle with this row. The caller may add others."""
        bundle = RetentionBundle(self.bundles, row.item.keep)
        bundle.add(row)
        self.bundles.push(ended_at + bundle.keep, next(self._ties), bundle)
        return bundle

    def pop_until(self, now: float) -> Row | None:
        """Remove a row that may be pruned."""
        self._unfold_groups(now)
        row = self.rows.pop_until(now)
        first = self.bundles.first() if row is None else None
        if first is not None and first[0] <= now:
            bundle: RetentionBundle = first[2]
            row = bundle.pop()
        if row is not None:
            row.container = None
        return row

    def _unfold_groups(self, now: float) -> None:
        """Put the members of groups among the rows, each with its own time."""
        while (group := self.groups.pop_until(now)) is not None:
            since = group.kept_since
            if since is None:
                continue  # a group around it has opened again, and adds it when it ends
            for row in group.members:
                if row.container is not None:
                    row.container.remove(row)
                    row.container = None
                self.add_member(row, since)
