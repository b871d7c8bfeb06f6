"""Adopted leases: those of items that have moved to another store while they run.

A lease keeps its token, but for the number of its store, and its worker. The item has another number there,
which the store tells who asks for the worker's leases. Outside, a lease keeps the token that it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from treadle.errors import StoreUnavailable
from treadle.item import Lease

from .member import Member, inner, number_of
from .places import SENT_ON, TenantPlaces


class Adopted:
    """workers: those of this process."""

    def __init__(self, places: TenantPlaces, workers: Callable[[], Sequence[str]]) -> None:
        self._places = places
        self._workers = workers
        self._leases: dict[int, tuple[Member, int]] = {}
        """By token, as it is known outside: the store that has the item now, and its number there."""
        self._tokens: dict[tuple[int, int], int] = {}
        """By the number of that store and the inner token: the token as it is known outside."""

    def place_of(self, lease: Lease) -> Member:
        """The store to ask about a lease."""
        found = self._leases.get(lease.token)
        return self._places.of_token(lease.token) if found is None else found[0]

    def inner(self, lease: Lease) -> Lease:
        """A lease as that store knows it."""
        found = self._leases.get(lease.token)
        if found is None:
            return replace(lease, token=inner(lease.token)) if number_of(lease.token) else lease
        return replace(lease, token=inner(lease.token), ref=found[1])

    def outer(self, member: Member, token: int) -> int:
        """A token of a store as it is known outside."""
        return self._tokens.get((member.number, token), member.outer(token))

    def drop(self, token: int) -> None:
        """Its end is known."""
        found = self._leases.pop(token, None)
        if found is not None:
            self._tokens.pop((found[0].number, inner(token)), None)

    async def find(self, lease: Lease, member: Member) -> bool:
        """Look for a lease in the store where its tenant is now. False: it is not there."""
        if self._leases.get(lease.token, (None, 0))[0] is member:
            return True
        for worker in self._workers():
            known: Sequence[Lease] = await member.call("unknown_leases", worker, [])
            for each in known:
                if each.token == inner(lease.token) and (each.id, each.tenant) == (lease.id, lease.tenant):
                    self.drop(lease.token)
                    self._leases[lease.token] = (member, each.ref)
                    self._tokens[member.number, each.token] = lease.token
                    return True
        return False

    async def moved(self, lease: Lease, member: Member) -> Member | None:
        """The store that has a lease which this one did not know. It may be this one again. None: none
        has."""
        for _ in range(SENT_ON):
            found = await self._places.moved_from(lease.tenant, member) or member
            mark = await self._places.last_move(lease.tenant, found)
            if mark is None:
                return None
            if found is member:
                self.drop(lease.token)  # its item has another number now
            if await self.find(lease, found):
                return found
            if mark.state in ("owned", "frozen") and mark == await self._places.last_move(
                lease.tenant, found
            ):
                return None
            member = found  # it moves, or has moved on meanwhile
        raise StoreUnavailable(f"the tenant {lease.tenant!r} moves again and again")
