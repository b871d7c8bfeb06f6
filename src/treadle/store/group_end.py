"""How a group ended, and the deaths that failed it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from treadle.backend import Backend
from treadle.item import GROUP_TYPE, GroupState, ItemState
from treadle.store.rules.settlement import SHOWN_DEATHS

GroupEnd: TypeAlias = Literal["succeeded", "failed", "cancelled"]

MOST_LEVELS: Final = 10
"""How many levels of nested groups are read to find the deaths inside: one read for each level."""


def group_ended(group: GroupState) -> GroupEnd:
    """How a group that has ended counts."""
    if group.final and group.contributed:
        return "succeeded"
    if group.failed:
        return "failed"
    return "cancelled" if group.cancelled is not None and not group.contributed else "succeeded"


async def deaths_of(backend: Backend, group: GroupState) -> tuple[list[ItemState], int]:
    """The first deaths, causes first, and how many there are. A nested group that failed is replaced by the
    deaths inside."""
    found, count, level = list(group.deaths), group.failed, 0
    seen = {group.id}
    while level < MOST_LEVELS and (closing := _unread(found, seen)):
        level += 1
        seen.update(closing)
        nested = {each.id: each for each in await _read(backend, closing, group.tenant)}
        count += sum(each.failed - 1 for each in nested.values())
        found = [
            death
            for each in found
            for death in (
                nested[each.id].deaths if each.id in nested and closed_failed_group(each) else (each,)
            )
        ]
    found.sort(key=lambda death: death.reason == "unsatisfiable")
    return found[:SHOWN_DEATHS], count


def closed_failed_group(death: ItemState) -> bool:
    """Whether an item died because the nested group that it closes has failed."""
    return death.type == GROUP_TYPE and death.reason == "unsatisfiable"


def _unread(deaths: Sequence[ItemState], seen: set[str]) -> list[str]:
    return [death.id for death in deaths if closed_failed_group(death) and death.id not in seen][
        :SHOWN_DEATHS
    ]


async def _read(backend: Backend, ids: list[str], tenant: str) -> list[GroupState]:
    """The nested groups that failed. One that failed for another reason than its members is left out."""
    groups = await backend.group(ids, tenant=tenant)
    return [group for group in groups if group is not None and group.deaths]
