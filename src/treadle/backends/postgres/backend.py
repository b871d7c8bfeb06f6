"""PostgresBackend: the verbs of `treadle.backend` on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import asyncpg

from treadle.backend import CAPABILITIES, HeartbeatConnection
from treadle.errors import BackendError, TreadleError
from treadle.item import Claim, Demand, Wake
from treadle.logs.masking import Address, masked
from treadle.records import StoreMark
from treadle.store.wakeups import PubSub

from .claim import PostgresClaim
from .connection import PostgresCalls
from .connector import PostgresConnector
from .errors import CONNECTION_ERRORS, NothingSent, cause_of, translated
from .health import LongTransactions, Vacuum
from .limits import PostgresLimits
from .moving import MovingSchema, PostgresExport, PostgresImport
from .operate import PostgresOperate
from .orders import PostgresOrders
from .pool import PostgresPool, abandon_dead_pools
from .read import PostgresRead
from .records import PostgresAudits, PostgresStats
from .schedules import PostgresSchedules
from .schema import Connection, PostgresSchema
from .settle import PostgresSettle
from .statements import statement
from .steps import PostgresSteps
from .submit import PostgresSubmit
from .tenant_moves import PostgresTenantMoves
from .transactions import PostgresTransactions
from .wakeups import NotifyWakeups, NoWakeups, PubSubWakeups, WakeSignature, channel_name
from .watch import PostgresWatch

NOTIFY: Final = statement("wakeups", "notify")
NOTIFY_ALL: Final = statement("wakeups", "notify_all")
NOW: Final = statement("read", "now")
IDENTITY: Final = statement("submit", "identity")
POOL_SIZE: Final = 10
RESERVED: Final = 2


class PostgresBackend(
    PostgresSubmit,  # and with it PostgresWorkers: `beat`, `remove_worker`, `unknown_leases`
    PostgresClaim,
    PostgresSettle,
    PostgresSteps,
    PostgresRead,
    PostgresWatch,
    PostgresOperate,
    PostgresOrders,
    PostgresAudits,
    PostgresLimits,
    PostgresSchedules,
    PostgresStats,
    PostgresTransactions,
):
    """Items in a PostgreSQL database (14 or newer), shared by any number of processes.

    - `schema`: where the tables are; several apps share a database by using several.
    - `schema_owner`: the role that owns the schema, if that is neither the role that connects nor one that it
      inherits from. Other owners are refused (`UntrustedSchema`).
    - `apply_schema`: bring the schema to this version when opening. False: it must have this version.
    - `pool_size`: connections of this process, `reserved` of them for settling and heartbeats only.
    - `prepare`: False behind a pooler in transaction mode that cannot handle prepared statements (PgBouncer
      before 1.21): costs two more round trips per call.
    - `durable_claims`: claims and heartbeats wait for the disk too. If not, a crash of the server may forget
      the last of them, and what they had handed out runs again.
    - `notify`: wake other processes by NOTIFY (True) or through a `PubSub` of `treadle.ports`. With False or
      None everything works, a poll later. `close_notify`: close that PubSub together with the backend.
    - `listen_url`: where to LISTEN, if not at `url`: a pooler in transaction mode cannot.
    - `patience`: seconds that a call may take before its connection is closed; `statement_timeout`: seconds
      after which the server itself ends a statement, a handler's in `ctx.transaction()` too.
    - `long_transaction`: workers warn of transactions, of any session, that are older than this, in seconds.
    """

    capabilities = CAPABILITIES | {"transactions", "parts", "tenant_moves"}
    wake_portion = 1200
    """Ids of one kind in a wake-up. One NOTIFY sends several payloads."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = "treadle",
        schema_owner: str | None = None,
        apply_schema: bool = True,
        pool_size: int = POOL_SIZE,
        reserved: int = RESERVED,
        prepare: bool = True,
        durable_claims: bool = False,
        notify: bool | PubSub | None = True,
        close_notify: bool = False,
        listen_url: str | None = None,
        patience: float = 30.0,
        connect_timeout: float = 3.0,
        statement_timeout: float = 60.0,
        long_transaction: float | None = 300.0,
    ) -> None:
        self._address = Address(url)
        self._schema = PostgresSchema(schema, schema_owner)
        super().__init__(
            PostgresCalls(self._schema, prepare=prepare, patience=patience, durable_claims=durable_claims)
        )
        self.apply_schema = apply_schema
        self._takes_newer_schema = False
        """A worker that has the store open during a migration must still get its heartbeats through."""
        connector = PostgresConnector(
            prepare=prepare, timeout=connect_timeout, statement_timeout=statement_timeout
        )
        listen_address = Address(listen_url) if listen_url else self._address
        self._signature = WakeSignature()
        self._wakeups: NotifyWakeups | PubSubWakeups | NoWakeups
        if notify is True:
            self._wakeups = NotifyWakeups(
                partial(connector.connect, listen_address), self._channel, self._send, self._signature
            )
        elif notify is False or notify is None:
            self._wakeups = NoWakeups()
        else:
            self._wakeups = PubSubWakeups(notify, self._signature, owned=close_notify)
        self.carries_results = not isinstance(self._wakeups, PubSubWakeups)
        """Who hears a wake-up may read the schema; but strangers hear those that another server carries."""
        self._new_pool = partial(
            PostgresPool,
            partial(connector.connect, self._address),
            partial(connector.greet, self._address),
            size=pool_size,
            reserved=reserved,
            away=self._wakeups.reconnect,
        )
        self._new_heartbeat_connection = partial(
            PostgresBackend,
            schema=schema,
            schema_owner=schema_owner,
            apply_schema=False,
            pool_size=1,
            reserved=0,
            prepare=prepare,
            durable_claims=durable_claims,
            patience=patience,
            connect_timeout=connect_timeout,
            statement_timeout=statement_timeout,
        )
        self._moving = MovingSchema(self._schema, partial(connector.connect, self._address), self.address)
        self._opening = asyncio.Lock()
        self._long_transactions = LongTransactions(self._calls, long_transaction)
        self._vacuum = Vacuum(self._calls)

    @property
    def address(self) -> str:
        return masked(self._address.url)

    def __repr__(self) -> str:
        return f"PostgresBackend({self._address!r}, schema={self._schema.name!r})"

    async def open(self) -> None:
        async with self._opening:
            if self._calls.is_open:
                return
            abandon_dead_pools()
            pool = self._new_pool()
            try:
                async with pool.connection() as connection:
                    await self._schema.check_roles(connection)
                    await self._schema.check_unmarked(connection)
                    if self.apply_schema:
                        await self._schema.apply(connection)
                    else:
                        await self._schema.check(connection, newer=self._takes_newer_schema)
                    key = await self._schema.wake_key(connection)
                    self._calls.store_identity = await connection.fetchval(self._calls.sql(IDENTITY))
            except TreadleError:
                await pool.close()
                raise
            except (*CONNECTION_ERRORS, NothingSent, asyncpg.PostgresError) as error:
                await pool.close()
                cause = cause_of(error)
                raise translated(cause) from cause
            self._signature.use(key)
            if isinstance(self._wakeups, NotifyWakeups):
                self._calls.wake_channel = channel_name(key)
            self._calls.start(pool)

    def begins_at_once(self, verb: str) -> bool:
        """A call gets a connection that is idle. To make a new one would take a timeout."""
        able = verb == "submit" or (verb == "publish" and isinstance(self._wakeups, NotifyWakeups))
        return able and self._calls.is_open and self._calls.pool.has_idle()

    async def close(self) -> None:
        async with self._opening:
            await self._vacuum.close()
            await self._wakeups.close()
            await self._calls.stop()

    def abandon(self) -> None:
        self._opening = asyncio.Lock()
        self._vacuum.abandon()
        self._wakeups.abandon()
        self._calls.abandon()

    def heartbeat_connection(self) -> HeartbeatConnection:
        """A second backend, with one connection."""
        backend = self._new_heartbeat_connection(self._address.url)
        backend._takes_newer_schema = True
        return backend

    async def claim(self, demand: Demand) -> Claim:
        claim = await super().claim(demand)
        self._vacuum.count(len(claim.leases))
        return claim

    async def now(self) -> float:
        now: float = await self._calls.value(NOW)
        return now

    async def inspect(self) -> Sequence[BackendError]:
        return [*await self._long_transactions.inspect(), *self._wakeups.problems()]

    # -- moving ----------------------------------------------------------------------------------------

    async def mark(self) -> StoreMark | None:
        return await self._moving.mark()

    def export(
        self, *, freeze: float | None = None, move: str | None = None, tenant: str | None = None
    ) -> AbstractAsyncContextManager[PostgresExport]:
        return self._moving.export(freeze=freeze is not None, move=move, tenant=tenant)

    def import_(
        self, move: str, source: str = "", *, tenant: str | None = None
    ) -> AbstractAsyncContextManager[PostgresImport]:
        return self._moving.import_(move, source) if tenant is None else self._moving.import_part(tenant)

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
    def tenant_moves(self) -> PostgresTenantMoves:
        return PostgresTenantMoves(self._moving)

    # -- wake-ups --------------------------------------------------------------------------------------

    @property
    def wakeup_carrier(self) -> str | None:
        return self._wakeups.carrier

    async def publish(self, wake: Wake) -> None:
        if self._calls.is_open:
            await self._wakeups.publish(wake)

    async def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        return await self._wakeups.subscribe(receive)

    async def _channel(self, connection: Connection) -> str:
        return channel_name(await self._schema.wake_key(connection))

    async def _send(self, payloads: list[str]) -> None:
        channel = self._calls.wake_channel
        if len(payloads) == 1:
            await self._calls.rows(NOTIFY, channel, payloads[0])
        else:
            await self._calls.rows(NOTIFY_ALL, channel, payloads)
