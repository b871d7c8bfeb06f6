"""Member counts: how many members a group has, and how many of them have ended."""

from __future__ import annotations

from typing import Final, NamedTuple

from treadle.backend import Backend
from treadle.item import TERMINAL, Filter, GroupState, ItemState

MOST_COUNTED: Final = 1000
"""Members of a group that are counted."""
MOST_KEPT: Final = 1000
"""Groups whose counts are kept."""


class Progress(NamedTuple):
    """None: not counted."""

    done: int | None
    total: int | None


class MemberCounts:
    """Counts the members of groups, and again only when the group has changed: streams look once a second."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._kept: dict[tuple[str, str], tuple[object, Progress]] = {}

    async def count(self, item: ItemState, group: GroupState | None) -> Progress:
        """The members of the group whose root an item is. Without a group, the item counts alone."""
        if group is None:
            return Progress(int(item.status in TERMINAL), 1)
        if item.status not in TERMINAL and group.open == 1:
            return Progress(0, 1)  # it has queued nothing yet
        ref, change = (group.tenant, group.id), (group.open, group.failed, group.version, item.status)
        kept = self._kept.pop(ref, None)
        if kept is None or kept[0] != change:
            kept = change, await self._read(group)
        self._kept[ref] = kept
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return kept[1]

    async def _read(self, group: GroupState) -> Progress:
        if "listing" not in self._backend.capabilities:
            return Progress(None, None)
        members = Filter(tenant=group.tenant, group_id=group.id)
        page = await self._backend.list(members, limit=MOST_COUNTED)
        if page.cursor is not None:
            return Progress(None, None)
        return Progress(sum(each.status in TERMINAL for each in page.items), len(page.items))
