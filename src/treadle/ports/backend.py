"""PortsBackend: a Backend made of a queue, a pubsub and a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Never

from treadle.backend import HeartbeatConnection, Transaction
from treadle.base.clock import Clock, SystemClock
from treadle.errors import UnsupportedError
from treadle.item import (
    GROUP_MARK,
    AuditNote,
    Changed,
    Claim,
    Count,
    Demand,
    Ended,
    Filter,
    Fire,
    GroupState,
    Heartbeat,
    HeartbeatReply,
    ItemState,
    ItemUpdate,
    Lease,
    Loss,
    Page,
    PermitReply,
    PermitRequest,
    Ref,
    Rejected,
    Schedule,
    Settled,
    Settlement,
    Submission,
    Submitted,
    Wake,
    WorkerState,
)
from treadle.item_facts import DeadMark, Explanation, LimitUse, Overview
from treadle.records import MINUTE, AuditPage, Line, Related, ScheduleRun, Stat, StatsBy

from .async_ports import AsyncPorts
from .claim import PortsClaim
from .dependencies import PortsDependencies
from .effects import PortsEffects
from .keys import StoreKeys
from .limits import PortsLimits
from .operate import PortsOperate
from .pointers import Pointers
from .protocols import PubSub, Queue, Store
from .read import PortsRead
from .records import Records
from .reserve import Reserver
from .schedules import PortsSchedules
from .settle import PortsSettle
from .submit import PortsSubmit
from .wakeups import PortsWakeups
from .workers import PortsWorkers


class PortsBackend:
    """A Backend on any three ports. docs/ports.md says what it promises.

    prefix: the prefix of every key in the store, so that several backends can share one store.
    clock: decides what is due and which leases have lapsed. The clocks of a fleet should agree.
    """

    capabilities = frozenset({"fencing", "folds", "limits", "schedules"})

    def __init__(
        self,
        queue: Queue,
        pubsub: PubSub,
        store: Store,
        *,
        prefix: str = "treadle",
        clock: Clock | None = None,
    ) -> None:
        ports = self._ports = AsyncPorts(queue, pubsub, store)
        records = self._records = Records(ports, StoreKeys(prefix), clock or SystemClock())
        pointers = Pointers(ports)
        dependencies = PortsDependencies(records, pointers)
        effects = PortsEffects(records, pointers, dependencies)
        reserver = Reserver(records, dependencies)
        self._limits = PortsLimits(records)
        self._workers = workers = PortsWorkers(records, pointers, effects, self._limits)
        self._submit = PortsSubmit(records, pointers, reserver, dependencies, workers)
        self._claim = PortsClaim(records, pointers, workers, effects, self._submit, dependencies)
        self._settle = PortsSettle(records, pointers, reserver, dependencies, effects, workers)
        self._read = PortsRead(records)
        self._operate = PortsOperate(records, self._read, effects, workers)
        self._schedules = PortsSchedules(records, self._submit)
        self._wakeups = PortsWakeups(ports)

    # -- lifetime --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Ports connect on their own."""

    async def close(self) -> None:
        self._wakeups.close()

    def abandon(self) -> None:
        self._wakeups.abandon()

    def heartbeat_connection(self) -> HeartbeatConnection:
        return PortsHeartbeatConnection(self._ports, self._workers)

    # -- the path of work ------------------------------------------------------------------------------

    async def submit(
        self, submissions: Sequence[Submission], *, tx: object = None
    ) -> Sequence[tuple[Submitted, ...] | Rejected]:
        if tx is not None:
            _unsupported("transactions")
        after = {name for one in submissions for item in one.items if item.after for name in item.after}
        if any(name.startswith(GROUP_MARK) for name in after):
            _unsupported("nested")
        if any(one.note is not None for one in submissions):
            _unsupported("recording")
        return await self._submit.submit(submissions)

    async def claim(self, demand: Demand) -> Claim:
        return await self._claim.claim(demand)

    async def begin(self, leases: Sequence[Lease]) -> Mapping[int, Loss]:
        """Nothing to do: every lease begins with its claim."""
        return {}

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        return await self._workers.beat(beat)

    async def remove_worker(self, worker: str) -> int:
        return await self._workers.remove_worker(worker)

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        return await self._settle.settle(settlements)

    async def unknown_leases(self, worker: str, known: Sequence[int]) -> Sequence[Lease]:
        return await self._workers.unknown_leases(worker, frozenset(known))

    # -- reads -----------------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        return await self._read.get(ids, tenant)

    async def group(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[GroupState | None]:
        return await self._read.group(ids, tenant)

    async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
        return await self._read.ended(items, groups)

    async def list(
        self,
        where: Filter,
        *,
        limit: int = 100,
        cursor: str | None = None,
        oldest_first: bool = False,
        history: bool = False,
        reach: int | None = None,
    ) -> Page:
        _unsupported("listing")

    async def counts(self, *, tenant: str | None = None, ended: bool = False) -> Sequence[Count]:
        _unsupported("listing")

    async def workers(self) -> Sequence[WorkerState]:
        _unsupported("listing")

    async def explain(self, id: str, *, tenant: str | None = None) -> Explanation | None:
        _unsupported("watching")

    async def overview(self, *, tenant: str | None = None, quick: bool = False) -> Overview:
        _unsupported("watching")

    async def limits(self, names: Sequence[str] | None = None, *, count: int = 500) -> Sequence[LimitUse]:
        _unsupported("watching")

    async def marks(
        self, *, tenant: str | None = None, count: int = 100, cap: int = 10_000
    ) -> Sequence[DeadMark]:
        _unsupported("watching")

    async def lines(
        self, queue: str, *, tenant: str | None = None, count: int = 200, cap: int = 1000
    ) -> Sequence[Line]:
        _unsupported("watching")

    async def related(self, id: str, *, tenant: str | None = None, count: int = 100) -> Related | None:
        _unsupported("watching")

    async def add_stats(self, stats: Sequence[Stat]) -> None:
        _unsupported("recording")

    async def stats(
        self,
        since: float,
        *,
        until: float | None = None,
        step: int = MINUTE,
        by: StatsBy = "time",
        type: str | None = None,
        queue: str | None = None,
    ) -> Sequence[Stat]:
        _unsupported("recording")

    async def schedule_runs(self, *, count: int = 30) -> Sequence[ScheduleRun]:
        _unsupported("recording")

    async def audits(
        self,
        *,
        tenant: str | None = None,
        bulk: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AuditPage:
        _unsupported("recording")

    async def drain_worker(self, worker: str, *, note: AuditNote | None = None) -> bool:
        _unsupported("recording")

    # -- operators -------------------------------------------------------------------------------------

    async def cancel(
        self,
        ids: Sequence[str],
        *,
        tenant: str | None = None,
        only_open: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        if note is not None:
            _unsupported("recording")
        return await self._operate.cancel(ids, tenant, only_open=only_open)

    async def complete(
        self, id: str, result: bytes | None, *, tenant: str | None = None, note: AuditNote | None = None
    ) -> Changed:
        _unsupported("operating")

    async def requeue(
        self,
        where: Sequence[str] | Filter,
        *,
        tenant: str | None = None,
        limit: int = 1000,
        redrives: int | None = None,
        backoff: float = 0.0,
        alone: bool = False,
        cancelled: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        _unsupported("operating")

    async def update(
        self,
        ids: Sequence[str],
        changes: ItemUpdate,
        *,
        tenant: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        _unsupported("updates")

    async def trigger(
        self, ids: Sequence[str], *, tenant: str | None = None, note: AuditNote | None = None
    ) -> Changed:
        _unsupported("operating")

    async def delete(
        self,
        group_ids: Sequence[str],
        *,
        tenant: str | None = None,
        cascade: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        _unsupported("operating")

    async def pause(
        self,
        queue: str,
        paused: bool = True,
        *,
        tenant: str | None = None,
        note: AuditNote | None = None,
    ) -> None:
        _unsupported("operating")

    async def paused(self) -> Sequence[tuple[str, str | None]]:
        return ()

    async def prune(self, limit: int = 1000) -> int:
        """The records of an ended group have a time to live in the store, so there is nothing to prune."""
        return 0

    # -- coordination ----------------------------------------------------------------------------------

    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        name = self._records.keys.claimed_key(tenant, key)
        while not await self._ports.set_if_absent(name, owner, ttl):
            current = await self._ports.get(name)
            if current is not None:
                return current == owner
        return True

    async def key_owner(self, key: str, *, tenant: str) -> str | None:
        return await self._ports.get(self._records.keys.claimed_key(tenant, key))

    async def take_permits(
        self, requests: Sequence[PermitRequest], *, worker: str = ""
    ) -> Sequence[PermitReply]:
        found = await self._workers.get(worker) if worker else None
        return await self._limits.take_permits(requests, worker, found is not None and not found.removing)

    async def return_permits(self, requests: Sequence[PermitRequest], *, worker: str) -> None:
        await self._limits.return_permits(requests, worker)

    async def keep_permits(self, held: Sequence[PermitRequest], counted: int, *, worker: str) -> int:
        found = await self._workers.get(worker)
        if found is None or found.removing:
            return 0
        return await self._limits.keep_permits(held, counted, worker)

    async def put_schedule(self, schedule: Schedule, *, again: bool = False) -> Schedule:
        return await self._schedules.put(schedule, again=again)

    async def schedules(self) -> Sequence[Schedule]:
        return await self._schedules.all()

    async def drop_schedule(self, name: str, *, note: AuditNote | None = None) -> bool:
        if note is not None:
            _unsupported("recording")
        return await self._schedules.drop(name)

    async def pause_schedule(self, name: str, paused: bool, *, note: AuditNote | None = None) -> bool:
        if note is not None:
            _unsupported("recording")
        return await self._schedules.pause(name, paused)

    async def fire(self, fire: Fire) -> tuple[Submitted, ...] | Rejected | None:
        return await self._schedules.fire(fire)

    # -- transactions ----------------------------------------------------------------------------------

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        _unsupported("transactions")

    # -- wake-ups ---------------------------------------------------------------------------------------

    async def publish(self, wake: Wake) -> None:
        await self._wakeups.publish(wake)

    async def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        return await self._wakeups.subscribe(receive)

    async def now(self) -> float:
        return self._records.now()


class PortsHeartbeatConnection:
    """Sends heartbeats through the same ports, from another thread. Async ports belong to the event loop
    that is blocked, so they cannot."""

    def __init__(self, ports: AsyncPorts, workers: PortsWorkers) -> None:
        self._ports = ports
        self._workers = workers

    async def open(self) -> None:
        if not self._ports.is_sync:
            raise UnsupportedError(
                "heartbeats from a thread while the event loop is blocked", "an async port"
            )

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        return await self._workers.beat(beat)

    async def close(self) -> None:
        await asyncio.sleep(0)


def _unsupported(capability: str) -> Never:
    raise UnsupportedError(capability, "PortsBackend")
