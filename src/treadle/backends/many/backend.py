"""ManyStores: one backend over several stores, each tenant, or each root, in one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from treadle.backend import (
    CAPABILITIES,
    Backend,
    By,
    ChecksUnopened,
    Export,
    HeartbeatConnection,
    Import,
    Inspected,
    Transaction,
    carries_results,
    store_name,
    wake_portion,
)
from treadle.base.ids import slot_of
from treadle.base.timing import Clock, SystemClock
from treadle.errors import BackendError, StoreUnavailable, UnsupportedError
from treadle.item import DEFAULT_TENANT, AuditNote
from treadle.records import MovedTenant, StoreMark

from .claim import Background, ManyClaims
from .limits import ManyLimits
from .lists import ManyLists
from .member import Member, number_of, together
from .mover import FREEZE, SKEW, TenantMover
from .operate import ManyOperations
from .orders import ManyOrders
from .places import TenantPlaces, check_names
from .read import Answers, ManyReads
from .rebalance import Balancer
from .records import ManyRecords
from .roots import RootPlaces
from .submit import ManySchedules, ManyWrites
from .transactions import ManyTransactions
from .view import Views, WorkerView
from .wakeups import ManyWakeups
from .workers import ManyHeartbeat, ManyWorkers

IDLE_LEASES: Final = 4
"""Length of the lease of an idle worker, in usual leases, if there are few stores."""


class ManyStores:
    """stores: by name. The first is home, unless the stores know another one of them as home.

    by: what is whole in one store: each tenant, or each root with all that follows from it.
    clock: for pauses and patience, not for what is due.
    idle_leases: how many times as long the lease of a worker is in a store where it holds nothing. Heartbeats
        are as seldom there. None: the more stores there are, the longer.
    slot: of an id, by root. Another one for tests of stores alone, whose ids are names.
    """

    def __init__(
        self,
        stores: Mapping[str, Backend],
        *,
        by: By = "tenant",
        clock: Clock | None = None,
        idle_leases: int | None = None,
        slot: Callable[[str], int] = slot_of,
    ) -> None:
        check_names(list(stores))
        clock = self._clock = clock or SystemClock()
        idle_leases = max(IDLE_LEASES, len(stores)) if idle_leases is None else idle_leases
        backends = list(stores.values())
        self.capabilities = (CAPABILITIES | {"transactions"}).intersection(
            *(backend.capabilities for backend in backends)
        ) - {"moving"}
        self.carries_results = all(map(carries_results, backends))
        self.wake_portion = min(map(wake_portion, backends))
        members = {name: Member(name, n, backend, clock) for n, (name, backend) in enumerate(stores.items())}
        self.by_root = by == "root"
        if self.by_root:
            self.capabilities -= {"transactions"}
        places = RootPlaces(members, slot) if self.by_root else TenantPlaces(members)
        self.places: TenantPlaces = places
        self._views = views = Views(places)
        self._background = background = Background()
        answers = Answers(places)
        self._wakeups = wakeups = ManyWakeups(places, views)
        orders = ManyOrders(places, views)
        claims = self._claims = ManyClaims(
            places, views, orders, background, clock, wakeups.tell, self._beat_again
        )
        workers = self._workers = ManyWorkers(places, views, answers, background, clock, idle_leases)
        writes, schedules = ManyWrites(places, views, claims), ManySchedules(places, answers, views, claims)
        reads, lists = ManyReads(places, answers, wakeups.tell), ManyLists(places)
        records, limits = ManyRecords(places, answers, clock), ManyLimits(places, views)
        operations = ManyOperations(places, views, reads)
        self._transactions = ManyTransactions(places, views)

        # -- the path of work
        self.submit, self.settle, self.record = writes.submit, writes.settle, writes.record
        self.claim, self.begin, self.unknown_leases = claims.claim, claims.begin, claims.unknown_leases
        self.beat, self.remove_worker = workers.beat, workers.remove_worker
        # -- reads
        self.get, self.group, self.steps, self.stream = reads.get, reads.group, reads.steps, reads.stream
        self.logs, self.ended, self.counts, self.explain = (
            reads.logs,
            reads.ended,
            reads.counts,
            reads.explain,
        )
        self.overview, self.limits, self.marks = reads.overview, reads.limits, reads.marks
        self.lines, self.related, self.workers = reads.lines, reads.related, workers.workers
        self.list, self.groups, self.workflows = lists.list, lists.groups, lists.workflows
        # -- records
        self.audits, self.drain_worker, self.now = lists.audits, workers.drain_worker, records.now
        self.add_stats, self.stats = records.add_stats, records.stats
        self.put_samples, self.samples = records.put_samples, records.samples
        self.schedule_runs, self.stores = records.schedule_runs, records.stores
        self.plan_rebalance = Balancer(places).plan
        # -- operators
        self.cancel, self.complete, self.requeue = operations.cancel, operations.complete, operations.requeue
        self.update, self.trigger, self.hold = operations.update, operations.trigger, operations.hold
        self.signal, self.delete, self.prune = operations.signal, operations.delete, operations.prune
        self.order, self.withdraw, self.orders = orders.order, orders.withdraw, orders.orders
        # -- coordination
        self.claim_key, self.key_owner = limits.claim_key, limits.key_owner
        self.take_permits, self.return_permits = limits.take_permits, limits.return_permits
        self.keep_permits = limits.keep_permits
        self.put_schedule, self.schedules = schedules.put_schedule, schedules.schedules
        self.drop_schedule, self.pause_schedule = schedules.drop_schedule, schedules.pause_schedule
        self.fire = schedules.fire
        self.publish, self.subscribe = wakeups.publish, wakeups.subscribe

    def _beat_again(self, view: WorkerView, member: Member) -> None:
        self._workers.beat_again(view, member)

    # -- where things are ------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        where = {name: store_name(member.backend) for name, member in self.places.by_name.items()}
        addresses = set(where.values())
        if len(where) > 1 and len(addresses) == 1:  # of a cluster that is divided
            return addresses.pop()
        return ", ".join(f"{name}={address}" for name, address in where.items())

    def place_of(self, tenant: str, id: str) -> int | None:
        found = self.places.known(tenant, id)
        return None if found is None else found.number

    def place_of_token(self, token: int) -> int:
        return number_of(token)

    @property
    def backends(self) -> Mapping[str, Backend]:
        return {member.name: member.backend for member in self.places.members}

    @property
    def away(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.places.members if member.fails)

    async def place(self, tenant: str, store: str | None = None) -> str:
        """Give a tenant its store, unless it has one. Returns the name of its store. None: the one that it
        gets by itself."""
        name = self.places.preferred(tenant) if store is None else self.places.named(store).name
        return (await self.places.place(tenant, name)).name

    async def accept_store(self, name: str) -> None:
        await self.places.accept(name)

    async def move_tenant(
        self,
        tenant: str,
        to: str,
        *,
        source: str | None = None,
        resume: bool = False,
        freeze: float = FREEZE,
        skew: float = SKEW,
        note: AuditNote | None = None,
        progress: Callable[[int], object] = int,
    ) -> MovedTenant:
        return await self._mover().move(
            tenant,
            to,
            source=source,
            resume=resume,
            freeze=freeze,
            skew=skew,
            note=note,
            progress=progress,
        )

    async def give_up_move(self, tenant: str) -> bool:
        return await self._mover().give_up(tenant)

    def _mover(self) -> TenantMover:
        if self.by_root:
            raise UnsupportedError("tenant_moves", "ManyStores", advice="by root a tenant is in all stores")
        return TenantMover(self.places, self._clock)

    # -- life ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self.places.open()

    async def close(self) -> None:
        await self._background.close()
        await self._wakeups.close()
        for view in self._views.clear().values():
            for task in (*view.asking.values(), *view.beating.values()):
                task.cancel()
        await together([member.close() for member in self.places.members])

    def abandon(self) -> None:
        self._views.clear()
        self._wakeups.abandon()
        self._background.abandon()
        self.places.abandon()
        for member in self.places.members:
            member.abandon()

    def heartbeat_connection(self) -> HeartbeatConnection:
        return ManyHeartbeat([member.backend.heartbeat_connection for member in self.places.members])

    def check_unopened(self, tx: object) -> None:
        for member in self.places.members:
            if isinstance(member.backend, ChecksUnopened):
                member.backend.check_unopened(tx)

    async def inspect(self) -> Sequence[BackendError]:
        """The problems of all stores that answer."""

        async def one(member: Member) -> Sequence[BackendError]:
            if not isinstance(member.backend, Inspected) or not member.is_open:
                return ()
            try:
                problems: Sequence[BackendError] = await member.call("inspect")
            except StoreUnavailable:
                return ()
            return problems

        return [error for part in await together(map(one, self.places.members)) for error in part]

    # -- transactions, moving --------------------------------------------------------------------------

    def transaction_of(self, tenant: str) -> AbstractAsyncContextManager[Transaction]:
        if "transactions" not in self.capabilities:
            raise UnsupportedError("transactions", type(self).__name__)
        return self._transactions.of(tenant)

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self.transaction_of(DEFAULT_TENANT)

    async def mark(self) -> StoreMark | None:
        raise _not_moved()

    async def own(self, move: str) -> None:
        raise _not_moved()

    async def discard(self, move: str) -> None:
        raise _not_moved()

    async def take_back(self, move: str) -> None:
        raise _not_moved()

    async def identity(self) -> str | None:
        raise _not_moved()

    def export(
        self, *, freeze: float | None = None, move: str | None = None, tenant: str | None = None
    ) -> AbstractAsyncContextManager[Export]:
        raise _not_moved()

    def import_(
        self, move: str, source: str = "", *, tenant: str | None = None
    ) -> AbstractAsyncContextManager[Import]:
        raise _not_moved()


def _not_moved() -> UnsupportedError:
    return UnsupportedError("moving", "ManyStores", advice="export or promote one store after the other")
