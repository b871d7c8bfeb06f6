"""PortsBackend: a Backend made of a queue, a pubsub and a store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, Final, Never, TypeVar, cast

from treadle.backend import Backend, Export, HeartbeatConnection, Import, Transaction
from treadle.base.timing import Clock, SystemClock
from treadle.errors import UnsupportedError
from treadle.item import (
    GROUP_MARK,
    AuditNote,
    Changed,
    Claim,
    Demand,
    Ended,
    Fire,
    GroupState,
    Heartbeat,
    HeartbeatReply,
    ItemState,
    Lease,
    Loss,
    Orders,
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
)

from .async_ports import AsyncPorts, Pointers
from .claim import PortsClaim
from .dependencies import PortsDependencies, PortsEffects
from .limits import PortsLimits
from .operate import PortsOperate
from .protocols import PubSub, Queue, Store
from .read import PortsRead
from .records import Records, StoreKeys
from .schedules import PortsSchedules
from .settle import PortsSettle
from .submit import PortsSubmit, Reserver
from .wakeups import PortsWakeups
from .workers import PortsWorkers

Verb = TypeVar("Verb", bound=Callable[..., Awaitable[Any]])


_WORK_OFF: Final = "let the workers work off what is queued, then begin with an empty store of the other kind"


def _unsupported(capability: str) -> Never:
    raise UnsupportedError(capability, "PortsBackend")


def _without(capability: str, verb: Verb) -> Verb:
    """A verb that needs a capability that this backend does not have."""

    @wraps(verb)
    async def refuse(*_: object, **_options: object) -> Never:
        _unsupported(capability)

    return cast(Verb, refuse)


class PortsBackend(Backend):
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

    record = _without("steps", Backend.record)
    steps = _without("steps", Backend.steps)
    stream = _without("steps", Backend.stream)
    logs = _without("steps", Backend.logs)
    signal = _without("steps", Backend.signal)
    list = _without("listing", Backend.list)
    counts = _without("listing", Backend.counts)
    workers = _without("listing", Backend.workers)
    explain = _without("watching", Backend.explain)
    overview = _without("watching", Backend.overview)
    limits = _without("watching", Backend.limits)
    marks = _without("watching", Backend.marks)
    lines = _without("watching", Backend.lines)
    related = _without("watching", Backend.related)
    groups = _without("watching", Backend.groups)
    workflows = _without("watching", Backend.workflows)
    add_stats = _without("recording", Backend.add_stats)
    stats = _without("recording", Backend.stats)
    put_samples = _without("recording", Backend.put_samples)
    samples = _without("recording", Backend.samples)
    schedule_runs = _without("recording", Backend.schedule_runs)
    audits = _without("recording", Backend.audits)
    drain_worker = _without("recording", Backend.drain_worker)

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

    complete = _without("operating", Backend.complete)
    requeue = _without("operating", Backend.requeue)
    trigger = _without("operating", Backend.trigger)
    hold = _without("operating", Backend.hold)
    delete = _without("operating", Backend.delete)
    order = _without("operating", Backend.order)
    withdraw = _without("operating", Backend.withdraw)
    update = _without("updates", Backend.update)
    mark = _without("moving", Backend.mark)
    own = _without("moving", Backend.own)
    discard = _without("moving", Backend.discard)
    take_back = _without("moving", Backend.take_back)
    identity = _without("moving", Backend.identity)

    def export(
        self, *, freeze: float | None = None, move: str | None = None, tenant: str | None = None
    ) -> AbstractAsyncContextManager[Export]:
        raise UnsupportedError("moving", "PortsBackend", "export", advice=_WORK_OFF)

    def import_(
        self, move: str, source: str = "", *, tenant: str | None = None
    ) -> AbstractAsyncContextManager[Import]:
        raise UnsupportedError("moving", "PortsBackend", "import", advice=_WORK_OFF)

    async def orders(self) -> Orders:
        return Orders()

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
