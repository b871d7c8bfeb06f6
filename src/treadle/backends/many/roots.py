"""Roots: by root, the slot of an id says which store has it (treadle.base.ids).

A root and all that follows from it have one slot: its group, children, joins, compensation. Slots are divided
evenly among the stores, in the order of their numbers. So the number of stores is kept at home, and stays.

| thing | is in the slot of |
| --- | --- |
| an item, a group | its id, or that of its root: the engine gives ids that agree |
| a claimed key | its tenant and name |
| a schedule, and what it submits | its name |

A step is within one slot, not only within one store: else it would depend on chance what is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from treadle.base.ids import SLOTS, slot_of, slot_of_text
from treadle.errors import InputError, PlacementError, WrongStore
from treadle.item import GROUP_MARK, Fire, Item, Lease

from .member import Member
from .places import FOR_EVER, OWN, TENANT, TenantPlaces

PLACE: Final = "give all of them the same place="


class RootPlaces(TenantPlaces):
    """slot: of an id. Another one for tests of stores alone, whose ids are names."""

    by_root = True

    def __init__(self, members: Mapping[str, Member], slot: Callable[[str], int] = slot_of) -> None:
        super().__init__(members)
        if len(members) > SLOTS:
            raise InputError.of("backend", len(members), f"stores are too many: at most {SLOTS}")
        self.slot = slot

    def of_id(self, id: str) -> Member:
        return self._having_slot(self.slot(id))

    def known(self, tenant: str, id: str | None = None) -> Member | None:
        return self.home if id is None else self.of_id(id)

    async def find(self, tenant: str | None, id: str | None = None) -> Member | None:
        return self.known(tenant or "", id)

    async def of(self, tenant: str) -> Member:
        return self.home

    async def having(self, tenant: str | None) -> Sequence[Member]:
        """All: each may have items of a tenant."""
        return self.members

    async def of_key(self, tenant: str, key: str) -> Member:
        return self.home if tenant.startswith(OWN) else self._having_slot(slot_of_text(tenant, key))

    async def having_key(self, tenant: str, key: str) -> Sequence[Member]:
        return [await self.of_key(tenant, key)]

    async def place(self, tenant: str, name: str) -> Member:
        raise InputError(
            "by root a tenant is in all stores: give place= to what has to be together",
            parameters=("tenant",),
        )

    def of_schedule(self, name: str) -> Member:
        return self._having_slot(slot_of_text(name))

    def _having_slot(self, slot: int) -> Member:
        members = self.members
        return members[slot * len(members) // SLOTS]

    # -- what is one step ------------------------------------------------------------------------------

    def of_items(self, items: Sequence[Item]) -> Member:
        """The store of items that are submitted in one step."""
        return self._having_slot(self._common(items, self.slot(items[0].id), f"the item {items[0].id}"))

    def check_children(self, lease: Lease, children: Sequence[Item]) -> None:
        """What an item queues is where it is."""
        self._common(children, self.slot(lease.group_id), f"the group {lease.group_id}")

    def of_fire(self, fire: Fire) -> Member:
        return self._having_slot(
            self._common(fire.items, slot_of_text(fire.name), f"the schedule {fire.name!r}")
        )

    def _common(self, items: Iterable[Item], slot: int, what: str) -> int:
        """`PlacementError` if not all items, and all that they wait for, are in this slot."""
        for item in items:
            for name in (item.id, *item.after):
                if self.slot(name.removeprefix(GROUP_MARK)) != slot:
                    whose = "" if name == item.id else f", for which {item.id} waits,"
                    raise PlacementError(
                        f"one step is in one place, and {name}{whose} is in another one than {what}: {PLACE}",
                        parameters=("place",),
                    )
        return slot

    # -- which store is behind an address --------------------------------------------------------------

    async def _check(self, member: Member) -> None:
        if member is self.home and await self._record(member) is None:
            await member.backend.claim_key("by", self._by, FOR_EVER, tenant=TENANT)
        await super()._check(member)

    @property
    def _by(self) -> str:
        return f"root {len(self.by_name)}"

    def _compare_by(self, found: str | None) -> None:
        if found is None:
            raise WrongStore("these stores are by tenant: leave by='root' out, or begin with empty ones")
        if found != self._by:
            raise WrongStore(
                f"these are {found.removeprefix('root ')} stores by root, and the app names "
                f"{len(self.by_name)}: their number stays. Name all of them, and no others"
            )

    async def _tenants(self, member: Member) -> list[str]:
        """None. A store with items cannot join: their ids say other places."""
        if await super()._tenants(member):
            raise PlacementError(
                f"the store {member.name!r} has items, whose ids say other places: by root begin with "
                "empty stores"
            )
        return []
