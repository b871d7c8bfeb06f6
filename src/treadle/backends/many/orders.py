"""Orders over several stores: home has them, with their audit entries, and the others have copies.

Each store obeys the pauses that it knows, and each gives its orders versions of its own. A claim is made from
a version of home. Before a store is asked, its copy is compared with home's, once for each version of the
two. So a store that was away when an order came takes it over before it hands out anything.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from treadle.errors import StoreUnavailable
from treadle.item import AuditNote, Order, Orders

from .member import Member, together
from .places import TenantPlaces
from .view import Views, WorkerView

SAME: Final = {"at": 0.0}
"""What does not matter when two orders are compared: each store has its own clock."""


class ManyOrders:
    def __init__(self, places: TenantPlaces, views: Views) -> None:
        self._places = places
        self._views = views

    async def order(self, order: Order, *, note: AuditNote | None = None) -> bool:
        changed: bool = await self._places.home.call("order", order, note=note)
        await self._everywhere("order", order)
        return changed

    async def withdraw(self, order: Order, *, note: AuditNote | None = None) -> bool:
        changed: bool = await self._places.home.call("withdraw", order, note=note)
        await self._everywhere("withdraw", order)
        return changed

    async def _everywhere(self, verb: str, order: Order) -> None:
        """In the other stores. One that does not answer takes it over before its next claim."""

        async def one(member: Member) -> None:
            try:
                await member.call(verb, order)
            except StoreUnavailable:
                return

        others = [member for member in self._places.members if member is not self._places.home]
        await together([one(member) for member in others])
        self._views.heat()

    async def orders(self) -> Orders:
        found: Orders = await self._places.home.call("orders")
        return found

    # -- for claims ------------------------------------------------------------------------------------

    async def version_at(self, view: WorkerView, member: Member, wanted: int | None) -> int | None:
        """The version that a store gives the orders of home's version `wanted`."""
        if wanted is None or member is self._places.home:
            return wanted
        known = view.orders.get(member.number)
        if known is None or known[0] != wanted:
            known = await self._take_over(view, member, wanted)
        return known[1]

    def known_newer(self, view: WorkerView, member: Member, wanted: int | None) -> int | None:
        """The version of home, if that of a claim is known to be old."""
        known = None if wanted is None else view.orders.get(member.number)
        return None if known is None or known[0] == wanted else known[0]

    async def newer(self, view: WorkerView, member: Member, wanted: int | None) -> int | None:
        """A store has answered a claim with another version. The version of home, if that has changed too.
        None: it has not, and the copy of the store is as it should be."""
        if member is self._places.home:
            orders = await self.orders()
            return orders.version
        view.orders.pop(member.number, None)
        if wanted is None:
            return None
        known = await self._take_over(view, member, wanted)
        return None if known[0] == wanted else known[0]

    async def _take_over(self, view: WorkerView, member: Member, wanted: int) -> tuple[int, int]:
        """Let a store have the orders of home. The versions of home and of its own. If home does not answer,
        the store keeps those that it has."""
        try:
            home = await self.orders()
        except StoreUnavailable:
            copy: Orders = await member.call("orders")
            return wanted, copy.version
        copy = await member.call("orders")
        truth = {order.subject: order for order in home.orders}
        for order in copy.orders:
            if order.subject not in truth:
                await member.call("withdraw", order)
        there = {order.subject: replace(order, **SAME) for order in copy.orders}
        for subject, order in truth.items():
            if there.get(subject) != replace(order, **SAME):
                await member.call("order", order)
        copy = await member.call("orders")
        known = view.orders[member.number] = home.version, copy.version
        return known
