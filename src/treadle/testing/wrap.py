"""A backend around a backend: every call of the engine to its store passes through one method, `around`.

`treadle.testing.faults` makes calls fail there, `treadle.testing.counting` counts them there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TypeVar

from treadle.backend import Backend, HeartbeatConnection, Transaction
from treadle.item import (
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

from .wrap_reads import WrappedReads
from .wrapped_calls import WrappedHeartbeatConnection, WrappedTransaction

T = TypeVar("T")


class WrappedBackend(WrappedReads):
    """Calls `inner`. Subclasses override `around`."""

    # -- lifetime --------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self.around("open", (), self.inner.open)

    async def close(self) -> None:
        await self.around("close", (), self.inner.close)

    def abandon(self) -> None:
        self.inner.abandon()

    def heartbeat_connection(self) -> HeartbeatConnection:
        return WrappedHeartbeatConnection(self.inner.heartbeat_connection(), self)

    # -- the path of work ------------------------------------------------------------------------------

    async def submit(
        self, submissions: Sequence[Submission], *, tx: object = None
    ) -> Sequence[tuple[Submitted, ...] | Rejected]:
        return await self.around("submit", (submissions,), lambda: self.inner.submit(submissions, tx=tx))

    async def claim(self, demand: Demand) -> Claim:
        return await self.around("claim", (demand,), lambda: self.inner.claim(demand))

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        return await self.around("beat", (beat,), lambda: self.inner.beat(beat))

    async def begin(self, leases: Sequence[Lease]) -> Mapping[int, Loss]:
        return await self.around("begin", (leases,), lambda: self.inner.begin(leases))

    async def remove_worker(self, worker: str) -> int:
        return await self.around("remove_worker", (worker,), lambda: self.inner.remove_worker(worker))

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        return await self.around("settle", (settlements,), lambda: self.inner.settle(settlements))

    async def unknown_leases(self, worker: str, known: Sequence[int]) -> Sequence[Lease]:
        return await self.around(
            "unknown_leases", (worker, known), lambda: self.inner.unknown_leases(worker, known)
        )

    # -- reads -----------------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        return await self.around("get", (ids,), lambda: self.inner.get(ids, tenant=tenant))

    async def group(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[GroupState | None]:
        return await self.around("group", (ids,), lambda: self.inner.group(ids, tenant=tenant))

    async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
        return await self.around("ended", (items, groups), lambda: self.inner.ended(items, groups))

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
        return await self.around(
            "list",
            (where,),
            lambda: self.inner.list(
                where, limit=limit, cursor=cursor, oldest_first=oldest_first, history=history, reach=reach
            ),
        )

    async def counts(self, *, tenant: str | None = None, ended: bool = False) -> Sequence[Count]:
        return await self.around("counts", (), lambda: self.inner.counts(tenant=tenant, ended=ended))

    async def workers(self) -> Sequence[WorkerState]:
        return await self.around("workers", (), self.inner.workers)

    # -- operators -------------------------------------------------------------------------------------

    async def cancel(
        self,
        ids: Sequence[str],
        *,
        tenant: str | None = None,
        only_open: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        call = partial(self.inner.cancel, ids, tenant=tenant, only_open=only_open, note=note)
        return await self.around("cancel", (ids,), call)

    async def complete(
        self, id: str, result: bytes | None, *, tenant: str | None = None, note: AuditNote | None = None
    ) -> Changed:
        return await self.around(
            "complete", (id, result), lambda: self.inner.complete(id, result, tenant=tenant, note=note)
        )

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
        return await self.around(
            "requeue",
            (where,),
            lambda: self.inner.requeue(
                where,
                tenant=tenant,
                limit=limit,
                redrives=redrives,
                backoff=backoff,
                alone=alone,
                cancelled=cancelled,
                note=note,
            ),
        )

    async def update(
        self,
        ids: Sequence[str],
        changes: ItemUpdate,
        *,
        tenant: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        return await self.around(
            "update", (ids, changes), lambda: self.inner.update(ids, changes, tenant=tenant, note=note)
        )

    async def trigger(
        self, ids: Sequence[str], *, tenant: str | None = None, note: AuditNote | None = None
    ) -> Changed:
        return await self.around("trigger", (ids,), lambda: self.inner.trigger(ids, tenant=tenant, note=note))

    async def delete(
        self,
        group_ids: Sequence[str],
        *,
        tenant: str | None = None,
        cascade: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        return await self.around(
            "delete",
            (group_ids,),
            lambda: self.inner.delete(group_ids, tenant=tenant, cascade=cascade, note=note),
        )

    async def pause(
        self,
        queue: str,
        paused: bool = True,
        *,
        tenant: str | None = None,
        note: AuditNote | None = None,
    ) -> None:
        await self.around(
            "pause", (queue, paused), lambda: self.inner.pause(queue, paused, tenant=tenant, note=note)
        )

    async def paused(self) -> Sequence[tuple[str, str | None]]:
        return await self.around("paused", (), self.inner.paused)

    async def prune(self, limit: int = 1000) -> int:
        return await self.around("prune", (limit,), lambda: self.inner.prune(limit))

    # -- coordination ----------------------------------------------------------------------------------

    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        return await self.around(
            "claim_key", (key, owner, ttl), lambda: self.inner.claim_key(key, owner, ttl, tenant=tenant)
        )

    async def key_owner(self, key: str, *, tenant: str) -> str | None:
        return await self.around("key_owner", (key,), lambda: self.inner.key_owner(key, tenant=tenant))

    async def take_permits(
        self, requests: Sequence[PermitRequest], *, worker: str = ""
    ) -> Sequence[PermitReply]:
        return await self.around(
            "take_permits", (requests,), lambda: self.inner.take_permits(requests, worker=worker)
        )

    async def return_permits(self, requests: Sequence[PermitRequest], *, worker: str) -> None:
        await self.around(
            "return_permits", (requests,), lambda: self.inner.return_permits(requests, worker=worker)
        )

    async def keep_permits(self, held: Sequence[PermitRequest], counted: int, *, worker: str) -> int:
        return await self.around(
            "keep_permits", (held, counted), lambda: self.inner.keep_permits(held, counted, worker=worker)
        )

    async def put_schedule(self, schedule: Schedule, *, again: bool = False) -> Schedule:
        return await self.around(
            "put_schedule", (schedule,), lambda: self.inner.put_schedule(schedule, again=again)
        )

    async def schedules(self) -> Sequence[Schedule]:
        return await self.around("schedules", (), self.inner.schedules)

    async def drop_schedule(self, name: str, *, note: AuditNote | None = None) -> bool:
        return await self.around("drop_schedule", (name,), lambda: self.inner.drop_schedule(name, note=note))

    async def pause_schedule(self, name: str, paused: bool, *, note: AuditNote | None = None) -> bool:
        return await self.around(
            "pause_schedule", (name, paused), lambda: self.inner.pause_schedule(name, paused, note=note)
        )

    async def fire(self, fire: Fire) -> tuple[Submitted, ...] | Rejected | None:
        return await self.around("fire", (fire,), lambda: self.inner.fire(fire))

    # -- transactions ----------------------------------------------------------------------------------

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[Transaction]:
        manager = self.inner.transaction()
        transaction = await self._begin(manager)
        wrapped, committing = WrappedTransaction(transaction, self), False

        async def commit() -> None:
            nonlocal committing
            committing = True
            await manager.__aexit__(None, None, None)

        try:
            yield wrapped
            await self.around("commit", (wrapped.settlements,), commit)
        except BaseException as error:
            if not committing:
                await manager.__aexit__(type(error), error, error.__traceback__)
            raise

    async def _begin(self, manager: AbstractAsyncContextManager[Transaction]) -> Transaction:
        """Begin a transaction. If its answer is lost, roll it back."""
        begun = False

        async def begin() -> Transaction:
            nonlocal begun
            transaction = await manager.__aenter__()
            begun = True
            return transaction

        try:
            return await self.around("begin", (), begin)
        except BaseException as error:
            if begun:
                await manager.__aexit__(type(error), error, error.__traceback__)
            raise

    # -- wake-ups ---------------------------------------------------------------------------------------

    async def publish(self, wake: Wake) -> None:
        await self.around("publish", (wake,), lambda: self.inner.publish(wake))

    async def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        return await self.around("subscribe", (receive,), lambda: self.inner.subscribe(receive))

    async def now(self) -> float:
        return await self.around("now", (), self.inner.now)


VERBS: frozenset[str] = frozenset(
    name
    for name in vars(Backend)
    if not name.startswith("_") and name not in ("heartbeat_connection", "transaction", "capabilities")
) | {
    *("begin", "settle_within", "submit_within", "get_within", "claim_key_within", "commit"),
    "heartbeat_connection",
}
"""The verbs that `around` is called for."""
