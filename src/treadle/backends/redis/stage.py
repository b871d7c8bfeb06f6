"""Stages: many plain items, as the children of one item or as roots.

Up to `MOST_AT_ONCE` are stored in one call. More are written in portions that no other call can see, decided
in one call, and unfolded in portions. So the server is never busy with them for long. The formats are in
`lua/lib/stages.lua` and `lua/lib/bulk.lua`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence, Sized
from typing import Final

from msgspec import Struct, msgpack

from treadle.errors import StoreFull
from treadle.item import Item, Lease

from .item_bytes import Argument, ItemExtra, pack_plain, plain_class
from .link import RedisVerbs
from .scripts import RedisScript

MOST_AT_ONCE: Final = 1000
"""Plain items that are stored in one call."""
PORTION: Final = 250
"""Items in a portion of a stage."""
PORTION_BYTES: Final = 1_000_000
"""Bytes that a portion may have, unless it is one item."""
CLASSES: Final = 200
"""Classes of items that a portion may have."""
TRIES: Final = 3
"""How often items are staged anew if another call has used one of their ids meanwhile."""
ABANDONED: Final = 600.0
"""Seconds without a new portion after which a stage is forgotten."""

UNFOLD_STAGE: Final = RedisScript("unfold_stage")
_STAGE: Final = RedisScript("stage")
_DECIDE: Final = RedisScript("decide_stage")
_DROP: Final = RedisScript("drop_stage")

_encode: Final = msgpack.Encoder().encode


class PlainItems(Struct, frozen=True):
    """Items that are ready at once, with what scripts get of each: its class, and its id and its row."""

    classes: Sequence[tuple[bytes, bytes]]
    rows: Sequence[tuple[bytes, bytes]]
    keep: float
    """The shortest time for which one of them is kept."""

    def __len__(self) -> int:
        return len(self.rows)


class StageAnswer(Struct, frozen=True):
    """stage: its name. Empty: the items could not be staged. taken: the places of ids that exist."""

    stage: bytes = b""
    taken: Sequence[int] = ()


def plain_items(items: Sequence[Item], lease: Lease | None = None) -> PlainItems | None:
    """None if one of them is not plain, or an id comes twice. `lease`: of the item that is their parent."""
    if len({item.id for item in items}) < len(items):
        return None
    parent, group_id = (None, None) if lease is None else (lease.id, lease.group_id)
    if not all(_is_plain(item, parent, group_id) for item in items):
        return None
    extras: dict[ItemExtra, bytes] = {}
    classes: list[tuple[bytes, bytes]] = []
    for item in items:
        extra = b""
        if lease is not None:
            found = ItemExtra(
                w=item.workflow,
                wt=item.workflow_type,
                p=parent,
                n=item.need,
                d=item.counting == "done",
                g=group_id,
                x=not item.contributes,
            )
            extra = extras.get(found) or extras.setdefault(found, _encode(found))
        classes.append((plain_class(item), extra))
    keeps = (item.keep if item.keep_dead is None else min(item.keep, item.keep_dead) for item in items)
    return PlainItems(classes, [pack_plain(item) for item in items], min(keeps))


def count_plain(items: Sequence[Item], lease: Lease) -> int:
    """How many plain children there are before the others. 0: they cannot be stored apart from the others,
    because these make groups, or have other parents."""
    for place, item in enumerate(items):
        if not _is_plain(item, lease.id, lease.group_id):
            return place if all(_is_apart(other, lease) for other in items[place:]) else 0
    return len(items)


def _is_apart(item: Item, lease: Lease) -> bool:
    return not item.closes_group and item.parent == lease.id and item.group_id in (None, lease.group_id)


def _is_plain(item: Item, parent: str | None, group_id: str | None) -> bool:
    return not (
        item.key is not None
        or item.after
        or item.delay
        or item.run_at is not None
        or item.deadline is not None
        or item.expires_in is not None
        or item.lease_to is not None
        or item.must_exist
        or item.closes_group
        or item.parent not in (None, parent)
        or item.group_id not in (None, group_id)
    )


def portion_arguments(items: PlainItems, first: int = 0, end: int | None = None) -> list[Argument] | None:
    """Some of the items as `Bulk.read` in bulk.lua reads them. None: there are too many classes."""
    rows = items.rows[first:end]
    numbers: dict[tuple[bytes, bytes], int] = {}
    class_of = bytearray()
    for each in items.classes[first:end]:
        number = numbers.setdefault(each, len(numbers) + 1)
        if number > CLASSES:
            return None
        class_of.append(number)
    classes = (part for each in numbers for part in each)
    texts = (part for row in rows for part in row)
    return [len(numbers), *classes, bytes(class_of) if len(numbers) > 1 else b"", len(rows), *texts]


def _portions(items: PlainItems) -> Iterator[tuple[int, int]]:
    """Where each portion begins and ends."""
    first = size = 0
    for place, row in enumerate(items.rows):
        if place > first and (place - first >= PORTION or size + len(row[1]) > PORTION_BYTES):
            yield first, place
            first, size = place, 0
        size += len(row[1])
    yield first, len(items)


class RedisStages(RedisVerbs):
    @staticmethod
    def _is_large(items: Sized) -> bool:
        """Whether there are enough items to store them in a stage."""
        return len(items) > MOST_AT_ONCE

    async def _stage(self, items: PlainItems) -> StageAnswer:
        """Write the items in portions that no other call can see."""
        stage = os.urandom(8)
        try:
            return await self._write_portions(stage, items)
        except StoreFull:
            await self._drop_stage(stage)
            raise

    async def _write_portions(self, stage: bytes, items: PlainItems) -> StageAnswer:
        taken: list[int] = []
        written = 0
        for first, end in _portions(items):
            portion = portion_arguments(items, first, end)
            answer = None if portion is None else await self._link.run(_STAGE, [stage, written, *portion])
            if answer is None:
                await self._drop_stage(stage)
                return StageAnswer()
            taken += (first + place - 1 for place in answer)
            written += not answer
        if taken:
            await self._drop_stage(stage)
            return StageAnswer(taken=taken)
        return StageAnswer(stage)

    async def _decide_stage(self, stage: bytes, count: int) -> bytes | None:
        """The instant from which on the items exist. None: another call has used one of their ids."""
        now: bytes | None = await self._link.run(_DECIDE, [stage, count])
        await (self._unfold_stage() if now is not None else self._drop_stage(stage))
        return now

    async def _unfold_stage(self) -> None:
        while await self._link.run(UNFOLD_STAGE):
            pass

    async def _drop_stage(self, stage: bytes) -> None:
        while await self._link.run(_DROP, [stage]):
            pass

    async def _drop_abandoned_stages(self) -> None:
        while await self._link.run(_DROP, [b"", ABANDONED]):
            pass
