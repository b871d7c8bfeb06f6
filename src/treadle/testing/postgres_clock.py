"""ManualClock on PostgreSQL, whose own clock decides otherwise.

clock = ManualClock()
backend = ManualClockBackend(PostgresBackend(url, schema="test"), clock, schema="test")
async with run_inline(Treadle(backend, work=[send], clock=clock)) as app:
    handle = await app.enqueue(send("ada@example.org"), delay=3600)
    await clock.advance(3600)
    await handle.result()

The clock of the store is a function of its schema. It is replaced, so the schema is fit for tests only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from treadle.backend import Backend
from treadle.base.timing import Clock

from .wrap import WrappedBackend

T = TypeVar("T")

_INSTALL = """
create table if not exists SCHEMA.manual_clock (at float8 not null);
insert into SCHEMA.manual_clock select 0 where not exists (select from SCHEMA.manual_clock);
create or replace function SCHEMA.clock() returns float8 language sql volatile as
  $$ select at from SCHEMA.manual_clock $$;
"""
_SET = "update SCHEMA.manual_clock set at = $1"
_OTHER_LOOP = "heartbeat_connection"
"""The verb that is called on another event loop than the others."""


class ManualClockBackend(WrappedBackend):
    """Calls `inner`, a backend on PostgreSQL, after it has set the clock of its store. Changes that store:
    its clock stands still from then on.

    schema: where the tables are, as in `PostgresBackend`.
    """

    def __init__(self, inner: Backend, clock: Clock, *, schema: str = "treadle") -> None:
        super().__init__(inner)
        self._clock = clock
        self._schema = '"' + schema.replace('"', '""') + '"'
        self._written: float | None = None
        self._writing = asyncio.Lock()

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        if verb == "open":
            answer = await call()
            await self._install()
            return answer
        if verb not in ("close", _OTHER_LOOP) and self._clock.now() != self._written:
            await self._write()
        return await call()

    async def _install(self) -> None:
        self._writing = asyncio.Lock()
        await self._execute(_INSTALL.replace("SCHEMA", self._schema))
        await self._write()

    async def _write(self) -> None:
        async with self._writing:
            now = self._clock.now()
            await self._execute(_SET.replace("SCHEMA", self._schema), now)
            self._written = now

    async def _execute(self, sql: str, *arguments: float) -> None:
        async with self.inner.transaction() as transaction:
            connection: Any = transaction.connection
            await connection.execute(sql, *arguments)
