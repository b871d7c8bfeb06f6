"""SqliteBackend: durable work in one file, shared by any number of processes of one machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from treadle.backend import CAPABILITIES, HeartbeatConnection, Transaction
from treadle.clock import Clock, SystemClock
from treadle.errors import InputError
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

from . import claim, coordinate, listing, operate, outside, read, remove, settle, submit
from . import worker as workforce
from .connection import Durability
from .store_file import StoreFile


class SqliteBackend:
    """Work in a SQLite file.

    `clock.now()` is the store's clock; all processes on one file have to agree about the time.
    `durability="full"`: what was answered survives the loss of power. `"normal"`: it survives the death of
    the process, but the last moments before a loss of power may be gone; commits are several times faster.
    `apply_schema=False`: the schema must be there already (see `schema_sql`).
    `busy_timeout`: how long a verb waits while others write, before it raises `StoreUnavailable`.
    `reserve`: new work is refused (`StoreFull`) when the disk has less than so many bytes left, so that what
    is in hand can still be settled.
    """

    capabilities = CAPABILITIES | {"transactions"}

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        durability: Durability = "full",
        apply_schema: bool = True,
        busy_timeout: float = 30.0,
        reserve: int = 16 * 2**20,
    ) -> None:
        if durability not in ("full", "normal"):
            raise InputError.of("durability", durability, "must be 'full' or 'normal'")
        self._clock = SystemClock() if clock is None else clock
        self._file = StoreFile(
            path,
            self._clock,
            durability=durability,
            apply_schema=apply_schema,
            patience=busy_timeout,
            reserve=reserve,
        )

    async def open(self) -> None:
        await self._file.open()

    async def close(self) -> None:
        await self._file.close()

    def heartbeat_connection(self) -> HeartbeatConnection:
        """It writes through this backend's own thread, which no event loop can block."""
        return ThreadHeartbeatConnection(self)

    # -- the path of work ------------------------------------------------------------------------------

    async def submit(
        self, submissions: Sequence[Submission], *, tx: object = None
    ) -> Sequence[tuple[Submitted, ...] | Rejected]:
        self._file.check_room()
        if tx is not None:
            return outside.submit_within(tx, submissions, self._file.path, self._clock.now())
        return await self._file.write(lambda step: submit.submit(step, submissions))

    async def claim(self, demand: Demand) -> Claim:
        return await self._file.write(lambda step: claim.claim(step, demand, self._file.beside))

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        within = self._file.beat_within(beat)
        if within is not None:
            return within
        return await self._file.write(lambda step: workforce.beat(step, beat, self._file.beside), urgent=True)

    async def remove_worker(self, worker: str) -> int:
        return await self._file.write(lambda step: workforce.remove_worker(step, worker))

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        return await self._file.write(lambda step: settle.settle(step, settlements))

    async def unknown_leases(self, worker: str, known: Sequence[int]) -> Sequence[Lease]:
        return await self._file.write(lambda step: workforce.unknown_leases(step, worker, known))

    # -- reads -----------------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        return await self._file.read(lambda step: read.get(step, ids, tenant))

    async def group(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[GroupState | None]:
        return await self._file.read(lambda step: read.group(step, ids, tenant))

    async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
        return await self._file.read(lambda step: read.ended(step, items, groups))

    async def list(
        self,
        where: Filter,
        *,
        limit: int = 100,
        cursor: str | None = None,
        oldest_first: bool = False,
    ) -> Page:
        return await self._file.read(
            lambda step: listing.listing(step, where, limit, cursor, oldest_first=oldest_first)
        )

    async def counts(self, *, tenant: str | None = None, ended: bool = False) -> Sequence[Count]:
        return await self._file.read(lambda step: read.counts(step, tenant, with_ended=ended))

    async def workers(self) -> Sequence[WorkerState]:
        return await self._file.read(workforce.workers)

    # -- operators -------------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[str], *, tenant: str | None = None) -> Changed:
        return await self._file.write(lambda step: operate.cancel(step, ids, tenant))

    async def complete(self, id: str, result: bytes | None, *, tenant: str | None = None) -> Changed:
        return await self._file.write(lambda step: operate.complete(step, id, result, tenant))

    async def requeue(
        self,
        where: Sequence[str] | Filter,
        *,
        tenant: str | None = None,
        limit: int = 1000,
        redrives: int | None = None,
        backoff: float = 0.0,
    ) -> Changed:
        return await self._file.write(
            lambda step: operate.requeue(step, where, tenant, limit, redrives, backoff)
        )

    async def trigger(self, ids: Sequence[str], *, tenant: str | None = None) -> Changed:
        return await self._file.write(lambda step: operate.trigger(step, ids, tenant))

    async def delete(
        self, group_ids: Sequence[str], *, tenant: str | None = None, cascade: bool = False
    ) -> Changed:
        return await self._file.write(lambda step: operate.delete(step, group_ids, tenant, cascade=cascade))

    async def pause(self, queue: str, paused: bool = True, *, tenant: str | None = None) -> None:
        await self._file.write(lambda step: operate.pause(step, queue, tenant, paused=paused))

    async def paused(self) -> Sequence[tuple[str, str | None]]:
        return await self._file.read(operate.paused)

    async def prune(self, limit: int = 1000) -> int:
        return await self._file.write(lambda step: remove.prune(step, limit))

    # -- coordination ----------------------------------------------------------------------------------

    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        return await self._file.write(lambda step: coordinate.claim_key(step, key, owner, ttl, tenant))

    async def take_permits(
        self, requests: Sequence[PermitRequest], *, worker: str = ""
    ) -> Sequence[PermitReply]:
        return await self._file.write(lambda step: coordinate.take(step, requests, worker))

    async def return_permits(self, requests: Sequence[PermitRequest], *, worker: str) -> None:
        await self._file.write(lambda step: coordinate.give(step, requests, worker))

    async def put_schedule(self, schedule: Schedule) -> Schedule:
        return await self._file.write(lambda step: coordinate.put_schedule(step, schedule))

    async def schedules(self) -> Sequence[Schedule]:
        return await self._file.read(coordinate.schedules)

    async def drop_schedule(self, name: str) -> bool:
        return await self._file.write(lambda step: coordinate.drop_schedule(step, name))

    async def pause_schedule(self, name: str, paused: bool) -> bool:
        return await self._file.write(lambda step: coordinate.pause_schedule(step, name, paused))

    async def fire(self, fire: Fire) -> tuple[Submitted, ...] | Rejected | None:
        self._file.check_room()
        return await self._file.write(lambda step: coordinate.fire(step, fire))

    # -- transactions ----------------------------------------------------------------------------------

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._file.transaction()

    # -- signals ---------------------------------------------------------------------------------------

    async def publish(self, wake: Wake) -> None:
        self._file.publish(wake)

    async def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        return self._file.subscribe(receive)

    async def now(self) -> float:
        return self._clock.now()


class ThreadHeartbeatConnection:
    """Beats on behalf of a backend, from another event loop. Nothing to open: the writer thread is there,
    and so is the file lock that tells others that this process lives."""

    def __init__(self, backend: SqliteBackend) -> None:
        self._backend = backend

    async def open(self) -> None:
        pass

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        return await self._backend.beat(beat)

    async def close(self) -> None:
        pass
