"""Two stores below one app: each has a checker, and a reference of its own.

What the reference of a store says about a tenant goes to that of the other store when the tenant does: out of
the one with the decision, into the other when that store owns it. So the checks of each store hold across a
move, and these are added:

| M1 | each tenant is in one store, or between them after a decision; only there something of it is stored |
| M2 | all of it arrives as it was: items, leases, groups, keys, steps, what waits |
| M3 | no two stores own a tenant, and each number of a mark belongs to one move |
| M4 | each occurrence of a schedule fires once, in whichever store |
| M5 | at the end nothing of a move is left, and each tenant can be moved once more |
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from tests.simulation.checker import Checker
from tests.simulation.loop import PROCESS, Process
from tests.simulation.plan import LEASE
from tests.simulation.reference import ReferenceGroup, ReferenceItem, Violation, must
from tests.simulation.reference_repair import ReferenceRepair
from tests.simulation.reference_steps import ReferenceMail
from tests.simulation.store import CheckedStore
from treadle.backend import Giving, TenantMoves, Transaction
from treadle.base.timing import Clock
from treadle.errors import StoreUnavailable
from treadle.item import Heartbeat, HeartbeatReply, Item, Ref, Rejected, Signal
from treadle.records import TenantMark
from treadle.store.rules.tenant_moves import MARKS, PREFIX, decode_mark


class Departed:
    """What the reference of a store has said about a tenant that has left it.

    token, workers: of the store, and when it was read."""

    def __init__(self, token: int, workers: dict[str, float]) -> None:
        self.token = token
        self.workers = workers
        self.now = 0.0
        """When it left, by the clock of that store."""
        self.items: dict[Ref, ReferenceItem] = {}
        self.groups: dict[Ref, ReferenceGroup] = {}
        self.waiters: dict[Ref, dict[ReferenceItem, None]] = {}
        self.keys: dict[tuple[str, str, str], ReferenceItem] = {}
        self.lanes: dict[tuple[str, str, str], tuple[ReferenceItem, int]] = {}
        self.owners: dict[tuple[str, str], tuple[str, float]] = {}
        """Of claimed keys, and until when."""


class PartReference(ReferenceRepair):
    """The reference of one store, from which tenants go, and to which they come."""

    def share(self, whole: ReferenceRepair) -> None:
        """What is known of all stores together."""
        self.removed, self._versions = whole.removed, whole._versions

    def leave(self, tenant: str, departed: Departed) -> None:
        departed.items = _taken(self.items, lambda ref: ref[0] == tenant)
        departed.groups = _taken(self.groups, lambda ref: ref[0] == tenant)
        departed.waiters = _taken(self.waiters, lambda ref: ref[0] == tenant)
        departed.keys = _taken(self.keys, lambda key: key[0] == tenant)
        departed.lanes = _taken(self._lanes, lambda lane: lane[1] == tenant)
        for expected in departed.items.values():
            self.by_id[expected.ref[1]].remove(expected)
            self.watched.pop(expected, None)
            if expected.token and expected.worker is not None:
                del self.held[expected.worker][expected.token]

    def arrive(self, departed: Departed, now: float, place_of: Callable[[Ref], int]) -> int:
        """place_of: the place of an item in the store. Returns how many leases could not go along."""
        held = {token for tokens in self.held.values() for token in tokens}
        lost: list[ReferenceItem] = []
        self.last_token = max(self.last_token, departed.token)
        self.groups.update(departed.groups)
        self.waiters.update(departed.waiters)
        self.keys.update(departed.keys)
        self._lanes.update(departed.lanes)
        for ref, expected in departed.items.items():
            self._number += 1
            expected.number = self._number
            self.items[ref] = expected
            self.by_id[ref[1]].append(expected)
            # The tokens of what it has settled stay behind: settling again is refused.
            expected.settled.clear()
            expected.recorded.mail = _mail(expected.recorded.mail)
            if expected.doom is not None:
                expected.token, expected.worker = 0, None  # it is handed out once more, with its verdict
            elif expected.token and expected.token in held:
                lost.append(expected)
            elif expected.token and expected.worker is not None:
                self.workers.setdefault(expected.worker, departed.workers[expected.worker])
                self.held[expected.worker][expected.token] = expected
            if expected.deadline is not None and not expected.ended and expected.doom is None:
                expected.watched, expected.overdue = True, False  # the next claim looks at it
                self.watched[expected] = None
        for expected in lost:
            self._free(expected, now)
        for expected in departed.items.values():
            expected.place = place_of(expected.ref)
        return len(lost)


def _taken(entries: Any, goes: Callable[[Any], bool]) -> Any:
    """The entries that go. They are removed."""
    return {name: entries.pop(name) for name in [*entries] if goes(name)}


def _mail(mail: Sequence[ReferenceMail]) -> list[ReferenceMail]:
    """What is known of a mailbox in another store: what is unread, and the keys."""
    keys = sorted((each.name, each.key) for each in mail if each.key is not None)
    unread = [
        ReferenceMail(Signal(id="", name=each.name, value=each.value)) for each in mail if not each.taken
    ]
    known = [ReferenceMail(Signal(id="", name=name, key=key)) for name, key in keys]
    for each in known:
        each.taken = True
    return [*unread, *known]


class PartChecker(Checker):
    """Checks one of the stores. What is counted is counted for all."""

    reference: PartReference

    def __init__(self, name: str, store: PartStore, whole: PairChecker) -> None:
        self.whole = whole
        super().__init__(store, whole._clock)
        self.name = name
        self.reference = PartReference(self._drawn_due)
        self.reference.share(whole.reference)
        self.handlers = whole.handlers
        self.recorded = whole.recorded.of(self.reference)
        self.coverage, self.timeline, self.calls = whole.coverage, whole.timeline, whole.calls
        self.stopping_workers, self.reused = whole.stopping_workers, whole.reused
        self._fired = whole._fired
        self._came: set[str] = set()
        """Workers whose leases have come from the other store."""

    @property
    def violation(self) -> Violation | None:  # type: ignore[override]
        return self.whole.violation

    @violation.setter
    def violation(self, found: Violation | None) -> None:
        self.whole.violation = found

    def _check_here(self, tenant: str) -> None:
        """M1."""
        where = self.whole.where.setdefault(tenant, self.name)
        must(where == self.name, f"something of {tenant} is stored in {self.name}, and it is in {where}")

    def _submitted(self, now: float, items: Sequence[Item], answer: Any) -> None:
        if not isinstance(answer, Rejected):
            for tenant in {item.tenant for item in items}:
                self._check_here(tenant)
        super()._submitted(now, items, answer)

    def claim_key(self, now: float, key: str, owner: str, ttl: float, tenant: str, ours: bool) -> None:
        super().claim_key(now, key, owner, ttl, tenant, ours)
        if ours and tenant != MARKS:
            self._check_here(tenant)

    def check_step(self, verb: str, now: float, *args: Any) -> None:
        self.whole.steps += 1
        super().check_step(verb, now, *args)

    def beat(self, now: float, beat: Heartbeat, reply: HeartbeatReply) -> None:
        """A lease of a worker that came from a store whose clock is ahead is not kept for so long."""
        super().beat(now, beat, reply)
        leases = self.reference.workers
        for worker in self._store.store.workers.values():
            if worker.until < leases.get(worker.id, 0.0):
                must(worker.id in self._came and worker.until >= now + LEASE, f"{worker.id} lapses early")
                leases[worker.id] = worker.until

    # -- moves -----------------------------------------------------------------------------------------

    def read(self) -> Departed:
        """What goes along with a tenant that is read now."""
        return Departed(self.reference.last_token, dict(self.reference.workers))

    def marked(self, now: float, tenant: str, before: TenantMark | None, mark: TenantMark) -> None:
        self.note(f"{self.name} says of {tenant}: {_shown(before)} -> {_shown(mark)}")
        self.whole.marked(self.name, tenant, before, mark)

    def left(self, now: float, tenant: str, mark: TenantMark, departed: Departed) -> None:
        """The decision. It is what was read: nothing has happened since."""
        departed.now = now
        self.note(f"{tenant} has left {self.name}: {_shown(mark)}")
        self._check_here(tenant)
        self.reference.leave(tenant, departed)
        owners = _taken(self._owners, lambda key: key[0] == tenant)
        departed.owners = {key: owner for key, owner in owners.items() if now < owner[1]}
        self.whole.leaves(tenant, mark, departed)
        self.compare()

    def came(self, now: float, tenant: str, owned: TenantMark) -> None:
        departed = self.whole.arrives(tenant, self.name, owned)
        self.early = max(self.early, departed.now - now)
        if self.reference.arrive(departed, now, self._place_of):
            self.cover("a lease could not go along")
        self._came.update(departed.workers)
        self._owners.update(departed.owners)
        self._compare_keys(now, tenant)
        self.note(f"{tenant} is in {self.name}: {_shown(owned)}")
        self.compare()
        self.audit()

    def _compare_keys(self, now: float, tenant: str) -> None:
        wanted = {
            ref: owner for ref, (owner, until) in self._owners.items() if ref[0] == tenant and until > now
        }
        keys = self._store.store.claimed_keys.by_ref.values()
        found = {key.ref: key.owner for key in keys if key.ref[0] == tenant and key.until > now}
        must(found == wanted, f"{tenant} has claimed {found}, not {wanted}")
        holders = {key: held.ref for key, held in self.reference.keys.items() if key[0] == tenant}
        rows = {key: row.ref for key, row in self._store.store.keys.items() if key[0] == tenant}
        must(rows == holders, f"{tenant} has the keys {rows}, not {holders}")

    def _place_of(self, ref: Ref) -> int:
        row = self._store.store.find(*ref)
        must(row is not None, f"{ref} has not arrived in {self.name}")
        return row.place  # type: ignore[union-attr]


class PairChecker(Checker):
    """What holds for two stores together. Its reference is what those of both say, and what is between."""

    def __init__(self, stores: Mapping[str, PartStore], clock: Callable[[], float]) -> None:
        home = next(iter(stores.values()))
        super().__init__(home, clock)
        self.where: dict[str, str] = {}
        """In which store each tenant is. Empty: it has left one, and is not in the other yet."""
        self.movers: dict[Process, str] = {}
        """Which tenant each process moves."""
        self._between: dict[str, Departed] = {}
        self._owners_of_moves: dict[tuple[str, int], str] = {}
        self.parts = {name: PartChecker(name, store, self) for name, store in stores.items()}
        for name, store in stores.items():
            store.checker = self.parts[name]
        references = [part.reference for part in self.parts.values()]
        self._items_between: dict[Ref, ReferenceItem] = {}
        self._groups_between: dict[Ref, ReferenceGroup] = {}
        self.reference.items = ChainMap(self._items_between, *(each.items for each in references))  # type: ignore[assignment]
        self.reference.groups = ChainMap(self._groups_between, *(each.groups for each in references))  # type: ignore[assignment]
        self.reference.orders = references[0].orders

    def compare(self) -> None:
        for part in self.parts.values():
            part.compare()

    def audit(self) -> None:
        for part in self.parts.values():
            part.audit()

    # -- moves -----------------------------------------------------------------------------------------

    def marked(self, name: str, tenant: str, before: TenantMark | None, mark: TenantMark) -> None:
        """M3."""
        must(before is None or mark.number >= before.number, f"{tenant}: {mark} in {name} is older")
        if mark.state in ("owned", "frozen"):
            must(self.where.get(tenant, name) == name, f"{name} owns {tenant}: {_shown(mark)}")
        if mark.state == "owned" and mark.move and (before is None or mark.move != before.move):
            self.cover("a move began")
            new = self._owners_of_moves.setdefault((tenant, mark.move), name) == name
            must(new and not (before and before.move), f"{tenant}: two moves have the number {mark.move}")
        if before is not None and before.move and not mark.move:
            self.cover(f"a move was given up in the {'old' if mark.state == 'owned' else 'new'} store")
        if mark.state == "frozen" and before is not None:
            self.cover("a freeze began")
            self.cover("a freeze took the place of another") if before.freeze else None
        others = [each for each, moved in self.movers.items() if moved == tenant and not each.dead]
        self.cover("two movers at once") if len(others) > 1 else None

    def leaves(self, tenant: str, mark: TenantMark, departed: Departed) -> None:
        self.where[tenant] = ""
        self._between[tenant] = departed
        self._items_between.update(departed.items)
        self._groups_between.update(departed.groups)
        self.cover("a tenant was moved")
        items = departed.items.values()
        for what, there in (
            ("with items that run", any(one.token for one in items)),
            ("with suspended items", any(one.recorded.suspended for one in items)),
            ("with open groups", any(each.open and each.stored > 1 for each in departed.groups.values())),
            ("with blocked items", any(one.status == "blocked" for one in items)),
            ("with lost items", any(one.losses and not one.ended for one in items)),
            ("with claimed keys", bool(departed.owners)),
            ("with keys of items", bool(departed.keys)),
            ("with held lanes", bool(departed.lanes)),
        ):
            self.cover(f"a tenant was moved {what}") if there else None

    def arrives(self, tenant: str, name: str, owned: TenantMark) -> Departed:
        must(self.where.get(tenant) == "", f"{name} takes {tenant}, which is in {self.where.get(tenant)}")
        self.where[tenant] = name
        process = PROCESS.get()
        ended = process is None or process not in self.movers
        self.cover("a move was ended by who was sent on") if ended else None
        departed = self._between.pop(tenant)
        for ref in departed.items:
            del self._items_between[ref]
        for ref in departed.groups:
            del self._groups_between[ref]
        return departed


def _shown(mark: TenantMark | None) -> str:
    if mark is None:
        return "nothing"
    return f"{mark.state} {mark.number}, move {mark.move}, freeze {mark.freeze}, to {mark.to or '-'}"


class PartStore(CheckedStore):
    """One of the stores. The steps of moves are checked too."""

    checker: PartChecker  # type: ignore[assignment]

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._open: list[Process | None] = []

    @property
    def tenant_moves(self) -> Any:
        return CheckedMoves(super().tenant_moves, self)

    @property
    def holds_up(self) -> bool:
        """Whether a transaction is open in a process that lives: it holds a lock."""
        self._open = [each for each in self._open if each is None or not each.dead]
        return bool(self._open)

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[Transaction]:
        process = PROCESS.get()
        self._open.append(process)
        try:
            async with super()._transaction() as transaction:
                yield transaction
        finally:
            if process in self._open:
                self._open.remove(process)

    def mark_of(self, tenant: str) -> TenantMark | None:
        return decode_mark(self.store.claimed_keys.owner((MARKS, PREFIX + tenant), self.store.now()))

    def check(self, check: Callable[..., None], *args: Any) -> None:
        self.checker.guard(check, self.store.now(), *args)


class CheckedMoves(TenantMoves):
    def __init__(self, inner: TenantMoves, store: PartStore) -> None:
        self._inner = inner
        self._store = store

    async def put_mark(
        self, tenant: str, expected: TenantMark | None, mark: TenantMark, *, empty: bool = False
    ) -> bool:
        before = self._store.mark_of(tenant)
        done = await self._inner.put_mark(tenant, expected, mark, empty=empty)
        if done:
            self._store.check(self._store.checker.marked, tenant, before, mark)
        return done

    async def stage(self, tenant: str, mark: TenantMark, records: Sequence[bytes]) -> bool:
        return await self._inner.stage(tenant, mark, records)

    async def staged(self, tenant: str) -> tuple[int, int]:
        return await self._inner.staged(tenant)

    def give(self, tenant: str, mark: TenantMark) -> AbstractAsyncContextManager[Giving]:
        return self._give(tenant, mark)

    @asynccontextmanager
    async def _give(self, tenant: str, mark: TenantMark) -> AsyncGenerator[Giving]:
        async with self._inner.give(tenant, mark) as giving:
            yield CheckedGiving(giving, tenant, self._store)

    async def receive(self, tenant: str, mark: TenantMark, owned: TenantMark) -> bool:
        done = await self._inner.receive(tenant, mark, owned)
        if done:
            self._store.check(self._store.checker.came, tenant, owned)
        return done


class CheckedGiving(Giving):
    def __init__(self, inner: Giving, tenant: str, store: PartStore) -> None:
        self._inner = inner
        self._tenant = tenant
        self._store = store
        self._departed = store.checker.read()

    async def read(self, limit: int = 1000) -> Sequence[bytes]:
        return await self._inner.read(limit)

    async def commit(self, mark: TenantMark) -> None:
        if self._store.holds_up:
            raise StoreUnavailable("simulated: a transaction is open")
        await self._inner.commit(mark)
        self._store.check(self._store.checker.left, self._tenant, mark, self._departed)
