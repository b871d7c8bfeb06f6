"""Claims over several stores.

**Which stores a claim asks.** The hot ones (view.py), one after the other, each for all the room that is
left, until the room is full: under load that is one call per claim, as with one store. If none is hot, it
asks the next one: the safety net against lost wake-ups costs the same however many stores there are. A
thorough claim asks all.

**A store that is slow** is left behind: after ten times as long as the quickest one takes, at most
`PATIENCE`. What it hands out comes with the next claim, or is given back if its room is taken. It gets no
second claim meanwhile.

**A store that does not answer** is asked again after a pause. An answer of it may have been lost, so it is
asked for unknown leases first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from msgspec.structs import replace

from treadle.base.timing import Clock
from treadle.errors import BackendError, StoreUnavailable
from treadle.item import Claim, Demand, Lease, Loss, Settlement, Wake
from treadle.store.rules import MOST_DOOMED

from .member import Member, in_parts, inner, together
from .orders import ManyOrders
from .places import TenantPlaces
from .view import Room, Views, WorkerView, may_have_more

PATIENCE: Final = 0.25
"""Seconds that a claim or a heartbeat waits for one store while others may answer."""
LEAST_PATIENCE: Final = 0.02
LOOK: Final = 1.0
"""Seconds after which a claim for certain tenants asks again where they are."""
NEVER_VALID: Final = -1
"""A version of orders that no store gives: it hands out nothing."""
TIMES: Final = 10
"""How many times as long as the quickest store another one may take."""


def outer_lease(lease: Lease, member: Member) -> Lease:
    """A lease of a store as it is known outside."""
    return replace(lease, token=member.outer(lease.token)) if member.number else lease


class Background:
    """Calls that no caller waits for. A store that fails at one is found out by the next call."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, call: Coroutine[Any, Any, object]) -> None:
        task = asyncio.ensure_future(self._run(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, call: Coroutine[Any, Any, object]) -> None:
        with suppress(BackendError):
            await call

    def abandon(self) -> None:
        """The event loop of the calls is gone."""
        self._tasks.clear()

    async def close(self) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class ManyClaims:
    """wake: tells the workers of this process that there may be something to claim."""

    def __init__(
        self,
        places: TenantPlaces,
        views: Views,
        orders: ManyOrders,
        background: Background,
        clock: Clock,
        wake: Callable[[Wake], None],
        beat_again: Callable[[WorkerView, Member], None],
    ) -> None:
        self._places = places
        self._views = views
        self._orders = orders
        self._background = background
        self._monotonic = clock.monotonic
        self._wake = wake
        self._beat_again = beat_again
        self._looked: dict[str, float] = {}
        """When a tenant of a demand was last looked for, by the monotonic clock."""

    async def claim(self, demand: Demand) -> Claim:
        view, room = self._views.of(demand.worker), Room(demand)
        leases = self._deliver_late(view, room)
        positions = dict(cast("Mapping[int, object]", demand.fairness or {}))
        left, errors, alive, asked = dict[str, None](), list[StoreUnavailable](), True, 0
        if demand.thorough:
            view.due.clear()
        for member in await self._order(view, demand):
            if asked and demand.limit and room.limit <= 0:
                view.hot.add(member.number)
                continue
            try:
                answer = await self._ask(view, member, demand, room, positions.get(member.number))
            except StoreUnavailable as error:
                view.unsure.add(member.number)
                view.hot.add(member.number)
                errors.append(error)
                continue
            asked += 1
            if answer is None:
                continue
            if answer.orders is not None:
                return Claim(tuple(leases), demand.fairness, orders=answer.orders)
            if not answer.alive:
                alive = False
                view.hot.add(member.number)
                if leases:
                    self._beat_again(view, member)
                continue
            positions[member.number] = answer.fairness
            left.update(dict.fromkeys(answer.left))
            self._take(room, member, answer.leases, leases)
            if answer.leases and member.number in view.long:
                self._beat_again(view, member)
        if errors and not leases and (not asked or demand.thorough):
            raise errors[0]
        due = view.next_due(self._monotonic())
        return Claim(tuple(leases), positions, due, alive or bool(leases), tuple(left))

    async def _order(self, view: WorkerView, demand: Demand) -> list[Member]:
        """The stores to ask, in this order."""
        members = await self._serving(demand)
        if len(members) < len(self._places.members):  # where its tenants were, nothing is due for it any more
            serving = {member.number for member in members}
            view.due = {number: at for number, at in view.due.items() if number in serving}
        start = view.next % len(members) if members else 0
        view.next += 1
        members = members[start:] + members[:start]
        if demand.thorough:
            return members
        there = [one for one in members if not one.is_away and one.number not in view.asking]
        if not there and not view.asking and members:
            raise members[0].refusal()
        now = self._monotonic()
        view.hot.update(number for number, at in view.due.items() if at <= now)
        hot = [one for one in there if one.number in view.hot]
        return hot or there[:1]

    async def _serving(self, demand: Demand) -> list[Member]:
        """The stores that have the tenants of a demand."""
        if demand.tenants is None or len(self._places.members) == 1 or self._places.by_root:
            return list(self._places.members)
        numbers: set[int] = set()
        for tenant in demand.tenants:
            found = self._places.known(tenant)
            if found is None or self._monotonic() - self._looked.get(tenant, 0.0) > LOOK:
                self._looked[tenant] = self._monotonic()
                found = await self._places.checked(tenant)
            numbers |= set() if found is None else {found.number}
        serving = [member for member in self._places.members if member.number in numbers]
        return serving or [self._places.home]

    async def _ask(
        self, view: WorkerView, member: Member, demand: Demand, room: Room, fairness: object
    ) -> Claim | None:
        """The answer of a store. None: it has not answered yet."""
        if (waiting := view.asking.get(member.number)) is not None:
            await asyncio.wait({waiting})  # a thorough claim
        view.hot.discard(member.number)
        call = self._ask_store(view, member, demand, room, fairness)
        if demand.thorough or len(self._places.members) == 1:
            return await call
        task = asyncio.ensure_future(call)
        patience, asked = self._patience(), self._monotonic()
        try:
            done, _ = await asyncio.wait({task}, timeout=patience)
            if not done and self._monotonic() - asked > 2 * patience:  # this process was slow, not the store
                done, _ = await asyncio.wait({task}, timeout=patience)
        except asyncio.CancelledError:
            view.unsure.add(member.number)
            task.cancel()
            raise
        if done:
            return task.result()
        view.asking[member.number] = task
        task.add_done_callback(lambda done: self._came_late(view, member, done))
        return None

    async def _ask_store(
        self, view: WorkerView, member: Member, demand: Demand, room: Room, fairness: object
    ) -> Claim:
        await self._recover(view, member, demand.worker)
        for _ in range(3):
            version = await self._orders.version_at(view, member, demand.orders)
            newer = self._orders.known_newer(view, member, demand.orders)
            rest = room.rest(fairness, version if newer is None else NEVER_VALID)
            sent = self._monotonic()
            answer: Claim = await member.call("claim", rest)
            member.took(self._monotonic() - sent)
            if answer.orders is None:
                break
            if newer is None:
                newer = await self._orders.newer(view, member, demand.orders)
            if newer is not None:
                view.hot.add(member.number)
                return replace(answer, orders=newer)
        else:
            view.hot.add(member.number)
            return Claim(next_due=0.0)
        self._note(view, member, rest, answer)
        return answer

    def _note(self, view: WorkerView, member: Member, demand: Demand, answer: Claim) -> None:
        """Note whether it may have more, and when it has."""
        doomed = sum([lease.verdict is not None for lease in answer.leases])
        if answer.next_due == 0 or doomed >= MOST_DOOMED or may_have_more(demand, answer.leases):
            view.hot.add(member.number)
        view.due.pop(member.number, None)
        if answer.next_due is not None:
            view.due[member.number] = self._monotonic() + answer.next_due

    def _patience(self) -> float:
        """Seconds to wait for one store."""
        times = [member.latency for member in self._places.members if member.latency is not None]
        return min(PATIENCE, max(LEAST_PATIENCE, TIMES * min(times))) if times else PATIENCE

    # -- what comes late -------------------------------------------------------------------------------

    def _came_late(self, view: WorkerView, member: Member, task: asyncio.Task[Claim | None]) -> None:
        view.asking.pop(member.number, None)
        view.hot.add(member.number)
        if task.cancelled() or task.exception() is not None:
            view.unsure.add(member.number)
            return
        answer = task.result()
        if answer is None or answer.orders is not None:
            return
        if not answer.alive:
            self._beat_again(view, member)
        view.late += [(member, lease) for lease in answer.leases]
        if answer.leases and member.number in view.long:
            self._beat_again(view, member)
        self._wake(Wake(ready=True))

    def _deliver_late(self, view: WorkerView, room: Room) -> list[Lease]:
        late: dict[Member, list[Lease]] = {}
        for member, lease in self._each_once(view.late) if view.late else ():
            late.setdefault(member, []).append(lease)
        view.late = []
        leases: list[Lease] = []
        for member, found in late.items():
            self._take(room, member, found, leases)
        return leases

    def _each_once(self, late: Sequence[tuple[Member, Lease]]) -> Iterable[tuple[Member, Lease]]:
        """Leave out what came from another store before: its tenant has moved between the two answers."""
        known = {inner(token) for token in self._views.held}
        return {each[1].token: each for each in late if each[1].token not in known}.values()

    def _take(self, room: Room, member: Member, found: Sequence[Lease], leases: list[Lease]) -> None:
        """Hand leases out, and give those back that came late and whose room is taken."""
        back: list[Settlement] = []
        for lease in found:
            if room.takes(lease):
                leases.append(self.taken(lease, member))
            else:
                back.append(Settlement(lease=lease, kind="release"))
        if back:
            self._background.start(member.call("settle", back))

    # -- leases ----------------------------------------------------------------------------------------

    def taken(self, lease: Lease, member: Member) -> Lease:
        """A lease that a store has handed out, as it is known outside."""
        found = outer_lease(lease, member)
        self._views.leased(found.token, lease.tenant, member)
        return found

    async def begin(self, leases: Sequence[Lease]) -> Mapping[int, Loss]:
        """The engine asks for those of one store at a time."""
        adopted = self._views.adopted

        async def one(member: Member, some: list[Lease]) -> list[Loss | None]:
            lost: Mapping[int, Loss] = await member.call("begin", [adopted.inner(lease) for lease in some])
            answers: list[Loss | None] = [lost.get(inner(lease.token)) for lease in some]
            for n, lease in enumerate(some):
                if answers[n] == "not_found" and (new := await adopted.moved(lease, member)) is not None:
                    (answers[n],) = await one(new, [lease])
            return answers

        found = await in_parts(leases, adopted.place_of, one)
        return {lease.token: why for lease, why in zip(leases, found, strict=True) if why is not None}

    async def unknown_leases(self, worker: str, known: Sequence[int]) -> Sequence[Lease]:
        """Those of the stores that answer. The others are asked before their next claim."""
        view = self._views.of(worker)
        self._views.held.update(known)
        # Those of all stores: some may have moved from one to the other.
        tokens = [*map(inner, known), *(lease.token for _, lease in view.late)]

        async def one(member: Member) -> list[tuple[Member, Lease]]:
            if member.number in view.asking:
                view.unsure.add(member.number)
                return []
            try:
                found: Sequence[Lease] = await member.call("unknown_leases", worker, tokens)
            except StoreUnavailable:
                view.unsure.add(member.number)
                return []
            view.unsure.discard(member.number)
            return [(member, lease) for lease in found]

        parts = await together([one(member) for member in self._places.members])
        if len(view.unsure) == len(self._places.members):
            raise self._places.home.refusal()
        late = {lease.token for _, lease in view.late}  # they are delivered with the next claim
        found = {each[1].token: each for part in parts for each in part if each[1].token not in late}
        return [self.taken(lease, member) for member, lease in found.values()]

    async def _recover(self, view: WorkerView, member: Member, worker: str) -> None:
        """Ask a store that may have leased items to this worker for those of which it does not know."""
        if member.number not in view.unsure:
            return
        known = [inner(token) for token in self._views.held]
        late = [lease.token for _, lease in view.late]
        found: Sequence[Lease] = await member.call("unknown_leases", worker, known + late)
        view.unsure.discard(member.number)
        if found:
            view.late += [(member, lease) for lease in found]
            self._wake(Wake(ready=True))
