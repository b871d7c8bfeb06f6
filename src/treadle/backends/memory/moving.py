"""Moving: all that the tables hold, as records, and tables that are filled from records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NoReturn, assert_never

from treadle.backend import Export, Import
from treadle.base.timing import Clock
from treadle.errors import (
    BackendError,
    InputError,
    StoreMoved,
    StoreNotEmpty,
    StoreUnavailable,
    StoreUnfinished,
)
from treadle.item import KILLING, Chunk, Item
from treadle.records import StoreMark
from treadle.store import portable
from treadle.store.portable import (
    AnyRecord,
    Head,
    LostLease,
    PortableAudit,
    PortableGroup,
    PortableItem,
    PortableKey,
    PortableLease,
    PortableLimit,
    PortableOrder,
    PortableRelease,
    PortableRemoval,
    PortableRun,
    PortableSample,
    PortableSchedule,
    PortableStat,
    PortableWorker,
    leased,
    unleased,
)
from treadle.store.rules.limits import LimitState, idle_at
from treadle.store.rules.orders import order_bytes, read_order
from treadle.store.rules.submission import Dependencies

from . import orders, read
from .claimed_keys import ClaimedKey
from .dependencies import tolerates
from .limits import MemoryLimit, MemoryLimits
from .rows import Mail, MemoryGroup, Row, RowSteps
from .tables import MemoryTables
from .transitions import watch_deadline


class MarkedTables:
    """Stands where the tables were, once they are marked. Every verb begins with a look at them."""

    def __init__(self, mark: StoreMark) -> None:
        self.mark = mark

    def __getattr__(self, name: str) -> NoReturn:
        raise refusal(self.mark)


def refusal(mark: StoreMark) -> Exception:
    """What a marked store raises."""
    match mark.state:
        case "moved":
            return StoreMoved(mark.to)
        case "importing":
            return StoreUnfinished(mark.move, mark.source)
        case "frozen":
            return StoreUnavailable("the store is being moved: try again")
        case _:
            assert_never(mark.state)


# ---------------------------------------------------------------------------------------------------- export


class MemoryExport(Export):
    """Reads a copy: tables in memory are small."""

    def __init__(self, store: MemoryTables, tenant: str | None, *, frozen: bool) -> None:
        self._frozen = frozen
        if tenant is None:
            for arriving in store.arriving:
                raise BackendError(
                    f"the tenant {arriving!r} is on its way into this store: end its move first"
                )
        records = records_of(store, tenant)
        self._records = [portable.encode(record) for record in records if portable.goes_along(record, tenant)]
        self._read = 0
        self.mark: StoreMark | None = None
        """How the freeze ends."""

    async def read(self, limit: int = 1000) -> Sequence[bytes]:
        found = self._records[self._read : self._read + limit]
        self._read += len(found)
        return found

    async def move(self, move: str, to: str, content: str = "") -> None:
        self._end(StoreMark(state="moved", move=move, to=to, content=content))

    async def give_back(self, move: str, source: str) -> None:
        self._end(StoreMark(state="importing", move=move, source=source, whole=True))

    def _end(self, mark: StoreMark) -> None:
        if not self._frozen:
            raise StoreUnavailable("the export is not frozen")
        self.mark = mark


def records_of(
    store: MemoryTables, tenant: str | None = None, *, leases: bool = False
) -> Iterator[AnyRecord]:
    """leases: they go along."""
    now = store.now()
    yield Head(
        store="memory",
        tenant=tenant,
        at=now,
        number=store.number,
        place=store.place,
        token=store.token,
        orders=store.orders_version,
        workers=tuple(worker.id for worker in store.workers.values() if worker.until > now),
    )
    for row in store.rows(None, oldest_first=True):
        yield _item(store, row, now, leases=leases)
    for group in _groups(store):
        yield PortableGroup(
            number=group.number,
            id=group.id,
            tenant=group.tenant,
            type=group.type,
            open=group.open,
            total=group.total,
            failed=group.failed,
            cancelled=group.cancellations,
            version=group.version,
            final=group.final,
            keep=group.keep,
            ended_at=group.ended_at,
            outer=None if group.outer is None else group.outer.number,
            value=group.value,
        )
    if leases:
        yield from _workers(store, tenant)
    yield from _rest(store, now)


def _workers(store: MemoryTables, tenant: str | None) -> Iterator[PortableWorker]:
    for worker in store.workers.values():
        if any(lease.tenant == tenant for lease in worker.held.values()):
            yield PortableWorker(
                id=worker.id,
                until=worker.until,
                lease=worker.lease,
                types=None if worker.types is None else tuple(sorted(worker.types)),
                info=worker.info,
                release=worker.release,
            )


def _groups(store: MemoryTables) -> list[MemoryGroup]:
    """All groups, also those whose ids are in use again since their roots were removed."""
    found = {group.number: group for of_id in store.groups.values() for group in of_id.values()}
    for row in store.log:
        if row.group is not None and not row.gone:
            found[row.group.number] = row.group
    return [group for _, group in sorted(found.items())]


def _item(store: MemoryTables, row: Row, now: float, *, leases: bool) -> PortableItem:
    item, found, is_open = row.item, row.dependencies, row.ended_at is None
    waits = is_open and row.verdict is None
    blocked = waits and row.status == "blocked"
    holds_key = item.key is not None and store.keys.get((row.kind.tenant, row.kind.type, item.key)) is row
    more: dict[str, Any] = {
        "number": row.number,
        "group": row.number if row.group is None else row.group.number,
        "holds_key": holds_key,
        "changed_by": row.changed_by if holds_key else (),
        "keep": item.keep,
        "keep_dead": item.keep_dead,
        "need": item.need,
        "any_end": item.counting == "done",
        "contributes": item.contributes,
        "closes_group": item.closes_group,
        "verdict": row.verdict,
        "place": row.place if waits and not blocked else 0,
        "due": row.due_at,
        "ready_at": row.ready_at if waits and row.status in ("ready", "running") else None,
        "redrives": row.redrives,
        "holds_lane": row.held_lane is not None,
        "suspended": row.suspended,
        "met": found.met if found is not None and blocked else 0,
        "pending": tuple(sorted(found.pending)) if found is not None and blocked else (),
        "contributed": row.group is None and row.contributed,
        "unreleased": row.unreleased and not is_open,
        "failed_group": row.failed_group,
        "logs": tuple((row.logs or {}).values()),
        **_recorded(row.steps),
    }
    record = portable.portable_item(read.full_state(store, row), more)
    if row.status == "running" and row.worker is not None:
        if leases:
            resumes = row.worker.held[row.token].resumes
            return leased(record, PortableLease(row.worker.id, row.token, row.begun, row.started_at, resumes))
        lease = LostLease(row.worker.id, row.worker.release, row.begun, row.started_at, row.overdue)
        return unleased(record, lease, now)
    return record


def _recorded(found: RowSteps | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {
        "steps": tuple(map(portable.portable_step, found.steps.values())),
        "unread": tuple((mail.name, mail.value) for mail in found.mail if not mail.taken),
        "signal_keys": tuple(sorted((mail.name, mail.key) for mail in found.mail if mail.key is not None)),
        "progress": found.progress,
        "progress_at": found.progress_at,
        "chunks": tuple((chunk.number, chunk.at, chunk.value) for chunk in found.chunks),
    }


def _rest(store: MemoryTables, now: float) -> Iterator[AnyRecord]:
    for order in store.orders.values():
        if order.until is None or order.until > now:
            yield PortableOrder(body=order_bytes(order), at=order.at)
    for schedule in store.schedules.values():
        yield portable.portable_schedule(schedule)
    for name, at in store.removed_schedules.items():
        yield PortableRemoval(name=name, at=at)
    for runs in store.schedule_runs.values():
        for run in runs.values():
            yield portable.portable_run(run)
    for (name, algorithm), stored in store.limits.limits.items():
        limit, state = stored.limit, stored.state
        yield portable.portable_limit(name, algorithm, *state, limit.limit, limit.window)
    for key in store.claimed_keys.by_ref.values():
        if key.until > now:
            yield PortableKey(tenant=key.ref[0], key=key.ref[1], owner=key.owner, until=key.until)
    for name, began in store.releases.items():
        yield PortableRelease(name=name, began=began)
    for step, by_time in store.stats.items():
        for stats in by_time.values():
            for stat in stats.values():
                yield portable.portable_stat(step, stat)
    for samples in store.samples.values():
        for sample in samples.values():
            yield portable.portable_sample(sample)
    for entry in store.audits:
        yield portable.portable_audit(entry)


# ---------------------------------------------------------------------------------------------------- import


def check_absent(store: MemoryTables, tenant: str) -> None:
    """`StoreNotEmpty` if there is something of a tenant."""
    rows = store.rows(None, oldest_first=True)
    for found, what in (
        (any(row.kind.tenant == tenant for row in rows), "items"),
        (any(tenant in of_id for of_id in store.groups.values()), "items"),
        (any(key.ref[0] == tenant for key in store.claimed_keys.by_ref.values()), "claimed keys"),
    ):
        if found:
            raise StoreNotEmpty("memory://", f"{what} of {tenant}")


def check_empty(store: MemoryTables, address: str) -> None:
    now = store.now()
    for found, what in (
        (store.items or store.groups, "items"),
        ([worker for worker in store.workers.values() if worker.until > now], "live workers"),
        (store.schedules or store.removed_schedules, "schedules"),
        (store.orders, "orders"),
        (store.audits, "audit entries"),
        (any(store.stats.values()), "statistics"),
        (store.claimed_keys.by_ref, "claimed keys"),
    ):
        if found:
            raise StoreNotEmpty(address, what)


class MemoryImport(Import):
    """Fills tables that no verb sees yet."""

    def __init__(
        self, clock: Clock, is_current: Callable[[MemoryImport], bool], finished: Callable[[], None]
    ) -> None:
        self.store = MemoryTables(clock)
        self._is_current = is_current
        self._finished = finished
        self._rows: dict[int, Row] = {}
        self._records: dict[int, PortableItem] = {}
        self._groups: list[PortableGroup] = []

    async def write(self, records: Sequence[bytes]) -> None:
        self._check()
        for data in records:
            self._write(portable.decode(data))

    async def finish(self) -> None:
        self._check()
        self._connect()
        self._finished()

    def _connect(self) -> None:
        self._connect_groups()
        for number, row in self._rows.items():
            self._place(row, self._records[number])
        self.store.unknown_since[None] = self.store.now()

    def _check(self) -> None:
        if not self._is_current(self):
            raise StoreUnavailable("another import into this store has begun")

    def _write(self, record: AnyRecord) -> None:
        store = self.store
        match record:
            case Head():
                store.number, store.place = record.number, record.place
                store.token, store.orders_version = record.token, record.orders
            case PortableItem():
                self._insert(record)
            case PortableGroup():
                self._groups.append(record)
            case PortableOrder():
                order = read_order(record.body, record.at)
                store.orders[order.subject] = order
                orders.apply(store, order)
            case PortableSchedule():
                store.schedules[record.name] = portable.schedule_of(record)
            case PortableRemoval():
                store.removed_schedules[record.name] = record.at
            case PortableRun():
                store.schedule_runs.setdefault(record.name, {})[record.at] = portable.run_of(record)
            case PortableLimit():
                _add_limit(store.limits, record)
            case PortableKey():
                store.claimed_keys.add(ClaimedKey((record.tenant, record.key), record.owner, record.until))
            case PortableRelease():
                store.releases[record.name] = record.began
            case PortableStat():
                stat = portable.stat_of_record(record)
                store.stats[record.step].setdefault(record.at, {})[record.type, record.queue] = stat
            case PortableSample():
                sample = portable.sample_of(record)
                store.samples[record.step][record.at, record.queue] = sample
            case PortableAudit():
                store.audits.append(portable.audit_of(record))
                store.audit_numbers = count(record.no + 1)
            case PortableWorker():
                raise InputError("a worker is no record of a file")
            case _:
                assert_never(record)

    def _insert(self, record: PortableItem) -> None:
        store = self.store
        item = _item_of(record)
        if store.find(record.tenant, record.id) is not None:
            raise InputError(f"an item is there twice: {record.id}")
        holder = None if item.key is None else store.keys.get((item.tenant, item.type, item.key))
        row = _row_of(record, item, store)
        store.insert(row)
        if item.key is not None and not record.holds_key:
            key = item.tenant, item.type, item.key
            if holder is None:
                del store.keys[key]
            else:
                store.keys[key] = holder
        self._rows[record.number], self._records[record.number] = row, record
        store.number = max(store.number, record.number)
        store.place = max(store.place, record.place)

    def _connect_groups(self) -> None:
        store = self.store
        by_number: dict[int, MemoryGroup] = {}
        for record in self._groups:
            row = self._rows.get(record.number)
            group = MemoryGroup(
                tenant=record.tenant,
                id=record.id,
                type=record.type,
                number=record.number,
                open=record.open,
                total=record.total,
                value=record.value,
                contributed=record.version > 0,
                final=record.final,
                version=record.version,
                ended_at=record.ended_at,
                failed=record.failed,
                cancellations=record.cancelled,
                keep=record.keep,
                closer=row if row is not None and row.item.closes_group else None,
            )
            by_number[record.number] = group
            store.groups.setdefault(group.id, {})[group.tenant] = group
            store.number = max(store.number, record.number)
        for record in self._groups:
            if record.outer is not None:
                group, outer = by_number[record.number], by_number[record.outer]
                group.outer = outer
                outer.nested[group] = None
        for number, row in self._rows.items():
            found = by_number.get(self._records[number].group)
            if found is not None:
                row.group = found
                found.members[row] = None
        for group in by_number.values():
            ended = sorted(
                (row for row in group.members if row.ended_at is not None),
                key=lambda row: (row.ended_at, row.number),
            )
            group.deaths = {row: None for row in ended if row.failed_group}
            group.cancelled = {row: None for row in ended if row.status == "cancelled"}
        for group in by_number.values():
            if group.outer is None:
                store.retention.add_group(group)

    def _place(self, row: Row, record: PortableItem) -> None:
        """Put a row where it is found, as its state says."""
        store = self.store
        if row.ended_at is not None:
            self._place_ended(row)
            return
        if row.item.after:
            times = {name: row.item.after.count(name) for name in record.pending}
            met = record.met if row.status == "blocked" else row.item.need
            row.dependencies = Dependencies(row.item.need, met, sum(times.values()), times)
            for name in row.item.after:
                store.waiters.setdefault((row.kind.tenant, name), {})[row] = None
        if row.losses >= KILLING:
            store.killing[row] = None
        if record.holds_lane:
            store.strict_lanes.hold(row)
        if row.verdict is not None:
            store.doomed.add(row)
            return
        if row.deadline is not None:
            watch_deadline(store, row, row.deadline)
        if row.status == "ready":
            row.kind.line.add(row)
            if record.holds_lane:
                store.strict_lanes.ready[row] = None
        elif row.status == "scheduled":
            store.scheduled.add(row)

    def _place_ended(self, row: Row) -> None:
        store = self.store
        if row.status == "dead":
            store.dead[row] = None
        if row.item.after:
            tolerant, unmet = tolerates(row), row.reason == "unsatisfiable"
            for name in row.item.after:
                if tolerant:
                    store.tolerant.setdefault((row.kind.tenant, name), {})[row] = None
                if unmet:
                    store.unmet.setdefault((row.kind.tenant, name), {})[row] = None
        if row.group is None and row.ended_at is not None:
            store.retention.add_member(row, row.ended_at)


class MemoryPartImport(MemoryImport):
    """Fills tables of its own first, which refuse what does not fit, then those that are in use."""

    leases = False
    """Whether leases come along."""

    def __init__(self, clock: Clock, tables: Callable[[], MemoryTables], tenant: str) -> None:
        super().__init__(clock, lambda _: True, lambda: None)
        self._tables = tables
        self._tenant = tenant
        self._given: list[bytes] = []
        check_absent(tables(), tenant)

    async def write(self, records: Sequence[bytes]) -> None:
        portable.Beside(self._tenant, 0, 0, 0).place(map(portable.decode, records))  # it refuses others
        await super().write(records)
        self._given += records

    async def finish(self) -> None:
        await super().finish()
        store, tenant = self._tables(), self._tenant
        check_absent(store, tenant)
        first_audit = store.audits[-1].no if store.audits else 0
        beside = portable.Beside(tenant, store.number, store.place, first_audit)
        self.store = store
        self._rows.clear()
        self._records.clear()
        self._groups.clear()
        given = [self._fitting(portable.decode(data)) for data in self._given]
        for record in beside.place(portable.renumbered(given)):
            self._write(record)
        self._connect()
        there = records_of(store, tenant, leases=self.leases)
        beside.check(record for record in there if portable.goes_along(record, tenant))

    def _fitting(self, record: AnyRecord) -> AnyRecord:
        """The record as it can come in."""
        return record

    def _write(self, record: AnyRecord) -> None:
        if isinstance(record, Head) and self.store is self._tables():
            self.store.token = max(self.store.token, record.token)
        else:
            super()._write(record)


def _item_of(record: PortableItem) -> Item:
    return Item(
        record.id,
        record.type,
        record.input,
        record.tenant,
        record.queue,
        record.lane,
        record.priority,
        record.attempts,
        parent=record.parent,
        workflow=record.workflow,
        workflow_type=record.workflow_type,
        after=record.after,
        need=record.need,
        counting="done" if record.any_end else "success",
        key=record.key,
        options=record.options,
        keep=record.keep,
        keep_dead=record.keep_dead,
        group_id=record.group_id or None,
        closes_group=record.closes_group,
        contributes=record.contributes,
    )


def _row_of(record: PortableItem, item: Item, store: MemoryTables) -> Row:
    return Row(
        item,
        store.kind(item),
        record.number,
        record.status,
        record.queued_at,
        record.due,
        record.ready_at or 0.0,
        record.place,
        record.attempt,
        record.failures,
        record.losses,
        record.deferrals,
        verdict=record.verdict,
        contributed=record.contributed,
        unreleased=record.unreleased,
        failed_group=record.failed_group,
        deadline=record.deadline,
        started_at=record.started_at,
        ended_at=record.ended_at,
        claimed_by=record.worker,
        result=record.result,
        reason=record.reason,
        mark=record.mark,
        history=[portable.attempt_of(one) for one in record.history] or None,
        claimed_at=record.claimed_at,
        changed_by=record.changed_by,
        steps=_steps_of(record),
        logs=dict(enumerate(record.logs, 1)) or None,
        suspended=record.suspended,
        redrives=record.redrives,
    )


def _steps_of(record: PortableItem) -> RowSteps | None:
    mail = [Mail(name, value, None) for name, value in record.unread]
    mail += [Mail(name, None, key, taken=True) for name, key in record.signal_keys]
    if not (record.steps or mail or record.chunks or record.progress is not None):
        return None
    return RowSteps(
        steps={step.name: portable.step_record(step) for step in record.steps},
        mail=mail,
        progress=record.progress,
        progress_at=record.progress_at,
        chunks=[Chunk(number, value, at) for number, at, value in record.chunks],
    )


def _add_limit(limits: MemoryLimits, record: PortableLimit) -> None:
    limit = portable.limit_of(record)
    stored = MemoryLimit(limit, LimitState(record.at, record.used, record.before))
    limits.add_limit(stored, idle_at(limit, stored.state))
