"""View: what is known of the stores for one worker, and how much room a claim has left.

A store is *hot* if it may have something to claim: a wake-up named it, something was written there, its last
answer was full, or an item there is due.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from treadle.item import Claim, Demand, Heartbeat, HeartbeatReply, Lease, SharedRoom

from .adopted import Adopted
from .member import Member
from .places import MOST_KNOWN, TenantPlaces


class Room:
    """What of a demand is left while leases come in."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self.limit = demand.limit
        self._types = None if demand.types is None else dict(demand.types)
        self._shared = {shared.types: shared.room for shared in demand.shared}

    def takes(self, lease: Lease) -> bool:
        """Take the room of a lease. False: there is none."""
        if lease.verdict is not None:
            return True
        shared = next((types for types in self._shared if lease.type in types), None)
        if self.limit <= 0 or (self._types is not None and self._types.get(lease.type, 0) <= 0):
            return False
        if shared is not None and self._shared[shared] <= 0:
            return False
        self.limit -= 1
        if self._types is not None:
            self._types[lease.type] -= 1
        if shared is not None:
            self._shared[shared] -= 1
        return True

    def rest(self, fairness: object, orders: int | None) -> Demand:
        """What to ask the next store for."""
        types = self._types
        full = {type for names, room in self._shared.items() if room <= 0 for type in names}
        if types is not None:
            types = {type: 0 if type in full else room for type, room in types.items()}
        return replace(
            self._demand,
            limit=self.limit,
            types=types,
            shared=tuple(SharedRoom(names, room) for names, room in self._shared.items() if room > 0),
            fairness=fairness,
            orders=orders,
        )


def may_have_more(demand: Demand, leases: Sequence[Lease]) -> bool:
    """Whether a store may have items that it did not hand out: there was no room, or a limit is reached."""
    used = Counter([lease.type for lease in leases if lease.verdict is None])
    if used.total() >= demand.limit or demand.avoid:
        return True
    return (
        demand.types is not None and any(used[type] >= room for type, room in demand.types.items())
    ) or any(sum(used[type] for type in shared.types) >= shared.room for shared in demand.shared)


class WorkerView:
    """What is known of the stores for one worker. By the numbers of the stores."""

    def __init__(self, stores: int, first: int) -> None:
        self.hot = set(range(stores))
        self.next = first
        """Where the next claim begins."""
        self.due: dict[int, float] = {}
        """When an item is due there, by the monotonic clock."""
        self.asking: dict[int, asyncio.Task[Claim | None]] = {}
        """Claims that were left behind: their stores are slow."""
        self.late: list[tuple[Member, Lease]] = []
        """What they brought."""
        self.unsure: set[int] = set()
        """Stores that may have leased items to this worker of which it does not know."""
        self.orders: dict[int, tuple[int, int]] = {}
        """The version of home's orders that a store has, and the version that the store gave them."""
        # -- heartbeats
        self.beating: dict[int, asyncio.Task[HeartbeatReply]] = {}
        self.replies: dict[int, HeartbeatReply] = {}
        """Replies that no one has read yet."""
        self.last_beat: Heartbeat | None = None
        """The last one that registers, without `held`, with all that was said."""
        self.answered: dict[int, float] = {}
        """When the last heartbeat that was answered was sent."""
        self.long: set[int] = set()
        """Stores in which the worker has a long lease, since it holds nothing there."""
        self.permits: dict[int, int] = {}
        """How many permits each store has counted."""

    def next_due(self, now: float) -> float | None:
        """Seconds until an item is due somewhere."""
        return min((max(0.0, at - now) for at in self.due.values()), default=None)


class Views:
    """Those of all workers of this process."""

    def __init__(self, places: TenantPlaces) -> None:
        self._places = places
        self._views: dict[str, WorkerView] = {}
        self._first = 0
        """Where the first claim of the next worker begins: a manual lease has a worker of its own."""
        self._leased: dict[str, Member] = {}
        self.written: set[int] = set()
        """Stores in which this process wrote something since it has sent a wake-up."""
        self.held: set[int] = set()
        """The tokens of the leases that were handed out here, and whose ends are not known here."""
        self.adopted = Adopted(places, lambda: [*self._views])

    def of(self, worker: str) -> WorkerView:
        view = self._views.get(worker)
        if view is None:
            view = self._views[worker] = WorkerView(len(self._places.members), self._first)
            self._first += 1
        return view

    def leased(self, token: int, tenant: str, member: Member) -> None:
        """A store has handed out an item of a tenant."""
        self.held.add(token)
        if len(self._leased) >= MOST_KNOWN:
            self._leased.clear()
        self._leased[tenant] = member
        if not self._places.by_root and self._places.known(tenant) not in (None, member):
            self._places.learn(tenant, member)

    def probably(self, tenant: str) -> Member:
        """Where a tenant is: known, or by a lease of it. Home, if neither is."""
        found = self._places.known(tenant)
        return self._leased.get(tenant, self._places.home) if found is None else found

    def heat(self, members: Sequence[int] | None = None, *, here: bool = True) -> None:
        """These stores may have something to claim. None: all may. here: since this process wrote there."""
        named = range(len(self._places.members)) if members is None else members
        if here:
            self.written.update(named)
        for view in self._views.values():
            view.hot.update(named)

    def forget(self, worker: str) -> WorkerView | None:
        return self._views.pop(worker, None)

    def clear(self) -> Mapping[str, WorkerView]:
        """Forget all. Returns them."""
        views, self._views = self._views, {}
        self.held.clear()
        return views
