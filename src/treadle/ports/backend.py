"""PortsBackend: a Backend out of a queue, a pubsub and a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Never

from treadle.backend import HeartbeatConnection, Transaction
from treadle.clock import Clock, SystemClock
from treadle.errors import UnsupportedError
from treadle.item import (
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
    Lease,
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

from .admit import Admitter
from .archive import Archive
from .calls import Ports
from .cancel import Cancelling
from .claim import Claiming
from .follow import Following
from .gates import Gates
from .hands import Hands
from .leases import Leases
from .limits import Limits
from .names import Names
from .protocols import PubSub, Queue, Store
from .read import Reading
from .records import records
from .schedules import Scheduling
from .settle import Settling
from .signals import Signals
from .submit import Submitting
from .workers import Workers


class PortsBackend:
    """What three small ports can promise, on any three: see docs/ports.md.

    prefix: before every key in the store, so that several may share one.
    clock: whose time decides what is due and what has lapsed; those of a fleet should agree.
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
        ports = self.ports = Ports(queue, pubsub, store)
        archive = self._archive = Archive(ports, records(ports), Names(prefix), clock or SystemClock())
        gates = Gates(archive)
        following = Following(archive, gates)
        self._hands = hands = Hands(archive)
        self._workers = workers = Workers(archive, hands, following)
        admitter = Admitter(archive, gates)
        self._submitting = Submitting(archive, admitter, gates, workers)
        self._claiming = Claiming(archive, workers, hands, following, self._submitting, gates)
        self._settling = Settling(archive, admitter, gates, following, hands, workers)
        self._reading = Reading(archive)
        self._cancelling = Cancelling(archive, self._reading, following, workers)
        self._leases = Leases(archive, workers)
        self._limits = Limits(archive)
        self._scheduling = Scheduling(archive, self._submitting)
        self._signals = Signals(ports)
        workers.on_bury = self._limits.give_all

    # -- life ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Ports connect by themselves."""

    async def close(self) -> None:
        self._signals.close()

    def heartbeat_connection(self) -> HeartbeatConnection:
        return PortsHeartbeatConnection(self)

    # -- the path of work ------------------------------------------------------------------------------

    async def submit(
        self, submissions: Sequence[Submission], *, tx: object = None
    ) -> Sequence[tuple[Submitted, ...] | Rejected]:
        if tx is not None:
            _unsupported("transactions")
        return await self._submitting.submit(submissions)

    async def claim(self, demand: Demand) -> Claim:
        return await self._claiming.claim(demand)

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        fresh, known = await self._workers.beat(beat)
        for pulled in self._hands.of(beat.worker):
            await self.ports.heartbeat(pulled, beat.lease)
        return HeartbeatReply(fresh, await self._leases.lost(beat.held, known))

    async def remove_worker(self, worker: str) -> int:
        return await self._workers.remove_worker(worker)

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        return await self._settling.settle(settlements)

    async def unknown_leases(self, worker: str, known: Sequence[int]) -> Sequence[Lease]:
        return await self._leases.unknown_leases(worker, frozenset(known))

    # -- reads -----------------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        return await self._reading.get(ids, tenant)

    async def group(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[GroupState | None]:
        return await self._reading.group(ids, tenant)

    async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
        return await self._reading.ended(items, groups)

    async def list(
        self, where: Filter, *, limit: int = 100, cursor: str | None = None, oldest_first: bool = False
    ) -> Page:
        _unsupported("listing")

    async def counts(self, *, tenant: str | None = None, ended: bool = False) -> Sequence[Count]:
        _unsupported("listing")

    async def workers(self) -> Sequence[WorkerState]:
        _unsupported("listing")

    # -- operators -------------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[str], *, tenant: str | None = None) -> Changed:
        return await self._cancelling.cancel(ids, tenant)

    async def complete(self, id: str, result: bytes | None, *, tenant: str | None = None) -> Changed:
        _unsupported("operating")

    async def requeue(
        self,
        where: Sequence[str] | Filter,
        *,
        tenant: str | None = None,
        limit: int = 1000,
        redrives: int | None = None,
        backoff: float = 0.0,
    ) -> Changed:
        _unsupported("operating")

    async def trigger(self, ids: Sequence[str], *, tenant: str | None = None) -> Changed:
        _unsupported("operating")

    async def delete(
        self, group_ids: Sequence[str], *, tenant: str | None = None, cascade: bool = False
    ) -> Changed:
        _unsupported("operating")

    async def pause(self, queue: str, paused: bool = True, *, tenant: str | None = None) -> None:
        _unsupported("operating")

    async def paused(self) -> Sequence[tuple[str, str | None]]:
        return ()

    async def prune(self, limit: int = 1000) -> int:
        """What is stored of an ended group has its time to live in the store: nothing is left to prune."""
        return 0

    # -- coordination ----------------------------------------------------------------------------------

    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        name = self._archive.names.claimed(tenant, key)
        while not await self.ports.set_if_absent(name, owner, ttl):
            holder = await self.ports.get(name)
            if holder is not None:
                return holder == owner
        return True

    async def take_permits(
        self, requests: Sequence[PermitRequest], *, worker: str = ""
    ) -> Sequence[PermitReply]:
        found = await self._workers.get(worker) if worker else None
        return await self._limits.take_permits(requests, worker, found is not None and not found.dying)

    async def return_permits(self, requests: Sequence[PermitRequest], *, worker: str) -> None:
        await self._limits.return_permits(requests, worker)

    async def put_schedule(self, schedule: Schedule) -> Schedule:
        return await self._scheduling.put(schedule)

    async def schedules(self) -> Sequence[Schedule]:
        return await self._scheduling.all()

    async def drop_schedule(self, name: str) -> bool:
        return await self._scheduling.drop(name)

    async def pause_schedule(self, name: str, paused: bool) -> bool:
        return await self._scheduling.pause(name, paused)

    async def fire(self, fire: Fire) -> tuple[Submitted, ...] | Rejected | None:
        return await self._scheduling.fire(fire)

    # -- transactions ----------------------------------------------------------------------------------

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        _unsupported("transactions")

    # -- signals ---------------------------------------------------------------------------------------

    async def publish(self, wake: Wake) -> None:
        await self._signals.publish(wake)

    async def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        return await self._signals.subscribe(receive)

    async def now(self) -> float:
        return self._archive.now()


class PortsHeartbeatConnection:
    """Beats through the same ports, from another thread. Ports that are async belong to the loop that is
    blocked: with those, nobody can."""

    def __init__(self, backend: PortsBackend) -> None:
        self._backend = backend

    async def open(self) -> None:
        if not self._backend.ports.is_sync:
            raise UnsupportedError("beats from a thread while the event loop is blocked", "an async port")

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        return await self._backend.beat(beat)

    async def close(self) -> None:
        await asyncio.sleep(0)


def _unsupported(capability: str) -> Never:
    raise UnsupportedError(capability, "PortsBackend")
