"""Tenants that move while they are in use: their marks, what has come of them, and how they leave.

The mark of a tenant is a claimed key. Nothing here waits, so each step is one step. A tenant is read at once,
and leaves if nothing of it has changed since.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from treadle.backend import Giving
from treadle.base.timing import Clock
from treadle.errors import BackendError, StoreUnavailable
from treadle.records import TenantMark
from treadle.store import portable
from treadle.store.portable import (
    AnyRecord,
    Head,
    PortableGroup,
    PortableItem,
    PortableKey,
    PortableWorker,
)
from treadle.store.rules.tenant_moves import FOR_EVER, MARKS, PREFIX, decode_mark, encode_mark

from .claimed_keys import ClaimedKey
from .moving import MemoryPartImport, check_absent, records_of
from .operate import remove_all
from .rows import Row
from .tables import MemoryTables
from .transitions import adopt_lease, leave_container
from .workers import adopt_worker


def _read_mark(store: MemoryTables, tenant: str) -> TenantMark | None:
    return decode_mark(store.claimed_keys.owner((MARKS, PREFIX + tenant), store.now()))


def _write_mark(store: MemoryTables, tenant: str, mark: TenantMark) -> None:
    ref = MARKS, PREFIX + tenant
    store.claimed_keys.drop(ref)
    store.claimed_keys.add(ClaimedKey(ref, encode_mark(mark), FOR_EVER))
    store.arriving.pop(tenant, None)


class MemoryTenantMoves:
    """What `MovesTenants` asks for."""

    def __init__(self, tables: Callable[[], MemoryTables], clock: Clock) -> None:
        self._tables = tables
        self._clock = clock

    async def put_mark(
        self, tenant: str, expected: TenantMark | None, mark: TenantMark, *, empty: bool = False
    ) -> bool:
        store = self._tables()
        if _read_mark(store, tenant) != expected:
            return False
        if empty:
            check_absent(store, tenant)
        _write_mark(store, tenant, mark)
        return True

    async def stage(self, tenant: str, mark: TenantMark, records: Sequence[bytes]) -> bool:
        store = self._tables()
        if _read_mark(store, tenant) != mark:
            return False
        store.arriving.setdefault(tenant, []).extend(records)
        return True

    async def staged(self, tenant: str) -> tuple[int, int]:
        checksum = portable.RecordsChecksum()
        checksum.add(self._tables().arriving.get(tenant, ()))
        return checksum.total

    @asynccontextmanager
    async def give(self, tenant: str, mark: TenantMark) -> AsyncGenerator[MemoryGiving]:
        yield MemoryGiving(self._tables(), tenant, mark)

    async def receive(self, tenant: str, mark: TenantMark, owned: TenantMark) -> bool:
        store = self._tables()
        if _read_mark(store, tenant) != mark:
            return False
        if tenant not in store.arriving:
            raise BackendError(f"nothing of {tenant!r} is staged in memory://")
        taking = MemoryTaking(self._clock, self._tables, tenant)
        await taking.write(store.arriving[tenant])
        await taking.finish()
        _write_mark(store, tenant, owned)
        return True


class MemoryGiving(Giving):
    """Lets no one wait. What others write meanwhile undoes the move."""

    def __init__(self, store: MemoryTables, tenant: str, mark: TenantMark) -> None:
        self._store = store
        self._tenant = tenant
        self._mark = mark
        self._check_mark()
        self._whole = self._what_it_has()
        found = records_of(store, tenant, leases=True)
        others = [record for record in found if isinstance(record, (Head, PortableWorker))]
        head, *workers = map(portable.encode, others)
        self._records = [head, *self._whole, *workers]
        self._read = 0

    async def read(self, limit: int = 1000) -> Sequence[bytes]:
        found = self._records[self._read : self._read + limit]
        self._read += len(found)
        return found

    async def commit(self, mark: TenantMark) -> None:
        store, tenant = self._store, self._tenant
        self._check_mark()
        if self._what_it_has() != self._whole:
            raise StoreUnavailable(f"{tenant!r} was used while it was copied: try again with --resume")
        rows = [row for row in store.rows(None, oldest_first=True) if row.kind.tenant == tenant]
        for row in rows:
            if row.worker is not None:
                store.limits.drop_lease(row.worker, row.token)
        remove_all(store, rows)
        store.claimed_keys.drop_all(tenant)
        _write_mark(store, tenant, mark)

    def _check_mark(self) -> None:
        if _read_mark(self._store, self._tenant) != self._mark:
            raise StoreUnavailable(f"another move of {self._tenant!r} has begun")

    def _what_it_has(self) -> list[bytes]:
        records = records_of(self._store, self._tenant, leases=True)
        return [
            portable.encode(record)
            for record in records
            if isinstance(record, (PortableItem, PortableGroup, PortableKey))
            and record.tenant == self._tenant
        ]


class MemoryTaking(MemoryPartImport):
    """Makes items of what is staged."""

    leases = True

    def _fitting(self, record: AnyRecord) -> AnyRecord:
        if isinstance(record, PortableItem) and record.lease is not None:
            store, token = self._tables(), record.lease.token
            if any(token in worker.held for worker in store.workers.values()):
                return portable.lost_lease(record, "", store.now())
        return record

    def _write(self, record: AnyRecord) -> None:
        if not isinstance(record, PortableWorker):
            super()._write(record)
        elif self.store is self._tables():
            adopt_worker(self.store, record)

    def _place(self, row: Row, record: PortableItem) -> None:
        super()._place(row, record)
        if record.lease is not None and self.store is self._tables():
            leave_container(row)
            self.store.strict_lanes.ready.pop(row, None)
            adopt_lease(self.store, row, self.store.workers[record.lease.worker], record.lease)
