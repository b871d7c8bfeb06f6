"""Placement: where new items belong. Roots form groups of their own, children join a group that exists, or
one that is nested in it and is stored with them."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct

from treadle.item import GROUP_MARK, EndedGroup, Item, Ref
from treadle.store.rules.settlement import shortest_keep

from .groups import insert_nested
from .statements import NULL, Tx
from .status_codes import SUCCESS


class Home(NamedTuple):
    """Where the children of a settlement belong."""

    tenant: str
    group: int
    group_id: str
    queued_by: int
    parent: str
    outermost: int
    """The outermost group around that group, or itself."""


PlacedItem: TypeAlias = "tuple[Item, Home | None]"
"""An item and where it belongs: None for the root of its own group."""


def tenant_of(item: Item, home: Home | None) -> str:
    return item.tenant if home is None else home.tenant


class _NestedGroup(Struct):
    no: int
    """The number of the item that closes it."""
    closer: Item
    home: Home
    """Where that item belongs: in the outer group."""
    members: int = 0
    keep: float = inf

    def row(self, now: float) -> tuple[Any, ...]:
        """As `insert_nested` takes it. A group without members has ended at once."""
        closer, home, members = self.closer, self.home, self.members
        keep, ended = (self.keep, NULL) if members else (closer.keep, now)
        known = self.no, closer.id, home.tenant, closer.type, members
        return *known, keep, ended, home.group, home.outermost


class NestedGroups:
    """The nested groups that are stored together with the items that close them."""

    def __init__(self, placed: Sequence[PlacedItem], first: int) -> None:
        """`first`: the number of the first of these items. The others follow."""
        self._groups: dict[Ref, _NestedGroup] = {}
        for no, (item, home) in enumerate(placed, start=first):
            if home is not None and item.closes_group:
                self._groups[home.tenant, item.id] = _NestedGroup(no, item, home)
        self.placed: list[PlacedItem] = [(item, home and self._join(item, home)) for item, home in placed]
        """The same items, in the groups that they join."""
        for group in self._groups.values():
            group.home = self.placed[group.no - first][1] or group.home

    def _join(self, item: Item, home: Home) -> Home:
        group = self._groups.get((home.tenant, item.group_id or ""))
        if group is None:
            return home
        group.members += 1
        group.keep = min(group.keep, shortest_keep(item.keep, item.keep_dead))
        return home._replace(group=group.no, group_id=group.closer.id)

    def store(self, tx: Tx) -> None:
        insert_nested(tx, [group.row(tx.now) for group in self._groups.values()])

    def ended(self) -> dict[int, EndedGroup]:
        """Those without members, by their negated numbers."""
        return {
            -group.no: EndedGroup(id, tenant, None, group.closer.type, 0)
            for (tenant, id), group in self._groups.items()
            if not group.members
        }

    def known(self) -> dict[Ref, tuple[int, int | None]]:
        """These groups by their names in `after`: their numbers, negated, and their outcomes."""
        return {
            (tenant, GROUP_MARK + id): (-group.no, None if group.members else SUCCESS)
            for (tenant, id), group in self._groups.items()
        }
