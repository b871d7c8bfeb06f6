"""Tenants that move while they are in use: their marks, what has come of them, and how they leave.

The mark of a tenant is a claimed key. Two triggers refuse what would be stored of a tenant that is elsewhere.
They are made with the first mark: a file without one pays nothing. What comes is kept as records in a table
that no other statement knows, until one transaction makes items of all of it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from treadle.backend import EndedRecords, GivesAhead, Giving, ReadAhead
from treadle.errors import BackendError, StoreNotEmpty, StoreUnavailable
from treadle.records import TenantMark
from treadle.store import portable
from treadle.store.portable import AnyRecord, PortableItem, PortableKey, PortableWorker
from treadle.store.rules.tenant_moves import FOR_EVER, MARKS, PREFIX, decode_mark, encode_mark, keeps_ahead

from . import ahead
from .marks import check_unmarked
from .moving import (
    PORTION,
    MovingStore,
    SqliteExport,
    SqlitePartImport,
    add_fences,
    head_of,
    items_of,
    others_of,
    workers_of,
)
from .retention import remove
from .schema import check_schema
from .statements import Tx, array, statements

_SQL: Final = statements("tenant_moves")
_RESUMES: Final = 8
"""In the column `records` of an open item."""


def read_mark(connection: sqlite3.Connection, tenant: str) -> TenantMark | None:
    rows = connection.execute(_SQL["mark"], (PREFIX + tenant, MARKS)).fetchall()
    return decode_mark(rows[0][0]) if rows else None


def _write_mark(connection: sqlite3.Connection, tenant: str, mark: TenantMark) -> None:
    keeps = keeps_ahead(read_mark(connection, tenant), mark)
    add_fences(connection)
    for name in ("create_arriving", "create_arriving_number"):
        connection.execute(_SQL[name])
    connection.execute(_SQL["set_mark"], (PREFIX + tenant, MARKS, encode_mark(mark), FOR_EVER))
    connection.execute(_SQL["drop_arriving_last" if keeps else "drop_arriving"], (tenant,))
    if not keeps:
        ahead.forget(connection, tenant)


class SqliteTenantMoves:
    """What `MovesTenants` asks for, on connections of their own, on a thread at a time."""

    def __init__(self, store: MovingStore) -> None:
        self._store = store

    @contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        """A transaction. It is rolled back unless the block commits it."""
        with contextlib.closing(self._store.connect()) as connection:
            self._store.begin(connection)
            check_unmarked(connection)
            check_schema(connection)
            yield connection

    async def put_mark(
        self, tenant: str, expected: TenantMark | None, mark: TenantMark, *, empty: bool = False
    ) -> bool:
        return await self._store.run(lambda: self._put_mark(tenant, expected, mark, empty))

    def _put_mark(self, tenant: str, expected: TenantMark | None, mark: TenantMark, empty: bool) -> bool:
        with self._writing() as connection:
            if read_mark(connection, tenant) != expected:
                return False
            found = connection.execute(_SQL["in_the_way"], (tenant,)).fetchall()[0][0] if empty else None
            if found is not None:
                raise StoreNotEmpty(f"sqlite:///{self._store.path}", f"{found} of {tenant}")
            _write_mark(connection, tenant, mark)
            connection.execute("COMMIT")
            return True

    async def stage(self, tenant: str, mark: TenantMark, records: Sequence[bytes]) -> bool:
        return await self._marked(tenant, mark, lambda tx: ahead.stage(tx, tenant, records))

    async def staged(self, tenant: str) -> tuple[int, int]:
        def read() -> tuple[int, int]:
            with contextlib.closing(self._store.connect()) as connection:
                checksum = portable.RecordsChecksum()
                checksum.add(data for (data,) in connection.execute(_SQL["staged"], (tenant,)))
                return checksum.total

        return await self._store.run(read)

    async def _marked(
        self, tenant: str, mark: TenantMark, change: Callable[[sqlite3.Connection], object]
    ) -> bool:
        """Change something in one step, if the mark is this one."""

        def write() -> bool:
            with self._writing() as connection:
                if read_mark(connection, tenant) != mark:
                    return False
                change(connection)
                connection.execute("COMMIT")
                return True

        return await self._store.run(write)

    # -- before the freeze -----------------------------------------------------------------------------

    async def read_ahead(
        self, tenant: str, mark: TenantMark, after: int, limit: int
    ) -> Sequence[EndedRecords]:
        nos: list[int] = []
        if not await self._marked(
            tenant, mark, lambda tx: nos.extend(ahead.take_numbers(tx, tenant, after, limit))
        ):
            raise StoreUnavailable(f"another move of {tenant!r} has begun")
        ended = await self._store.run(lambda: self._read_numbers(tenant, nos)) if nos else []
        if not await self._marked(tenant, mark, lambda tx: ahead.note_read(tx, ended)):
            raise StoreUnavailable(f"another move of {tenant!r} has begun")
        return ended

    def _read_numbers(self, tenant: str, nos: Sequence[int]) -> list[EndedRecords]:
        with contextlib.closing(self._store.connect()) as connection:
            connection.execute("BEGIN")
            return ahead.read_numbers(Tx(connection.cursor(), self._store.clock.now()), tenant, nos)

    async def stage_ahead(self, tenant: str, mark: TenantMark, ended: Sequence[EndedRecords]) -> bool:
        return await self._marked(tenant, mark, lambda tx: ahead.stage_ended(tx, tenant, ended))

    async def staged_ahead(self, tenant: str) -> int:
        def read() -> int:
            with contextlib.closing(self._store.connect()) as connection:
                return ahead.last_staged(connection, tenant)

        return await self._store.run(read)

    async def drop_ahead(self, tenant: str, mark: TenantMark, numbers: Sequence[int]) -> bool:
        return await self._marked(tenant, mark, lambda tx: ahead.unstage(tx, tenant, numbers))

    # -- a tenant leaves, or comes ---------------------------------------------------------------------

    @asynccontextmanager
    async def give(self, tenant: str, mark: TenantMark) -> AsyncGenerator[SqliteGiving]:
        giving = await self._store.run(lambda: SqliteGiving(self._store, tenant, mark))
        try:
            yield giving
        finally:
            await self._store.run(giving.close)

    async def receive(self, tenant: str, mark: TenantMark, owned: TenantMark) -> bool:
        return await self._store.run(lambda: self._receive(tenant, mark, owned))

    def _receive(self, tenant: str, mark: TenantMark, owned: TenantMark) -> bool:
        with contextlib.closing(self._store.connect()) as connection:
            # After the decision nothing more is staged under this mark: others need not wait for this.
            rows = connection.execute(_SQL["staged"], (tenant,)).fetchall()
        staged = portable.renumbered(portable.in_order(portable.decode(data) for (data,) in rows))
        taking = SqliteTaking(self._store, tenant, mark)
        try:
            return taking.is_expected and taking.take(staged, owned)
        finally:
            taking.close()


def _records_of(tx: Tx, tenant: str) -> Iterator[AnyRecord]:
    """What goes along, without what was read ahead and is as it was."""
    yield head_of(tx, tenant)
    for nos in ahead.rest_items(tx, tenant):
        yield from items_of(tx, nos, leases=True)
    yield from ahead.rest_groups(tx, tenant)
    yield from workers_of(tx, tenant)
    yield from others_of(tx, {"claimed_keys": PortableKey})


class SqliteGiving(SqliteExport, Giving, GivesAhead):
    """Has the write lock of the file: others wait to write."""

    def __init__(self, store: MovingStore, tenant: str, mark: TenantMark) -> None:
        super().__init__(store, tenant, freeze=True)
        self._records = _records_of(self._tx, tenant)
        self._whose = tenant
        if read_mark(self._connection, tenant) != mark:
            self.close()
            raise StoreUnavailable(f"another move of {tenant!r} has begun")
        self._ahead = ahead.freeze(self._tx, tenant)

    async def ahead(self) -> ReadAhead:
        return self._ahead

    async def commit(self, mark: TenantMark) -> None:
        await self._store.run(lambda: self._commit(mark))

    def _commit(self, mark: TenantMark) -> None:
        if not self._frozen:
            raise StoreUnavailable("the export is not frozen")
        tx, tenant = self._tx, self._whose
        ahead.forget(self._connection, tenant)
        while nos := [no for (no,) in tx.rows(_SQL["next_items"], tenant, PORTION)]:
            tx.run(_SQL["delete_lease_permits"], array(nos))
            remove(tx, nos)
        for name in ("delete_groups", "delete_missing", "delete_keys"):
            tx.run(_SQL[name], tenant)
        _write_mark(self._connection, tenant, mark)
        self._connection.execute("COMMIT")
        self._frozen = False


class SqliteTaking(SqlitePartImport):
    """Makes items of what is staged, in one transaction."""

    def __init__(self, store: MovingStore, tenant: str, mark: TenantMark) -> None:
        self._mark = mark
        self._workers: list[PortableWorker] = []
        self._leased: list[PortableItem] = []
        super().__init__(store, tenant)

    def _check_room(self) -> None:
        self.is_expected = read_mark(self._connection, self._tenant) == self._mark
        if self.is_expected:
            super()._check_room()

    def _write(self, records: Sequence[AnyRecord]) -> None:
        mine: list[AnyRecord] = []
        for record in records:
            if isinstance(record, PortableWorker):
                self._workers.append(record)
                continue
            if isinstance(record, PortableItem) and record.lease is not None:
                if self._tx.rows(_SQL["token_in_use"], record.lease.token):
                    record = portable.lost_lease(record, "", self._tx.now)
                else:
                    self._leased.append(record)  # its number changes with it
            mine.append(record)
        if mine:
            super()._write(mine)

    def take(self, staged: Sequence[AnyRecord], owned: TenantMark) -> bool:
        connection = self._connection
        if not staged:
            raise BackendError(f"nothing of {self._tenant!r} is staged in {self._store.path}")
        _write_mark(connection, self._tenant, owned)
        for first in range(0, len(staged), PORTION):
            self._write(staged[first : first + PORTION])
        self._connect()
        self._lease()
        ahead.freeze(self._tx, self._tenant)
        self._beside.check(
            record
            for record in _records_of(self._tx, self._tenant)
            if portable.goes_along(record, self._tenant)
        )
        connection.execute("COMMIT")
        return True

    def _lease(self) -> None:
        tx: Tx = self._tx
        for worker in self._workers:
            types = None if worker.types is None else array(worker.types)
            known = (worker.id, worker.until, worker.lease, types, worker.info, worker.release or None)
            tx.run(_SQL["add_worker"], *known)
        for item in self._leased:
            if (lease := item.lease) is not None:
                flags = _RESUMES if lease.resumes else 0
                began = lease.started_at
                tx.run(_SQL["lease"], lease.token, lease.worker, lease.begun, began, flags, item.number)
