"""Tenants that move while they are in use: their marks, what has come of them, and how they leave.

The mark of a tenant is a claimed key. A trigger refuses what would be stored of a tenant that is elsewhere.
It is made with the first mark: a schema without one pays nothing. The names of these tenants are in the text
of its function: so it holds too for a transaction that began before the mark, at each isolation. What
comes is kept as records in a table of its own, until one transaction makes items of all of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from treadle.backend import EndedRecords, GivesAhead, Giving, ReadAhead
from treadle.errors import BackendError, StoreNotEmpty, StoreUnavailable
from treadle.records import TenantMark
from treadle.store import portable
from treadle.store.portable import AnyRecord, PortableItem, PortableKey, PortableWorker
from treadle.store.rules.tenant_moves import FOR_EVER, MARKS, PREFIX, decode_mark, encode_mark, keeps_ahead

from .ahead import Ahead
from .moving import PORTION, MovingSchema, PostgresExport, PostgresPartImport
from .schema import Connection, refusal
from .statements import statements, text

_sql = statements("tenant_moves")
LOCK_SECONDS: Final = 5
"""Seconds to wait for transactions of others that have written, and are open. Others wait behind this."""


class _Marks:
    """The marks of tenants in one schema."""

    def __init__(self, store: MovingSchema) -> None:
        self._store = store

    def sql(self, name: str) -> str:
        return self._store.schema.sql(_sql(name))

    async def read(self, connection: Connection, tenant: str) -> TenantMark | None:
        return decode_mark(await connection.fetchval(self.sql("mark"), PREFIX + tenant, MARKS))

    async def write(self, connection: Connection, tenant: str, mark: TenantMark) -> None:
        """In the open transaction, under the lock."""
        keeps = keeps_ahead(await self.read(connection, tenant), mark)
        await connection.execute(self._store.schema.sql(text("tenant_moves", "create_arriving")))
        await connection.execute(self.sql("set_mark"), PREFIX + tenant, MARKS, encode_mark(mark), FOR_EVER)
        await self._store.add_fence(connection)
        await connection.execute(self.sql("drop_arriving_last" if keeps else "drop_arriving"), tenant)
        if not keeps:
            await Ahead(self._store, connection, tenant).forget()


class PostgresTenantMoves:
    """What `TenantMoves` asks for, on connections of their own."""

    def __init__(self, store: MovingSchema) -> None:
        self._store = store
        self._marks = _Marks(store)
        self._sql = self._marks.sql

    @asynccontextmanager
    async def _writing(self) -> AsyncGenerator[Connection]:
        """A transaction that has the lock."""
        async with self._store.connection() as connection:
            mark = await self._store.schema.mark(connection)
            if mark is not None:
                raise refusal(mark)
            await self._store.schema.check(connection)
            transaction = await self._store.begin(connection)
            await self._store.lock(connection, self._sql("lock"), LOCK_SECONDS)
            yield connection
            await transaction.commit()

    async def put_mark(
        self, tenant: str, expected: TenantMark | None, mark: TenantMark, *, empty: bool = False
    ) -> bool:
        async with self._writing() as connection:
            if await self._marks.read(connection, tenant) != expected:
                return False
            if empty:
                found = await connection.fetchval(self._store.sql("tenant_in_the_way"), tenant)
                if found is not None:
                    raise StoreNotEmpty(self._store.address, f"{found} of {tenant}")
            await self._marks.write(connection, tenant, mark)
            return True

    @asynccontextmanager
    async def _marked(self, tenant: str, mark: TenantMark) -> AsyncGenerator[Connection | None]:
        """A transaction in which the mark stays as it is. None: it is another one."""
        async with self._store.connection() as connection:
            transaction = await self._store.begin(connection)
            found = await connection.fetchval(self._sql("lock_mark"), PREFIX + tenant, MARKS)
            if decode_mark(found) != mark:
                yield None
                return
            yield connection
            await transaction.commit()

    async def stage(self, tenant: str, mark: TenantMark, records: Sequence[bytes]) -> bool:
        async with self._marked(tenant, mark) as connection:
            if connection is not None:
                await connection.execute(self._sql("stage"), tenant, records)
            return connection is not None

    async def staged(self, tenant: str) -> tuple[int, int]:
        async with self._store.connection() as connection:
            count, checksum = (await connection.fetch(self._sql("staged_sum"), tenant))[0]
            return count, int(checksum)

    # -- before the freeze -----------------------------------------------------------------------------

    async def read_ahead(
        self, tenant: str, mark: TenantMark, after: int, limit: int
    ) -> Sequence[EndedRecords]:
        async with self._store.connection() as connection:
            is_noted = await Ahead(self._store, connection, tenant).is_noted()
        if not is_noted:
            await self._note_changes(tenant, mark)
        async with self._store.connection() as connection:
            transaction = await self._store.begin(connection, "repeatable_read")
            if await self._marks.read(connection, tenant) != mark:
                raise _overtaken(tenant)
            ahead = Ahead(self._store, connection, tenant)
            export = PostgresExport(self._store, connection, transaction, tenant, frozen=False, leases=True)
            read = await ahead.read(export, await ahead.numbers(after, limit))
            await transaction.commit()
            return read

    async def _note_changes(self, tenant: str, mark: TenantMark) -> None:
        async with self._store.connection() as connection:
            await self._store.schema.check(connection)
            transaction = await self._store.begin(connection)
            await self._store.freeze(connection, LOCK_SECONDS)
            if await self._marks.read(connection, tenant) != mark:
                raise _overtaken(tenant)
            await Ahead(self._store, connection, tenant).begin()
            await transaction.commit()

    async def stage_ahead(self, tenant: str, mark: TenantMark, ended: Sequence[EndedRecords]) -> bool:
        async with self._marked(tenant, mark) as connection:
            if connection is not None:
                await Ahead(self._store, connection, tenant).stage(ended)
            return connection is not None

    async def staged_ahead(self, tenant: str) -> int:
        async with self._store.connection() as connection:
            return await Ahead(self._store, connection, tenant).last_staged()

    async def drop_ahead(self, tenant: str, mark: TenantMark, numbers: Sequence[int]) -> bool:
        async with self._marked(tenant, mark) as connection:
            if connection is not None:
                await Ahead(self._store, connection, tenant).unstage(numbers)
            return connection is not None

    # -- a tenant leaves, or comes ---------------------------------------------------------------------

    @asynccontextmanager
    async def give(self, tenant: str, mark: TenantMark) -> AsyncGenerator[PostgresGiving]:
        async with self._store.connection() as connection:
            found = await self._store.schema.mark(connection)
            if found is not None:
                raise refusal(found)
            await self._store.schema.check(connection)
            transaction = await self._store.begin(connection, "repeatable_read")
            await self._store.freeze(connection, LOCK_SECONDS)
            if await self._marks.read(connection, tenant) != mark:
                raise _overtaken(tenant)
            giving = PostgresGiving(self._store, connection, transaction, tenant, frozen=True, leases=True)
            giving.marks = self._marks
            await giving.freeze()
            yield giving

    async def receive(self, tenant: str, mark: TenantMark, owned: TenantMark) -> bool:
        async with self._store.connection() as connection:
            await self._store.schema.check(connection)
            # After the decision nothing more is staged under this mark: others need not wait for this.
            staged = await self._all_staged(connection, tenant)
            transaction = await self._store.begin(connection)
            await self._store.freeze(connection, LOCK_SECONDS)
            if await self._marks.read(connection, tenant) != mark:
                return False
            if not staged:
                raise BackendError(f"nothing of {tenant!r} is staged in {self._store.address}")
            await connection.execute(self._store.create_waiting)
            taking = PostgresTaking(self._store, connection, transaction, tenant)
            await self._marks.write(connection, tenant, owned)
            await taking.take(staged)
            return True

    async def _all_staged(self, connection: Connection, tenant: str) -> list[AnyRecord]:
        staged, last = list[AnyRecord](), 0
        while found := await connection.fetch(self._sql("staged"), tenant, last, PORTION):
            last = found[-1]["no"]
            staged += [portable.decode(row["data"]) for row in found]
        return portable.renumbered(portable.in_order(staged))


def _overtaken(tenant: str) -> StoreUnavailable:
    return StoreUnavailable(f"another move of {tenant!r} has begun")


class PostgresGiving(PostgresExport, Giving, GivesAhead):
    """Others wait to write."""

    marks: _Marks

    async def freeze(self) -> None:
        self._ahead = Ahead(self._store, self._connection, self._tenant or "")
        self._found = await self._ahead.freeze()

    async def ahead(self) -> ReadAhead:
        return self._found

    async def records(self) -> AsyncIterator[AnyRecord]:
        head = await self._head()
        yield head
        async for nos in self._ahead.rest_items():
            for item in await self.items_of(nos, head.at):
                yield item
        async for group in self._ahead.rest_groups():
            yield group
        for worker in await self._workers():
            yield worker
        async for record in self._others({"claimed_keys": PortableKey}, head.at):
            yield record

    async def commit(self, mark: TenantMark) -> None:
        if not self._frozen:
            raise StoreUnavailable("the export is not frozen")
        connection, tenant = self._connection, self._tenant or ""
        sql = self.marks.sql
        await self._ahead.forget()
        nos = await connection.fetchval(sql("numbers"), tenant)
        for name in ("delete_permits", "leave", "delete_dependencies"):
            await connection.execute(sql(name), nos)
        await connection.execute(sql("delete_items"), tenant)
        await connection.execute(sql("delete_groups"), nos, tenant)
        await connection.execute(sql("delete_keys"), tenant)
        await self.marks.write(connection, tenant, mark)
        await self._transaction.commit()
        self._frozen = False


class PostgresTaking(PostgresPartImport):
    """Makes items of what is staged, in one transaction."""

    async def take(self, records: Sequence[AnyRecord]) -> None:
        for first in range(0, len(records), PORTION):
            await self._write(records[first : first + PORTION])
        await self.finish()

    async def _stored(self) -> AsyncIterator[AnyRecord]:
        giving = PostgresGiving(
            self._store, self._connection, self._transaction, self._tenant, frozen=True, leases=True
        )
        await giving.freeze()
        async for record in giving.records():
            yield record

    async def _write(self, records: Sequence[AnyRecord]) -> None:
        tokens = [one.lease.token for one in records if isinstance(one, PortableItem) and one.lease]
        used: set[int] = set()
        if tokens:
            found = await self._connection.fetch(self._moves_sql("tokens_in_use"), tokens)
            used = {row["token"] for row in found}
        mine: list[AnyRecord] = []
        for record in records:
            if isinstance(record, PortableWorker):
                await self._connection.execute(
                    self._moves_sql("add_worker"),
                    record.id,
                    record.until,
                    record.lease,
                    record.types,
                    record.info,
                    record.release or None,
                )
                continue
            if isinstance(record, PortableItem) and record.lease is not None:
                if record.lease.token in used:
                    now = float(
                        await self._connection.fetchval(self._store.schema.sql("select treadle.clock()"))
                    )
                    record = portable.lost_lease(record, "", now)
                else:
                    self._leased.append(record)  # its number changes with it
            mine.append(record)
        if mine:
            await super()._write(mine)

    def _moves_sql(self, name: str) -> str:
        return self._store.schema.sql(_sql(name))

    async def _connect(self) -> None:
        await super()._connect()
        for item in self._leased:
            if (lease := item.lease) is not None:
                await self._connection.execute(
                    self._moves_sql("lease"),
                    lease.token,
                    lease.begun,
                    lease.started_at,
                    lease.resumes,
                    lease.worker,
                    item.number,
                )
