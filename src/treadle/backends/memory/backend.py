"""MemoryBackend: the storage contract on plain tables in this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import cast

from msgspec.structs import replace

from treadle.backend import CAPABILITIES, HeartbeatConnection, Transaction, unknown_move
from treadle.base.timing import Clock, SystemClock
from treadle.errors import UnsupportedError
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
from treadle.store.rules.records import noted_change
from treadle.store.wakeups import WakeReceivers

from . import claim, moving, operate, orders, read, records, schedules, settle, steps, submit, watch, workers
from .operate import RequeueOptions, requeue
from .records import add_stats, noted, read_samples, read_stats
from .tables import MemoryTables
from .tenant_moves import MemoryTenantMoves


class MemoryBackend:
    """Items in the memory of this process: quick, fair, exact, and lost when the process ends.

    Apps that are given the same `MemoryBackend` share its items, like a fleet in one process. No verb waits
    once it has begun, so each is atomic on its event loop. Threads must not share a backend. `clock.now()` is
    the store's clock.
    """

    capabilities = CAPABILITIES | {"parts", "tenant_moves"}
    answers_at_once = ("submit", "claim", "settle")
    carries_results = True

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self.store = MemoryTables(self._clock)
        """While it is marked, a `MarkedTables`, which refuses every verb."""
        self._mark: StoreMark | None = None
        self._marked: MemoryTables | None = None
        """The tables behind the mark."""
        self._owned = ""
        """The last move that was owned."""
        self._receivers = WakeReceivers()

    def __del__(self) -> None:
        if "_marked" in self.__dict__:
            (self._marked or self.store).cut_all()

    @property
    def address(self) -> str:
        return "memory://"

    async def open(self) -> None:
        if self._mark is not None:
            raise moving.refusal(self._mark)

    async def close(self) -> None:
        """Keeps all items: other apps may share the backend."""

    def abandon(self) -> None:
        self._receivers.abandon()

    def heartbeat_connection(self) -> HeartbeatConnection:
        return workers.MemoryHeartbeatConnection(lambda: self.store)

    # -- the path of work ------------------------------------------------------------------------------

    async def submit(
        self, submissions: Sequence[Submission], *, tx: object = None
    ) -> Sequence[tuple[Submitted, ...] | Rejected]:
        if tx is not None:
            raise UnsupportedError("transactions", "MemoryBackend")
        return submit.submit(self.store, submissions, self.store.now())

    async def claim(self, demand: Demand) -> Claim:
        return claim.claim(self.store, demand, self.store.now())

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        return workers.beat(self.store, beat, self.store.now())

    async def begin(self, leases: Sequence[Lease]) -> Mapping[int, Loss]:
        return workers.begin(self.store, leases)

    async def remove_worker(self, worker: str) -> int:
        found = self.store.workers.get(worker)
        return 0 if found is None else workers.remove_worker(self.store, found, self.store.now())

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        return settle.settle(self.store, settlements, self.store.now())

    async def record(self, records: Sequence[Record]) -> Sequence[Loss | None]:
        return steps.record(self.store, records, self.store.now())

    async def unknown_leases(self, worker: str, known: Sequence[int]) -> Sequence[Lease]:
        return workers.unknown_leases(self.store, worker, known)

    # -- reads -----------------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        rows = [self.store.find(tenant, id) for id in ids]
        return [None if row is None else read.full_state(self.store, row) for row in rows]

    async def group(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[GroupState | None]:
        groups = [self.store.find_group(tenant, id) for id in ids]
        return [None if group is None else read.group_state(group) for group in groups]

    async def steps(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[Recorded | None]:
        rows = [self.store.find(tenant, id) for id in ids]
        return [None if row is None else steps.recorded(row) for row in rows]

    async def stream(
        self, id: str, *, since: int = 0, limit: int = 1000, tenant: str | None = None
    ) -> Sequence[Chunk]:
        return steps.stream(self.store.find(tenant, id), since, limit)

    async def logs(self, id: str, *, tenant: str | None = None) -> Sequence[bytes]:
        row = self.store.find(tenant, id)
        return [] if row is None or row.logs is None else [*row.logs.values()]

    async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
        return read.ended(self.store, items, groups)

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
        return read.list_items(
            self.store, where, limit, cursor, oldest_first=oldest_first, history=history, reach=reach
        )

    async def counts(self, *, tenant: str | None = None, ended: bool = False) -> Sequence[Count]:
        return read.counts(self.store, tenant, ended=ended)

    async def workers(self) -> Sequence[WorkerState]:
        return workers.list_workers(self.store)

    # -- reads for operators ---------------------------------------------------------------------------

    async def explain(self, id: str, *, tenant: str | None = None) -> Explanation | None:
        return watch.explain(self.store, id, tenant, self.store.now())

    async def overview(
        self, *, tenant: str | None = None, quick: bool = False, brief: bool = False
    ) -> Overview:
        return watch.overview(self.store, tenant, self.store.now())

    async def limits(self, names: Sequence[str] | None = None, *, count: int = 500) -> Sequence[LimitUse]:
        return watch.limits(self.store, names, count, self.store.now())

    async def marks(
        self,
        *,
        tenant: str | None = None,
        count: int = 100,
        cap: int = 10_000,
        release: str | None = None,
    ) -> Sequence[DeadMark]:
        return watch.marks(self.store, tenant, count, cap)

    async def lines(
        self, queue: str, *, tenant: str | None = None, count: int = 200, cap: int = 1000
    ) -> Sequence[Line]:
        return watch.ready_lines(self.store, queue, tenant, count, cap)

    async def related(self, id: str, *, tenant: str | None = None, count: int = 100) -> Related | None:
        return watch.related(self.store, id, tenant, count)

    async def groups(
        self, where: GroupFilter, *, limit: int = 100, cursor: str | None = None, reach: int | None = None
    ) -> Page[GroupSummary]:
        return read.list_groups(self.store, where, limit, cursor, reach)

    async def workflows(
        self, where: GroupFilter, *, limit: int = 100, cursor: str | None = None, reach: int | None = None
    ) -> Page[GroupSummary]:
        return read.list_workflows(self.store, where, limit, cursor, reach)

    # -- records for operators -------------------------------------------------------------------------

    async def add_stats(self, stats: Sequence[Stat]) -> None:
        add_stats(self.store, stats)

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
        return read_stats(self.store, since, until, step, by, type, queue)

    async def put_samples(self, samples: Sequence[BacklogSample]) -> None:
        for each in samples:
            self.store.samples[each.step][each.at, each.queue] = each

    async def samples(
        self,
        since: float,
        *,
        until: float | None = None,
        step: int = MINUTE,
        queues: Sequence[str] | None = None,
    ) -> Sequence[BacklogSample]:
        return read_samples(self.store, since, until, step, queues)

    async def schedule_runs(self, *, count: int = 30) -> Sequence[ScheduleRun]:
        return schedules.read_runs(self.store, count)

    async def audits(
        self,
        *,
        tenant: str | None = None,
        bulk: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AuditPage:
        return records.audits(self.store, tenant, bulk, limit, cursor)

    async def drain_worker(self, worker: str, *, note: AuditNote | None = None) -> bool:
        return noted(self.store, workers.drain(self.store, worker), note, "drain_worker", [worker])

    # -- operators -------------------------------------------------------------------------------------

    async def cancel(
        self,
        ids: Sequence[str],
        *,
        tenant: str | None = None,
        only_open: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        changed = operate.cancel(self.store, ids, tenant, self.store.now(), only_open=only_open)
        return noted(self.store, changed, note, "cancel", ids, tenant)

    async def complete(
        self, id: str, result: bytes | None, *, tenant: str | None = None, note: AuditNote | None = None
    ) -> Changed:
        changed = operate.complete(self.store, id, result, tenant, self.store.now())
        return noted(self.store, changed, note, "complete", [id], tenant)

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
        now = self.store.now()
        options = RequeueOptions(limit, redrives, backoff, alone, cancelled, from_step)
        return noted(
            self.store, requeue(self.store, where, tenant, options, now), note, "requeue", where, tenant
        )

    async def update(
        self,
        ids: Sequence[str],
        changes: ItemUpdate,
        *,
        tenant: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        changed = operate.update(self.store, ids, changes, tenant, self.store.now())
        return noted(self.store, changed, note, "update", ids, tenant)

    async def trigger(
        self, ids: Sequence[str], *, tenant: str | None = None, note: AuditNote | None = None
    ) -> Changed:
        changed = operate.trigger(self.store, ids, tenant, self.store.now())
        return noted(self.store, changed, note, "trigger", ids, tenant)

    async def hold(
        self,
        ids: Sequence[str],
        held: bool = True,
        *,
        tenant: str | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        changed = operate.hold(self.store, ids, held, tenant, self.store.now())
        return noted(self.store, changed, note, "hold" if held else "unhold", ids, tenant)

    async def signal(
        self,
        signals: Sequence[Signal],
        *,
        tenant: str | None = None,
        tx: object = None,
        note: AuditNote | None = None,
    ) -> Sequence[Signalled]:
        if tx is not None:
            raise UnsupportedError("transactions", "MemoryBackend")
        answers = steps.signal(self.store, signals, tenant, self.store.now())
        stored = sum(answer.verb == "stored" for answer in answers)
        change = noted_change(note, "signal", tenant, [one.id for one in signals]) if stored else None
        if change is not None:
            records.record(self.store, change, stored)
        return answers

    async def delete(
        self,
        group_ids: Sequence[str],
        *,
        tenant: str | None = None,
        cascade: bool = False,
        note: AuditNote | None = None,
    ) -> Changed:
        changed = operate.delete(self.store, group_ids, tenant, cascade=cascade)
        return noted(self.store, changed, note, "delete", group_ids, tenant)

    async def order(self, order: Order, *, note: AuditNote | None = None) -> bool:
        changed = orders.put(self.store, order, self.store.now())
        return noted(self.store, changed, note, order.verb, [order.about], order.tenant)

    async def withdraw(self, order: Order, *, note: AuditNote | None = None) -> bool:
        changed = orders.withdraw(self.store, order, self.store.now())
        return noted(self.store, changed, note, order.undo, [order.about], order.tenant)

    async def orders(self) -> Orders:
        return orders.read(self.store, self.store.now())

    async def prune(self, limit: int = 1000) -> int:
        return operate.prune(self.store, limit, self.store.now())

    # -- coordination ----------------------------------------------------------------------------------

    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        return self.store.claimed_keys.claim((tenant, key), owner, ttl, self.store.now())

    async def key_owner(self, key: str, *, tenant: str) -> str | None:
        return self.store.claimed_keys.owner((tenant, key), self.store.now())

    async def take_permits(
        self, requests: Sequence[PermitRequest], *, worker: str = ""
    ) -> Sequence[PermitReply]:
        now = self.store.now()
        holder = self.store.workers.get(worker)
        return [self.store.limits.take_permits(request, holder, now) for request in requests]

    async def return_permits(self, requests: Sequence[PermitRequest], *, worker: str) -> None:
        holder = self.store.workers.get(worker)
        if holder is not None:
            for request in requests:
                self.store.limits.return_permits(request, holder)

    async def keep_permits(self, held: Sequence[PermitRequest], counted: int, *, worker: str) -> int:
        holder = self.store.workers.get(worker)
        return 0 if holder is None else self.store.limits.keep_permits(held, counted, holder)

    async def put_schedule(self, schedule: Schedule, *, again: bool = False) -> Schedule:
        return schedules.put(self.store, schedule, self.store.now(), again=again)

    async def schedules(self) -> Sequence[Schedule]:
        return sorted(self.store.schedules.values(), key=lambda schedule: schedule.name)

    async def drop_schedule(self, name: str, *, note: AuditNote | None = None) -> bool:
        dropped = schedules.drop(self.store, name, self.store.now())
        return noted(self.store, dropped, note, "cancel_schedule", [name])

    async def pause_schedule(self, name: str, paused: bool, *, note: AuditNote | None = None) -> bool:
        found = schedules.pause(self.store, name, paused=paused)
        return noted(self.store, found, note, "pause_schedule" if paused else "resume_schedule", [name])

    async def fire(self, fire: Fire) -> tuple[Submitted, ...] | Rejected | None:
        return schedules.fire(self.store, fire, self.store.now())

    # -- moving ----------------------------------------------------------------------------------------

    async def mark(self) -> StoreMark | None:
        return self._mark

    @asynccontextmanager
    async def export(
        self, *, freeze: float | None = None, move: str | None = None, tenant: str | None = None
    ) -> AsyncGenerator[moving.MemoryExport]:
        mark = self._mark
        if mark is not None and (move is None or not mark.is_of(move)):
            raise moving.refusal(mark)
        store = self._marked or self.store
        reading = moving.MemoryExport(store, tenant, frozen=freeze is not None and mark is None)
        if freeze is None or mark is not None:
            yield reading
            return
        self._set_mark(StoreMark(state="frozen", move="", until=store.now() + freeze), store)
        try:
            yield reading
        finally:
            self._set_mark(reading.mark, store)

    @asynccontextmanager
    async def import_(
        self, move: str, source: str = "", *, tenant: str | None = None
    ) -> AsyncGenerator[moving.MemoryImport]:
        if tenant is not None:
            yield moving.MemoryPartImport(self._clock, lambda: self.store, tenant)
            return
        if self._mark is not None and not self._mark.gives_way(source):
            raise moving.refusal(self._mark)
        if self._mark is None:
            moving.check_empty(self.store, self.address)
        mark = StoreMark(state="importing", move=move, source=source)
        filled = moving.MemoryImport(self._clock, lambda one: self._marked is one.store, self._set_whole)
        self._set_mark(mark, filled.store)
        yield filled

    def _set_whole(self) -> None:
        assert self._mark is not None
        self._set_mark(replace(self._mark, whole=True), self._marked)

    async def own(self, move: str) -> None:
        if self._mark is None:
            if self._owned != move:
                raise unknown_move(self.address, move)
            return
        if not (self._mark.is_of(move) and self._mark.whole):
            raise moving.refusal(self._mark)
        self._set_mark(None, self._marked)
        self._owned = move

    async def discard(self, move: str) -> None:
        if self._mark is not None and self._mark.is_of(move):
            self._set_mark(None, MemoryTables(self._clock))

    async def take_back(self, move: str) -> None:
        if self._mark is None or not self._mark.is_moved_by(move):
            raise unknown_move(self.address, move)
        self._set_mark(None, self._marked)

    async def identity(self) -> str | None:
        return self.address

    @property
    def tenant_moves(self) -> MemoryTenantMoves:
        return MemoryTenantMoves(lambda: self.store, self._clock)

    def _set_mark(self, mark: StoreMark | None, tables: MemoryTables | None) -> None:
        assert tables is not None
        self._mark, self._marked = mark, None if mark is None else tables
        self.store = tables if mark is None else cast(MemoryTables, moving.MarkedTables(mark))

    # -- transactions ----------------------------------------------------------------------------------

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        raise UnsupportedError("transactions", "MemoryBackend")

    # -- wake-ups --------------------------------------------------------------------------------------

    async def publish(self, wake: Wake) -> None:
        self._receivers.deliver(wake)

    async def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        return self._receivers.add(receive)

    async def now(self) -> float:
        return self.store.now()
