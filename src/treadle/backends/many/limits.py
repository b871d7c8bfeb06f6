"""Limits and keys over several stores: permits at home, permits of leases in the stores of the leases, keys
with their tenants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from treadle.doers.limit_rules import is_limit_of_all, is_limit_of_lanes
from treadle.errors import PlacementError, TenantElsewhere
from treadle.item import PermitReply, PermitRequest

from .member import Member, in_parts, together
from .places import SENT_ON, TenantPlaces
from .view import Views

UNCOUNTED: Final = -1
"""A number that no store counts: it says what it counts, and changes nothing."""


class ManyLimits:
    def __init__(self, places: TenantPlaces, views: Views) -> None:
        self._places = places
        self._views = views

    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        return await self._claim_key(key, owner, ttl, tenant, SENT_ON)

    async def _claim_key(self, key: str, owner: str, ttl: float, tenant: str, hops: int) -> bool:
        member = await self._places.of_key(tenant, key)
        try:
            claimed: bool = await member.call("claim_key", key, owner, ttl, tenant=tenant)
        except TenantElsewhere:
            if not hops:
                raise
            await self._places.moved_from(tenant, member)  # None: it has come back
            return await self._claim_key(key, owner, ttl, tenant, hops - 1)
        return claimed

    async def key_owner(self, key: str, *, tenant: str) -> str | None:
        for member in await self._places.having_key(tenant, key):
            owner: str | None = await member.call("key_owner", key, tenant=tenant)
            return owner
        return None

    async def take_permits(
        self, requests: Sequence[PermitRequest], *, worker: str = ""
    ) -> Sequence[PermitReply]:
        if len(self._places.members) > 1:
            for request in requests:
                _check_scope(request, by_root=self._places.by_root)

        async def one(member: Member, some: list[PermitRequest]) -> Sequence[PermitReply]:
            sent = [self._inner(each) for each in some]
            replies: Sequence[PermitReply] = await member.call("take_permits", sent, worker=worker)
            return replies

        return await in_parts(requests, self._of, one)

    async def return_permits(self, requests: Sequence[PermitRequest], *, worker: str) -> None:
        async def one(member: Member, some: list[PermitRequest]) -> Sequence[None]:
            await member.call("return_permits", [self._inner(each) for each in some], worker=worker)
            return [None] * len(some)

        await in_parts(requests, self._of, one)

    async def keep_permits(self, held: Sequence[PermitRequest], counted: int, *, worker: str) -> int:
        """Ask all stores what they have counted, then tell each what to keep of its own."""
        parts: dict[int, list[PermitRequest]] = {member.number: [] for member in self._places.members}
        for request in held:
            parts[self._of(request).number].append(self._inner(request))

        async def ask(member: Member) -> int:
            found: int = await member.call("keep_permits", (), UNCOUNTED, worker=worker)
            return found

        async def keep(member: Member, known: int) -> None:
            part = parts[member.number]
            await member.call("keep_permits", part, known, worker=worker)
            self._views.of(worker).permits[member.number] = sum([each.count for each in part])

        members = self._places.members
        found = await together([ask(member) for member in members])
        if sum(found) == counted:
            await together([keep(member, known) for member, known in zip(members, found, strict=True)])
        return sum(found)

    def _inner(self, request: PermitRequest) -> PermitRequest:
        lease = request.lease
        return request if lease is None else replace(request, lease=self._views.adopted.inner(lease))

    def _of(self, request: PermitRequest) -> Member:
        return self._places.home if request.lease is None else self._views.adopted.place_of(request.lease)


def _check_scope(request: PermitRequest, *, by_root: bool) -> None:
    """A permit of a lease is where the lease is, so all of its limit has to be there."""
    for limit in request.limits if request.lease is not None else ():
        if is_limit_of_lanes(limit.name) if by_root else is_limit_of_all(limit.name):
            raise PlacementError(
                f"the limit {limit.name!r} has on_full=, and its permits would be in several stores: give it "
                + ("per='lane'" if by_root else "per='tenant' or per='lane'"),
                parameters=("on_full",),
            )
