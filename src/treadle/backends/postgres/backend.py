"""PostgresBackend: the verbs of `treadle.backend` on PostgreSQL."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from treadle.backend import CAPABILITIES, Pacemaker
from treadle.errors import TreadleError

from .calls import Calls, NothingSent, connector
from .claiming import Claiming
from .failures import translated
from .pool import Pool
from .reading import Reading
from .schema import Schema
from .settling import Settling
from .submitting import Submitting

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[Any]

POOL_SIZE: Final = 10
RESERVED: Final = 2


class PostgresBackend(Submitting, Claiming, Settling, Reading):
    """Items in a PostgreSQL database (14 or newer), shared by any number of processes.

    - `schema`: where the tables live; several apps share a database by using several.
    - `apply_schema`: bring the schema to this version when opening; if not, it must be there.
    - `pool_size`: connections of this process, `reserved` of them for settling and beating only.
    - `prepare`: False behind a pooler in transaction mode that cannot handle prepared statements (PgBouncer
      before 1.21): costs two more round trips per call.
    """

    capabilities = CAPABILITIES | {"transactions"}

    def __init__(
        self,
        url: str,
        *,
        schema: str = "treadle",
        apply_schema: bool = True,
        pool_size: int = POOL_SIZE,
        reserved: int = RESERVED,
        prepare: bool = True,
        patience: float = 30.0,
        connect_timeout: float = 10.0,
    ) -> None:
        super().__init__()
        self._url = url
        self._schema = Schema(schema)
        self._apply_schema = apply_schema
        self._pool_size = pool_size
        self._reserved = reserved
        self._prepare = prepare
        self._connect_timeout = connect_timeout
        self._calls = Calls(self._schema, prepare=prepare, patience=patience)
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        async with self._opening:
            if self._calls.is_open:
                return
            pool = Pool(connector(self._connect), size=self._pool_size, reserved=self._reserved)
            try:
                async with pool.connection() as connection:
                    if self._apply_schema:
                        await self._schema.apply(connection)
                    else:
                        await self._schema.check(connection)
            except TreadleError:
                await pool.close()
                raise
            except (OSError, asyncio.TimeoutError, NothingSent, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                await pool.close()
                cause = error.__cause__ if isinstance(error, NothingSent) and error.__cause__ else error
                raise translated(cause) from cause
            self._calls.start(pool)

    async def close(self) -> None:
        async with self._opening:
            await self._calls.stop()

    def pacemaker(self) -> Pacemaker:
        """A backend of its own, with one connection."""
        return PostgresBackend(
            self._url,
            schema=self._schema.name,
            apply_schema=False,
            pool_size=1,
            reserved=0,
            prepare=self._prepare,
            connect_timeout=self._connect_timeout,
        )

    async def now(self) -> float:
        now: float = await self._calls.value("select treadle.clock()")
        return now

    async def _connect(self) -> Connection:
        return await asyncpg.connect(
            self._url,
            timeout=self._connect_timeout,
            statement_cache_size=100 if self._prepare else 0,
            server_settings={"application_name": "treadle"},
        )
