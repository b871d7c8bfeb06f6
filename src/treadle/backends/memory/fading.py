"""Fading: what has ended, by the time it may be pruned."""

from __future__ import annotations

from .pile import SLACK, Pile, Spot
from .rows import Group, Row


class Bundle:
    """Rows that ended together and are kept equally long: one place for all of them."""

    __slots__ = ("_home", "_rows", "keep", "size", "spot")

    def __init__(self, home: Pile[Bundle], keep: float) -> None:
        self._home = home
        self._rows: list[Row] = []
        self.keep = keep
        self.size = 0
        self.spot: Spot | None = None

    def add(self, row: Row) -> None:
        row.pile = self
        self._rows.append(row)
        self.size += 1

    def remove(self, thing: Row) -> None:
        self.size -= 1
        if not self.size:
            self._home.remove(self)
        elif len(self._rows) > 2 * self.size + SLACK:
            self._rows = [row for row in self._rows if row is not thing and row.pile is self]

    def pop(self) -> Row:
        while True:
            row = self._rows.pop()
            if row.pile is self:
                self.remove(row)
                return row


class Fading:
    """Ended rows in ended groups."""

    __slots__ = ("_ties", "bundles", "groups", "rows")

    def __init__(self) -> None:
        self._ties = 0
        self.rows: Pile[Row] = Pile()
        self.bundles: Pile[Bundle] = Pile()
        self.groups: Pile[Group] = Pile()
        """Groups whose members are not among the rows yet, by the time the first may be pruned."""

    def add(self, row: Row, at: float) -> None:
        row.pile = self.rows
        self.rows.push(at, row.number, row)

    def add_group(self, group: Group, at: float) -> None:
        self._ties += 1
        self.groups.push(at, self._ties, group)

    def new_bundle(self, ended_at: float, keep: float) -> Bundle:
        """For rows that are about to be added to it."""
        self._ties += 1
        bundle = Bundle(self.bundles, keep)
        self.bundles.push(ended_at + keep, self._ties, bundle)
        return bundle

    def pop_until(self, now: float) -> Row | None:
        """Take a row out whose time has come."""
        self._unfold_groups(now)
        row = self.rows.pop_until(now)
        first = self.bundles.first() if row is None else None
        if first is not None and first[0] <= now:
            bundle: Bundle = first[2]
            row = bundle.pop()
        if row is not None:
            row.pile = None
        return row

    def add_member(self, row: Row, group_ended_at: float) -> None:
        """A row whose group has ended."""
        keep = row.keep
        if keep is not None:
            self.add(row, group_ended_at + keep)

    def _unfold_groups(self, now: float) -> None:
        """Put the members of groups among the rows, each with its own time."""
        while (group := self.groups.pop_until(now)) is not None:
            assert group.ended_at is not None
            for row in group.members:
                if row.pile is not None:
                    row.pile.remove(row)
                    row.pile = None
                self.add_member(row, group.ended_at)
