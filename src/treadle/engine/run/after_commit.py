"""Settlements that were applied by a call whose answer was lost: what they set in motion is asked for.

Repeated, such a settlement is answered `applied`, `again`: it happened, but what it ended besides its item is
not said a second time. A group has been ended by the settlement of one of its members if both ended in the
same instant: settling writes one instant for all that it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from treadle.engine.core import Core
from treadle.item import Effects, Ended, EndedGroup, Ref
from treadle.retry import retry_call

from .decide import Die, Succeed
from .settle import BACKOFF, PendingSettlement


class LostAnswers:
    def __init__(self, core: Core, conclude: Callable[[Sequence[PendingSettlement], Effects], None]) -> None:
        self._core = core
        self._conclude = conclude

    def ask(self, entries: Sequence[PendingSettlement]) -> None:
        """Find out what else these ended, and follow it up. Until then whoever waits here polls."""
        self._core.tasks.start(self._follow(entries), "settle")

    async def _follow(self, entries: Sequence[PendingSettlement]) -> None:
        items = [_item(entry) for entry in entries]
        groups = list(dict.fromkeys(_group(entry) for entry in entries))
        ended = await self._look(items, groups)
        doubtful = [_truth(entry, ended) for entry in entries if entry.otherwise is not None]
        self._conclude(doubtful, Effects(closed=_closed(entries, ended)))

    async def _look(self, items: list[Ref], groups: list[Ref]) -> Ended:
        settings = self._core.settings
        return await retry_call(
            lambda: self._core.backend.ended(items, groups),
            BACKOFF,
            on=lambda error: self._core.hooks.report(error, "settle", "could not ask what was settled"),
            clock=settings.clock,
            random=settings.random.random,
        )


def _truth(entry: PendingSettlement, ended: Ended) -> PendingSettlement:
    """Of the two that may have been applied, the one that was."""
    state = ended.items.get(_item(entry))
    assert entry.otherwise is not None
    return entry.otherwise if state is not None and state.status == "success" else entry


def _closed(entries: Sequence[PendingSettlement], ended: Ended) -> tuple[EndedGroup, ...]:
    """The groups that ended together with one of these. What was to be run again has ended nothing, even
    if it has ended since: whoever ended it says so."""
    together: set[Ref] = set()
    for entry in entries:
        if not isinstance(entry.decision, Succeed | Die):
            continue
        item, group = ended.items.get(_item(entry)), ended.groups.get(_group(entry))
        if item is not None and group is not None and item.ended_at == group.ended_at:
            together.add(_group(entry))
    return tuple(
        EndedGroup(
            group.id, group.tenant, group.value if isinstance(group.value, bytes) else None, group.type
        )
        for ref, group in ended.groups.items()
        if ref in together
    )


def _item(entry: PendingSettlement) -> Ref:
    return (entry.lease.tenant, entry.lease.id)


def _group(entry: PendingSettlement) -> Ref:
    return (entry.lease.tenant, entry.lease.group_id)
