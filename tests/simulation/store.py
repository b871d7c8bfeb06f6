"""The store of the simulated fleet: a memory backend that passes every call and its answer to the checker. A
step may write in a transaction of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from tests.simulation.checker import Checker
from treadle.backend import Transaction
from treadle.backends.memory import MemoryBackend
from treadle.errors import StoreUnavailable
from treadle.item import (
    Changed,
    Claim,
    Demand,
    Ended,
    Filter,
    Fire,
    Heartbeat,
    HeartbeatReply,
    ItemState,
    ItemUpdate,
    Lease,
    Loss,
    Order,
    PermitReply,
    PermitRequest,
    Record,
    Ref,
    Rejected,
    Schedule,
    Settled,
    Settlement,
    Signal,
    Signalled,
    Submission,
    Submitted,
)
from treadle.testing.recorded import RecordedTransaction


class CheckedStore(MemoryBackend):
    capabilities = MemoryBackend.capabilities | {"transactions"}
    checker: Checker

    def _check_step(self, verb: str, *args: Any) -> None:
        self.checker.check_step(verb, self.store.now(), *args)

    async def submit(
        self, submissions: Sequence[Submission], *, tx: object = None
    ) -> Sequence[tuple[Submitted, ...] | Rejected]:
        answer = await super().submit(submissions, tx=tx)
        self._check_step("submit", submissions, answer)
        return answer

    async def claim(self, demand: Demand) -> Claim:
        answer = await super().claim(demand)
        self._check_step("claim", demand, answer)
        return answer

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        answer = await super().beat(beat)
        self._check_step("beat", beat, answer)
        return answer

    async def begin(self, leases: Sequence[Lease]) -> Mapping[int, Loss]:
        answer = await super().begin(leases)
        self._check_step("begin", leases, answer)
        return answer

    async def remove_worker(self, worker: str) -> int:
        answer = await super().remove_worker(worker)
        self._check_step("remove_worker", worker, answer)
        return answer

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        answer = await super().settle(settlements)
        self._check_step("settle", settlements, answer)
        return answer

    async def record(self, records: Sequence[Record]) -> Sequence[Loss | None]:
        answer = await super().record(records)
        self._check_step("record", records, answer)
        return answer

    async def signal(
        self, signals: Sequence[Signal], *, tenant: str | None = None, **noted: Any
    ) -> Sequence[Signalled]:
        answer = await super().signal(signals, tenant=tenant, **noted)
        self._check_step("signal", signals, tenant, answer)
        return answer

    async def take_permits(
        self, requests: Sequence[PermitRequest], *, worker: str = ""
    ) -> Sequence[PermitReply]:
        answer = await super().take_permits(requests, worker=worker)
        self._check_step("take_permits", requests, answer)
        return answer

    async def unknown_leases(self, worker: str, known: Sequence[int]) -> Sequence[Lease]:
        answer = await super().unknown_leases(worker, known)
        self._check_step("unknown_leases", worker, known, answer)
        return answer

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        answer = await super().get(ids, tenant=tenant)
        self._check_step("get", ids, tenant, answer)
        return answer

    async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
        answer = await super().ended(items, groups)
        self._check_step("ended", answer)
        return answer

    async def cancel(self, ids: Sequence[str], *, tenant: str | None = None, **noted: Any) -> Changed:
        answer = await super().cancel(ids, tenant=tenant, **noted)
        self._check_step("cancel", ids, tenant, answer)
        return answer

    async def complete(
        self, id: str, result: bytes | None, *, tenant: str | None = None, **noted: Any
    ) -> Changed:
        answer = await super().complete(id, result, tenant=tenant, **noted)
        self._check_step("complete", id, result, tenant, answer)
        return answer

    async def requeue(
        self, where: Sequence[str] | Filter, *, tenant: str | None = None, **how: Any
    ) -> Changed:
        answer = await super().requeue(where, tenant=tenant, **how)
        alone, cancelled = how.get("alone", False), how.get("cancelled", False)
        self._check_step("requeue", where, tenant, answer, alone, cancelled, how.get("from_step"))
        return answer

    async def trigger(self, ids: Sequence[str], *, tenant: str | None = None, **noted: Any) -> Changed:
        answer = await super().trigger(ids, tenant=tenant, **noted)
        self._check_step("trigger", ids, tenant, answer)
        return answer

    async def update(
        self, ids: Sequence[str], changes: ItemUpdate, *, tenant: str | None = None, **noted: Any
    ) -> Changed:
        answer = await super().update(ids, changes, tenant=tenant, **noted)
        self._check_step("update", ids, changes, tenant, answer)
        return answer

    async def order(self, order: Order, **noted: Any) -> bool:
        changed = await super().order(order, **noted)
        self._check_step("order", order, True)
        return changed

    async def withdraw(self, order: Order, **noted: Any) -> bool:
        changed = await super().withdraw(order, **noted)
        self._check_step("order", order, False)
        return changed

    async def delete(
        self, group_ids: Sequence[str], *, tenant: str | None = None, cascade: bool = False, **noted: Any
    ) -> Changed:
        answer = await super().delete(group_ids, tenant=tenant, cascade=cascade, **noted)
        self._check_step("delete", answer)
        return answer

    async def prune(self, limit: int = 1000) -> int:
        answer = await super().prune(limit)
        self._check_step("prune", answer)
        return answer

    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        answer = await super().claim_key(key, owner, ttl, tenant=tenant)
        self._check_step("claim_key", key, owner, ttl, tenant, answer)
        return answer

    async def put_schedule(self, schedule: Schedule, *, again: bool = False) -> Schedule:
        answer = await super().put_schedule(schedule, again=again)
        self._check_step("put_schedule", schedule, answer)
        return answer

    async def drop_schedule(self, name: str, **noted: Any) -> bool:
        answer = await super().drop_schedule(name, **noted)
        self._check_step("drop_schedule", name)
        return answer

    async def fire(self, fire: Fire) -> tuple[Submitted, ...] | Rejected | None:
        answer = await super().fire(fire)
        self._check_step("fire", fire, answer)
        return answer

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[Transaction]:
        transaction = SimTransaction(self, None)
        yield transaction
        await transaction.commit()
        self._check_step("committed", [one.arguments for one in transaction.connection.statements])


class SimTransaction(RecordedTransaction):
    """The transaction of a step. The store holds no lock for it: its commit fails if its lease is lost."""

    async def commit(self) -> None:
        if any(await self._memory.record([Record(lease=record.lease) for record in self._recorded])):
            raise StoreUnavailable("simulated: a transaction could not be committed")
        await super().commit()
