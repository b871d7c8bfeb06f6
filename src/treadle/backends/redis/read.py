"""Read: items, groups, what has ended, and counts.

Reads are split where one script would keep the server busy for too long. The parts are then of different
instants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from struct import Struct as Bytes
from typing import Any, Final, TypeVar

from treadle.item import Count, Ended, GroupState, ItemState, Ref, Status
from treadle.store.rules.settlement import LONE_VERSION

from .item_bytes import item_state, read_item
from .kinds import KindCounts
from .link import RedisLink, RedisVerbs
from .scripts import RedisScript

_GET: Final = RedisScript("get")
_GROUP: Final = RedisScript("group")
_ENDED: Final = RedisScript("ended")
UNFOLDED: Final = RedisScript("unfolded")

_MOST_ITEMS: Final = 300
"""Items that one script reads. `ctx.results` of 1,000 items is four calls, one after the other: sent at
once they would hold the server as one call of 1,000 does."""
_MOST_GROUPS: Final = 100
_MOST_ENDED: Final = 150

_GROUP_ROW: Final = Bytes(">IdBIIddI6s4s")
_CONTRIBUTED: Final = 1
_FINAL: Final = 2
_HAS_VALUE: Final = 4

NOT_COUNTED: Final[frozenset[Status]] = frozenset(("success", "cancelled"))

T = TypeVar("T")


class RedisRead(RedisVerbs):
    def __init__(self, link: RedisLink) -> None:
        super().__init__(link)
        self._kind_counts = KindCounts()

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        found: list[ItemState | None] = []
        for some in portions(ids, _MOST_ITEMS):
            rows = await self._link.run(_GET, [tenant or "", *some], on="read")
            found += [None if raw is None else full_state(raw) for raw in rows]
        return found

    async def group(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[GroupState | None]:
        found: list[GroupState | None] = []
        for some in portions(ids, _MOST_GROUPS):
            groups = await self._link.run(_GROUP, [tenant or "", *some], on="read")
            found += [None if raw is None else _group_state(raw) for raw in groups]
        return found

    async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
        ended_items: dict[Ref, ItemState] = {}
        ended_groups: dict[Ref, GroupState] = {}
        missing: set[Ref] = set()
        asked = [*((ref, False) for ref in items), *((ref, True) for ref in groups)]
        for some in portions(asked, _MOST_ENDED):
            of_items = [ref for ref, is_group in some if not is_group]
            of_groups = [ref for ref, is_group in some if is_group]
            names = [name for ref in (*of_items, *of_groups) for name in ref]
            rows, found = await self._link.run(_ENDED, [len(of_items), *names], on="read")
            for ref, raw in zip(of_items, rows, strict=True):
                if raw:
                    ended_items[ref] = item_state(read_item(raw))
            for ref, raw in zip(of_groups, found, strict=True):
                if raw:
                    ended_groups[ref] = _group_state(raw)
            answers = zip((*of_items, *of_groups), (*rows, *found), strict=True)
            missing.update(ref for ref, raw in answers if raw is None)
        return Ended(ended_items, ended_groups, frozenset(missing))

    async def counts(self, *, tenant: str | None = None, ended: bool = False) -> Sequence[Count]:
        await self._link.run(UNFOLDED, on="read")
        counted = await self._counted()
        found = counted.sums(tenant, without=() if ended else NOT_COUNTED)
        return [Count(*key, count) for key, count in found.items()]

    async def _counted(self) -> KindCounts:
        """The counts of now, as they were in one step. No stage may be unfolded meanwhile."""
        # In a script, all that is read is copied twice.
        keys = (self._link.key("counts"), self._link.key("kinds"))
        counts, kinds = await asyncio.gather(
            *(self._link.command(b"HGETALL", key, on="read") for key in keys)
        )
        return self._kind_counts.read(counts, kinds)


def portions(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(values), size):
        yield values[first : first + size]


def full_state(raw: Sequence[Any]) -> ItemState:
    """An item with its history, and the ids it waits for that do not exist."""
    state = item_state(read_item(raw[:6]), history=True)
    if len(raw) > 6:
        state.waiting_for = tuple(name.decode() for name in raw[6])
    return state


# ----------------------------------------------------------------------------------------------------- groups


def _group_state(raw: Sequence[Any]) -> GroupState:
    """A group as shown_groups.lua answers it."""
    if len(raw) == 1:
        return _lone_group(raw[0])
    row, deaths, cancelled, outer, total = raw
    open, version, flags, failed, _, ended_at, _, _, _, _ = _GROUP_ROW.unpack_from(row)
    id, at = _text(row, _GROUP_ROW.size)
    tenant, at = _text(row, at)
    type, at = _text(row, at)
    return GroupState(
        id=id,
        tenant=tenant,
        type=type,
        open=open,
        value=row[at:] if flags & _HAS_VALUE else None,
        contributed=bool(flags & _CONTRIBUTED),
        final=bool(flags & _FINAL),
        version=int(version),
        ended_at=ended_at or None,
        total=total,
        failed=failed,
        deaths=tuple(item_state(read_item(death)) for death in deaths),
        cancelled=item_state(read_item(cancelled[0])) if cancelled else None,
        outer=outer.decode() or None,
    )


def _lone_group(raw: Sequence[bytes]) -> GroupState:
    """A root that is alone: its row is all there is of its group."""
    found = read_item(raw)
    state = item_state(found)
    return GroupState(
        id=found.id,
        tenant=found.kind.tenant,
        type=found.kind.type,
        open=int(found.ended_at is None),
        value=found.result if found.contributed else None,
        contributed=found.contributed,
        version=LONE_VERSION if found.contributed else 0,
        ended_at=found.ended_at,
        failed=int(found.failed_group),
        deaths=(state,) if found.failed_group else (),
        cancelled=state if found.status == "cancelled" else None,
    )


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    return data[at + 1 : end].decode(), end
