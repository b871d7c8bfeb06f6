"""What has ended of a tenant that moves, copied before the freeze: read here, or staged here.

The old store keeps one row for each number that was read: the digest of its records. Triggers note changes of
what has ended, on every table that a record of an ended item or group is read from. They are made under the
locks of a freeze: so a transaction that has written before is over, and what it wrote is read. They are
enabled while a tenant is read ahead: a schema without a move pays nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final

from treadle.backend import EndedRecords, ReadAhead
from treadle.store import portable
from treadle.store.portable import PortableGroup, record_digest
from treadle.store.portable_rows import group_of

from .moving import MovingSchema
from .schema import Connection
from .statements import statement, statements, text

if TYPE_CHECKING:
    from .moving import PostgresExport

_sql = statements("ahead")
_table_oid: Final = statement("schema", "table_oid")
MOST: Final = 2**62
"""More than any number."""


class Ahead:
    """What is noted of a tenant in one schema, in the open transaction of a connection."""

    def __init__(self, store: MovingSchema, connection: Connection, tenant: str) -> None:
        self._store = store
        self._connection = connection
        self._tenant = tenant

    def _sql(self, name: str) -> str:
        return self._store.schema.sql(_sql(name))

    async def is_noted(self) -> bool:
        """Whether changes of the tenant are noted."""
        oid = await self._connection.fetchval(_table_oid, f'"{self._store.schema.name}".ahead')
        return oid is not None and bool(await self._connection.fetchval(self._sql("is_noted"), self._tenant))

    async def begin(self) -> None:
        """Note changes from now on. The caller has the locks of a freeze."""
        connection = self._connection
        await self._create()
        await connection.execute(self._sql("add_tenant"), self._tenant)
        await self._write_function()
        if not await connection.fetchval(self._sql("has_notes")):
            await connection.execute(self._sql("add_notes"))
        await self._enable("enable")

    async def forget(self) -> None:
        if not await self.is_noted():
            return
        for name in ("forget", "forget_read", "forget_changed"):
            await self._connection.execute(self._sql(name), self._tenant)
        await self._write_function()
        if not await self._connection.fetchval(self._sql("any_tenant")):
            await self._enable("disable")

    async def _create(self) -> None:
        await self._connection.execute(self._store.schema.sql(text("ahead", "create")))

    async def _write_function(self) -> None:
        await self._connection.execute(await self._connection.fetchval(self._sql("note")))

    async def _enable(self, able: str) -> None:
        await self._connection.execute(self._store.schema.sql(text("ahead", "enable_notes", able=able)))

    # -- the old store ---------------------------------------------------------------------------------

    async def numbers(self, after: int, limit: int) -> list[int]:
        """Numbers of what has ended and has not changed since it was read."""
        await self._connection.execute(_sql("by_index"))
        nos: list[int] = await self._connection.fetchval(self._sql("next_ended"), self._tenant, after, limit)
        last = nos[-1] if len(nos) == limit else MOST
        nos += await self._connection.fetchval(self._sql("next_rootless"), after, last, self._tenant)
        return sorted(nos)

    async def read(self, export: PostgresExport, nos: Sequence[int]) -> list[EndedRecords]:
        items = {item.number: portable.encode(item) for item in await export.items_of(nos, 0.0)}
        groups = {group.number: portable.encode(group) for group in await self.groups_of(nos)}
        read = [
            EndedRecords(no, int(no in items), [found[no] for found in (items, groups) if no in found])
            for no in nos
        ]
        await self._connection.execute(
            self._sql("note_read"),
            self._tenant,
            nos,
            [one.items for one in read],
            [len(one.records) for one in read],
            [sum(map(record_digest, one.records)) for one in read],
        )
        return read

    async def groups_of(self, nos: Sequence[int]) -> list[PortableGroup]:
        return [group_of(row) for row in await self._connection.fetch(self._sql("groups_of"), nos)]

    async def freeze(self) -> ReadAhead:
        """Under the freeze: what has changed counts as not read."""
        await self._create()
        await self._connection.execute(self._sql("drop_changed"), self._tenant)
        (unchanged,) = await self._connection.fetch(self._sql("unchanged"), self._tenant)
        changed = await self._connection.fetchval(self._sql("changed"), self._tenant)
        return ReadAhead(unchanged[0], unchanged[1], int(unchanged[2]), changed)

    async def rest_items(self) -> AsyncIterator[list[int]]:
        """Numbers of items that were not read ahead, or have changed since, in portions."""
        last = -1
        while nos := await self._connection.fetchval(self._sql("rest_items"), last, self._tenant):
            last = nos[-1]
            yield nos

    async def rest_groups(self) -> AsyncIterator[PortableGroup]:
        last = -1
        while nos := await self._connection.fetchval(self._sql("rest_groups"), last, self._tenant):
            last = nos[-1]
            for group in await self.groups_of(nos):
                yield group

    # -- the new store ---------------------------------------------------------------------------------

    async def stage(self, ended: Sequence[EndedRecords]) -> None:
        """In place of what was staged under the same numbers."""
        await self.unstage([one.number for one in ended])
        numbers = [one.number for one in ended for _ in one.records]
        data = [data for one in ended for data in one.records]
        await self._connection.execute(self._sql("stage"), self._tenant, numbers, data)

    async def unstage(self, numbers: Sequence[int]) -> None:
        await self._connection.execute(self._sql("unstage"), self._tenant, numbers)

    async def last_staged(self) -> int:
        last: int = await self._connection.fetchval(self._sql("last_staged"), self._tenant)
        return last
