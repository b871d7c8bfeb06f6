"""Place roots: over several stores by root, give new items the slot in which they have to be.

What decides where a root is, in this order:

1. `place=`.
2. The id that the user gave.
3. The lane, if the doer of its type keeps order or limits within a lane: see `_keeps_lane`.
4. Its key. A key is unique in its slot, which a hash of tenant, type and key says.
5. What it waits for.
6. Its workflow, so that what belongs together is in one place if nothing says otherwise.
7. The id that it has.

Two of the first five that disagree are a `PlacementError`. All roots of one submit are one step, so they are
in one place. What an item queues is in the slot of its group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import force_setattr, replace

from treadle.base.ids import in_slot, slot_of, slot_of_text
from treadle.define.work import Work
from treadle.doers.limited import has_strict_lanes
from treadle.doers.on_full import OnFullDoer
from treadle.engine.registry import Registry
from treadle.errors import PlacementError
from treadle.item import GROUP_MARK, Item, Lease

SAME: Final = "give all of them the same place="
OWN_ID: Final = "an own id has a place of its own, so leave the other out"


class Claimed(NamedTuple):
    """Something that says in which slot an item is."""

    slot: int
    what: str


class RootPlacing:
    """worker_doer: the doer of types that have none of their own."""

    def __init__(self, registry: Registry, worker_doer: object) -> None:
        self._registry = registry
        self._worker_doer = worker_doer

    def roots(
        self, works: Sequence[Work[Any, Any]], items: Sequence[Item], place: str | None, chosen: bool
    ) -> tuple[Item, ...]:
        """The items of one submit, in one slot. The works get the ids of their items, so that `after=` can
        name them. chosen: the user has given the id."""
        new = {item.id for item in items}
        if place is not None:
            slot, what = slot_of_text(items[0].tenant, place), f"place={place!r}"
        else:
            slot, what = next(self._claims(items, new, chosen), None) or _soft(items[0])
        for other in self._claims(items, new, chosen, only_bound=place is not None):
            if other.slot != slot:
                advice = OWN_ID if chosen and f"id={items[0].id!r}" in (what, other.what) else SAME
                raise PlacementError(
                    f"{what} and {other.what} are in different places: {advice}", parameters=("place",)
                )
        placed = in_slots(items, slot)
        for work, item in zip(works, placed, strict=True):
            if work.id != item.id:
                force_setattr(work, "id", item.id)
        return placed

    def _claims(
        self, items: Sequence[Item], new: set[str], chosen: bool, *, only_bound: bool = False
    ) -> Iterator[Claimed]:
        """only_bound: only what exists already. `place=` says where the rest is."""
        if chosen:
            yield Claimed(slot_of(items[0].id), f"id={items[0].id!r}")
        seen: set[str] = set()
        for item in items:
            if not only_bound:
                yield from self._of_names(item)
            for name in (item.parent, *item.after):
                if name is None or name in seen or (id := name.removeprefix(GROUP_MARK)) in new:
                    continue
                seen.add(name)
                yield Claimed(slot_of(id), f"after={id!r}" if name != item.parent else f"the item {id}")

    def _of_names(self, item: Item) -> Iterator[Claimed]:
        if self._keeps_lane(item.type):
            yield Claimed(slot_of_text(item.tenant, item.type, "", item.lane), f"lane={item.lane!r}")
        if item.key is not None:
            yield Claimed(_slot_of_key(item), f"key={item.key!r}")

    def _keeps_lane(self, type: str) -> bool:
        """Whether the items of a lane have to be in one store: the order of lanes is strict, or `on_full=`
        counts within a lane."""
        found = self._registry.get(type)
        doer = None if found is None else found.options.get("doer")
        doer = self._worker_doer if doer is None else doer
        return has_strict_lanes(doer) or (isinstance(doer, OnFullDoer) and doer.declared.per == "lane")


def _slot_of_key(item: Item) -> int:
    return slot_of_text(item.tenant, item.type, item.key or "")


def _soft(item: Item) -> Claimed:
    """Where an item is if nothing says where."""
    if item.workflow is not None:
        return Claimed(slot_of_text(item.tenant, item.workflow), f"workflow={item.workflow!r}")
    return Claimed(slot_of(item.id), f"the item {item.id}")


def in_slots(items: Sequence[Item], slot: int) -> tuple[Item, ...]:
    """The same items with ids in this slot, as far as treadle has made these ids."""
    if all(slot_of(item.id) == slot for item in items):
        return tuple(items)
    ids = {item.id: in_slot(item.id, slot) for item in items}
    return tuple(
        replace(
            item,
            id=ids[item.id],
            after=_renamed(item.after, ids),
            group_id=None if item.group_id is None else ids.get(item.group_id, item.group_id),
        )
        for item in items
    )


def _renamed(names: tuple[str, ...], ids: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        GROUP_MARK + ids.get(name[1:], name[1:]) if name.startswith(GROUP_MARK) else ids.get(name, name)
        for name in names
    )


def beside(items: Sequence[Item], lease: Lease) -> tuple[Item, ...]:
    """What the item of this lease queues, in the slot of its group."""
    return in_slots(items, slot_of(lease.group_id))


def check_beside(items: Sequence[Item], lease: Lease) -> None:
    """`PlacementError` if children cannot be where their group is."""
    slot = slot_of(lease.group_id)
    for item in items:
        if item.key is not None and _slot_of_key(item) != slot:
            raise PlacementError(
                f"the key {item.key!r} of {item.type!r} belongs to another place than the group of the item "
                f"that queues it: leave key= out there, or enqueue it by itself",
                parameters=("key",),
            )
        for name in (item.id, *item.after):
            if slot_of(name.removeprefix(GROUP_MARK)) != slot:
                raise PlacementError(
                    f"{name.removeprefix(GROUP_MARK)} is in another place than {lease.id}, which queues "
                    f"{item.type!r}: {SAME} when they are enqueued, and leave out "
                    "ids of your own in handlers",
                    parameters=("after",),
                )
