"""SqliteBackend: the storage contract on one file, shared by any number of processes of one machine."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Concatenate, ParamSpec, TypeVar

from treadle.backend import CAPABILITIES, HeartbeatConnection, Transaction
from treadle.errors import BackendError, NotStarted, StoreFull
from treadle.item import (
    AuditNote,
    Changed,
    Chunk,
    Claim,
    Count,
    Demand,
    Ended,
    Filter,
    Fire,
    GroupFilter,
    GroupState,
    GroupSummary,
    Heartbeat,
    HeartbeatReply,
    ItemState,
    ItemUpdate,
    Lease,
    Loss,
    Order,
    Orders,
    Page,
    PermitReply,
    PermitRequest,
    Record,
    Recorded,
    Ref,
    Rejected,
    Schedule,
    Settled,
    Settlement,
    Signal,
    Signalled,
    Submission,
    Submitted,
    Wake,
    WorkerState,
)
from treadle.item_facts import DeadMark, Explanation, LimitUse, Overview
from treadle.records import (
    MINUTE,
    AuditPage,
    BacklogSample,
    Line,
    Related,
    ScheduleRun,
    Stat,
    StatsBy,
    StoreMark,
)
from treadle.store.rules.records import NotedChange, noted_change

from . import (
    claim,
    limits,
    operate,
    orders,
    read,
    records,
    retention,
    schedules,
    settle,
    steps,
    submit,
    transactions,
    watch,
    workers,
)
from .database import OpenDatabase, SqliteDatabase
from .lists import list_groups, list_items, list_workflows
from .moving import MovingStore, SqliteExport, SqliteImport
from .records import add_stats, put_samples, read_samples, read_stats
from .statements import Tx
from .tenant_moves import SqliteTenantMoves
from .transactions import call_with_connection
from .watch import ready_lines

T = TypeVar("T")
A = TypeVar("A", Changed, bool)
P = ParamSpec("P")

_FEW = 4
_SMALL = 16 * 2**10
"""What the thread of a caller may write: this many items (a claim: if the last one brought no more), and
inputs and results of fewer bytes."""
_CHECK_ROOM_EVERY = 1.0
"""Seconds between two looks at the free bytes of the disk."""


class SqliteBackend(SqliteDatabase):
    """Work in a SQLite file.

    `clock.now()` is the store's clock. All processes on one file must agree about the time.
    `durability="full"`: answered calls survive a loss of power. `"normal"`: they survive the death of the
    process, but a loss of power may undo the last moments. Commits are several times faster.
    `apply_schema=False`: the schema must exist already (see `schema_sql`).
    `busy_timeout`: seconds that a verb waits while others write, before it raises `StoreUnavailable`.
    `reserve`: new work is refused (`StoreFull`) when the disk has fewer free bytes than this, so that running
    items can still be settled.
    """

    capabilities = CAPABILITIES | {"transactions", "parts", "tenant_moves"}
    answers_at_once = ("publish",)

    @property
    def address(self) -> str:
        return f"sqlite:///{self._path}"

    def heartbeat_connection(self) -> HeartbeatConnection:
        """It writes through this backend's writer thread, which no event loop can block."""
        return SqliteHeartbeatConnection(self)

    # -- using the file ------------------------------------------------------------------------------

    def _write(
        self, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """Have the writer thread execute a verb. The result comes after the commit."""
        return self._using().writer.call(verb, args, kwargs)

    def _read(self, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Have the reader thread execute a verb."""
        return self._using().reader.call(verb, args, kwargs)

    def _count(
        self, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """The same for a verb that takes longer the more items there are: the thread that counts."""
        return self._using().counter.call(verb, args, kwargs)

    def _check_room(self) -> None:
        """`StoreFull` if the disk is nearly full: settling needs room too."""
        now = time.monotonic()
        if now < self._room_until:
            return
        path = self._using().path
        free = shutil.disk_usage(path.parent).free
        if free < self._reserve:
            raise StoreFull(f"the disk of {path} has {free} bytes left: new work is refused, free some space")
        self._room_until = now + _CHECK_ROOM_EVERY

    def _using(self) -> OpenDatabase:
        if self._open is None:
            raise NotStarted("the SQLite backend")
        if self._open.pid != os.getpid():
            raise BackendError(
                f"{self._open.path} was opened before this process was forked: open a backend of its own here"
            )
        return self._open

    # -- the path of work ------------------------------------------------------------------------------

    async def submit(
        self, submissions: Sequence[Submission], *, tx: object = None
    ) -> Sequence[tuple[Submitted, ...] | Rejected]:
        self._check_room()
        if tx is not None:
            path, now = self._using().path, self._clock.now()
            return await call_with_connection(
                tx, lambda connection: transactions.submit_within(connection, submissions, path, now)
            )
        if len(submissions) == 1 and _is_lone(submissions[0]):
            found = self._using().writer.execute_here(submit.submit, submissions)
            if found is not None:
                return found
        return await self._write(submit.submit, submissions)

    async def claim(self, demand: Demand) -> Claim:
        opened = self._using()
        found = None
        if self._claimed <= _FEW:
            found = opened.writer.execute_here(claim.claim, demand, opened.directory)
        if found is None:
            found = await self._write(claim.claim, demand, opened.directory)
        self._claimed = len(found.leases)
        return found

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        opened = self._using()
        reply = opened.transactions.postpone(beat)
        if reply is None:
            reply = await opened.writer.call(workers.beat, (beat, opened.directory), {}, urgent=True)
        return reply

    async def begin(self, leases: Sequence[Lease]) -> Mapping[int, Loss]:
        return await self._write(workers.begin, leases)

    async def remove_worker(self, worker: str) -> int:
        return await self._write(workers.remove_worker, worker)

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        if len(settlements) <= _FEW and all(map(_is_short, settlements)):
            found = self._using().writer.execute_here(settle.settle_few, settlements)
            if found is not None:
                return found
        return await self._write(settle.settle, settlements)

    async def record(self, records: Sequence[Record]) -> Sequence[Loss | None]:
        return await self._write(settle.record, records)

    async def unknown_leases(self, worker: str, known: Sequence[int]) -> Sequence[Lease]:
        return await self._write(workers.unknown_leases, worker, known)

    # -- reads -----------------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        return await self._read(read.get, ids, tenant)

    async def group(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[GroupState | None]:
        return await self._read(read.group, ids, tenant)

    async def steps(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[Recorded | None]:
        return await self._read(steps.steps, ids, tenant)

    async def stream(
        self, id: str, *, since: int = 0, limit: int = 1000, tenant: str | None = None
    ) -> Sequence[Chunk]:
        return await self._read(steps.stream, id, tenant, since, limit)

    async def logs(self, id: str, *, tenant: str | None = None) -> Sequence[bytes]:
        return await self._read(steps.logs, id, tenant)

    async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
        return await self._read(read.ended, items, groups)

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
        return await self._read(
            list_items, where, limit, cursor, oldest_first=oldest_first, history=history, reach=reach
        )

    async def counts(self, *, tenant: str | None = None, ended: bool = False) -> Sequence[Count]:
        return await self._count(read.counts, tenant, with_ended=ended)

    async def workers(self) -> Sequence[WorkerState]:
        return await self._read(workers.workers)

    # -- reads for operators ---------------------------------------------------------------------------

    async def explain(self, id: str, *, tenant: str | None = None) -> Explanation | None:
        return await self._read(watch.explain, id, tenant)

    async def overview(
        self, *, tenant: str | None = None, quick: bool = False, brief: bool = False
    ) -> Overview:
        read = self._read if quick or brief else self._count
        return await read(watch.overview, tenant, quick, 0.0 if brief else None)

    async def limits(self, names: Sequence[str] | None = None, *, count: int = 500) -> Sequence[LimitUse]:
        return await self._read(watch.limits, names, count)

    async def marks(
        self,
        *,
        tenant: str | None = None,
        count: int = 100,
        cap: int = 10_000,
        release: str | None = None,
    ) -> Sequence[DeadMark]:
        return await self._read(watch.marks, tenant, count, cap)

    async def lines(
        self, queue: str, *, tenant: str | None = None, count: int = 200, cap: int = 1000
    ) -> Sequence[Line]:
        return await self._read(ready_lines, queue, tenant, count, cap)

    async def related(self, id: str, *, tenant: str | None = None, count: int = 100) -> Related | None:
        return await self._read(watch.related, id, tenant, count)

    async def groups(
        self, where: GroupFilter, *, limit: int = 100, cursor: str | None = None, reach: int | None = None
    ) -> Page[GroupSummary]:
        return await self._read(list_groups, where, limit, cursor, reach)

    async def workflows(
        self, where: GroupFilter, *, limit: int = 100, cursor: str | None = None, reach: int | None = None
    ) -> Page[GroupSummary]:
        return await self._read(list_workflows, where, limit, cursor, reach)

    # -- records for operators -------------------------------------------------------------------------

    async def add_stats(self, stats: Sequence[Stat]) -> None:
        await self._write(add_stats, stats)

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
        return await self._read(read_stats, since, until, step, by, type, queue)

    async def put_samples(self, samples: Sequence[BacklogSample]) -> None:
        await self._write(put_samples, samples)

    async def samples(
        self,
        since: float,
        *,
        until: float | None = None,
        step: int = MINUTE,
        queues: Sequence[str] | None = None,
    ) -> Sequence[BacklogSample]:
        return await self._read(read_samples, since, until, step, queues)

    async def schedule_runs(self, *, count: int = 30) -> Sequence[ScheduleRun]:
        return await self._read(schedules.schedule_runs, count)

    async def audits(
        self,
        *,
        tenant: str | None = None,
        bulk: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AuditPage:
        return await self._read(records.audits, tenant, bulk, limit, cursor)

    async def drain_worker(self, worker: str, *, note: AuditNote | None = None) -> bool:
        change = noted_change(note, "drain_worker", None, [worker])
        return await self._change(change, workers.drain_worker, worker)

    # -- operators -------------------------------------------------------------------------------------

    async def _change(
        self,
        change: NotedChange | None,
        verb: Callable[Concatenate[Tx, P], A],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> A:
        """Carry out a verb and, if it is noted, store its audit entry in the same transaction."""
        if change is None:
            return await self._write(verb, *arguments, **options)
        return await self._write(records.noted, change, lambda tx: verb(tx, *arguments, **options))

    async def cancel(
        self,
        ids: Sequence[str],
        *,
        tenant: str | None = None,
        only_open: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        change = noted_change(note, "cancel", tenant, ids)
        return await self._change(change, operate.cancel, ids, tenant, only_open=only_open)

    async def complete(
        self, id: str, result: bytes | None, *, tenant: str | None = None, note: AuditNote | None = None
    ) -> Changed:
        change = noted_change(note, "complete", tenant, [id])
        return await self._change(change, operate.complete, id, result, tenant)

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
        from_step: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        return await self._change(
            noted_change(note, "requeue", tenant, where),
            operate.requeue,
            where,
            tenant,
            limit,
            redrives,
            backoff,
            alone=alone,
            cancelled=cancelled,
            from_step=from_step,
        )

    async def update(
        self,
        ids: Sequence[str],
        changes: ItemUpdate,
        *,
        tenant: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        change = noted_change(note, "update", tenant, ids)
        return await self._change(change, operate.update, ids, changes, tenant)

    async def trigger(
        self, ids: Sequence[str], *, tenant: str | None = None, note: AuditNote | None = None
    ) -> Changed:
        return await self._change(noted_change(note, "trigger", tenant, ids), operate.trigger, ids, tenant)

    async def hold(
        self,
        ids: Sequence[str],
        held: bool = True,
        *,
        tenant: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        change = noted_change(note, "hold" if held else "unhold", tenant, ids)
        return await self._change(change, operate.hold, ids, held, tenant)

    async def signal(
        self,
        signals: Sequence[Signal],
        *,
        tenant: str | None = None,
        tx: object = None,
        note: AuditNote | None = None,
    ) -> Sequence[Signalled]:
        self._check_room()
        change = noted_change(note, "signal", tenant, [one.id for one in signals])
        if tx is None:
            return await self._write(steps.signal, signals, tenant, change)
        path, now = self._using().path, self._clock.now()
        return await call_with_connection(
            tx,
            lambda connection: transactions.signal_within(connection, signals, tenant, change, path, now),
        )

    async def delete(
        self,
        group_ids: Sequence[str],
        *,
        tenant: str | None = None,
        cascade: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        change = noted_change(note, "delete", tenant, group_ids)
        return await self._change(change, operate.delete, group_ids, tenant, cascade=cascade)

    async def order(self, order: Order, *, note: AuditNote | None = None) -> bool:
        change = noted_change(note, order.verb, order.tenant, [order.about])
        return await self._change(change, orders.put, order)

    async def withdraw(self, order: Order, *, note: AuditNote | None = None) -> bool:
        change = noted_change(note, order.undo, order.tenant, [order.about])
        return await self._change(change, orders.withdraw, order)

    async def orders(self) -> Orders:
        return await self._read(orders.read)

    async def prune(self, limit: int = 1000) -> int:
        return await self._write(retention.prune, limit)

    # -- coordination ----------------------------------------------------------------------------------

    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        return await self._write(limits.claim_key, key, owner, ttl, tenant)

    async def key_owner(self, key: str, *, tenant: str) -> str | None:
        return await self._read(limits.key_owner, key, tenant)

    async def take_permits(
        self, requests: Sequence[PermitRequest], *, worker: str = ""
    ) -> Sequence[PermitReply]:
        return await self._write(limits.take_permits, requests, worker)

    async def return_permits(self, requests: Sequence[PermitRequest], *, worker: str) -> None:
        await self._write(limits.return_permits, requests, worker)

    async def keep_permits(self, held: Sequence[PermitRequest], counted: int, *, worker: str) -> int:
        return await self._write(limits.keep_permits, held, counted, worker)

    async def put_schedule(self, schedule: Schedule, *, again: bool = False) -> Schedule:
        return await self._write(schedules.put_schedule, schedule, again)

    async def schedules(self) -> Sequence[Schedule]:
        return await self._read(schedules.schedules)

    async def drop_schedule(self, name: str, *, note: AuditNote | None = None) -> bool:
        change = noted_change(note, "cancel_schedule", None, [name])
        return await self._change(change, schedules.drop_schedule, name)

    async def pause_schedule(self, name: str, paused: bool, *, note: AuditNote | None = None) -> bool:
        verb = "pause_schedule" if paused else "resume_schedule"
        change = noted_change(note, verb, None, [name])
        return await self._change(change, schedules.pause_schedule, name, paused)

    async def fire(self, fire: Fire) -> tuple[Submitted, ...] | Rejected | None:
        self._check_room()
        return await self._write(schedules.fire, fire)

    # -- moving ----------------------------------------------------------------------------------------

    @property
    def _moving(self) -> MovingStore:
        return MovingStore(self._path, self._clock, self._patience)

    async def mark(self) -> StoreMark | None:
        return await self._moving.mark()

    def export(
        self, *, freeze: float | None = None, move: str | None = None, tenant: str | None = None
    ) -> AbstractAsyncContextManager[SqliteExport]:
        return self._moving.export(freeze=freeze is not None, move=move, tenant=tenant)

    def import_(
        self, move: str, source: str = "", *, tenant: str | None = None
    ) -> AbstractAsyncContextManager[SqliteImport]:
        return self._moving.import_(move, source, tenant)

    async def own(self, move: str) -> None:
        await self._moving.own(move)

    async def discard(self, move: str) -> None:
        await self._moving.discard(move)

    async def take_back(self, move: str) -> None:
        await self._moving.take_back(move)

    async def identity(self) -> str | None:
        return await self._moving.identity()

    # -- moving tenants --------------------------------------------------------------------------------

    @property
    def tenant_moves(self) -> SqliteTenantMoves:
        return SqliteTenantMoves(self._moving)

    # -- transactions ----------------------------------------------------------------------------------

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._using().transactions.begin()

    # -- wake-ups --------------------------------------------------------------------------------------

    async def publish(self, wake: Wake) -> None:
        if self._open is not None and self._open.pid == os.getpid():
            self._open.wakeups.publish(wake)

    async def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        return self._using().wakeups.subscribe(receive)

    async def now(self) -> float:
        return self._clock.now()


def _is_lone(submission: Submission) -> bool:
    """Whether it is short work to store it."""
    items = submission.items
    return len(items) == 1 and len(items[0].input) < _SMALL and not items[0].after


def _is_short(settlement: Settlement) -> bool:
    """Whether it is short work to apply it."""
    result = settlement.result
    return settlement.log is None and (result is None or len(result) < _SMALL)


class SqliteHeartbeatConnection:
    """Sends heartbeats for a backend from another event loop. It needs no connection of its own: it uses the
    backend's writer thread."""

    def __init__(self, backend: SqliteBackend) -> None:
        self._backend = backend

    async def open(self) -> None:
        pass

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        return await self._backend.beat(beat)

    async def close(self) -> None:
        pass
