"""RedisBackend: the verbs of `treadle.backend` on Redis and Valkey."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from treadle.backend import CAPABILITIES, HeartbeatConnection, Transaction
from treadle.errors import BackendError, InputError, UnsupportedError
from treadle.item import Wake
from treadle.logs.masking import masked
from treadle.records import STORES_TENANT

from .address import check_prefix, parse_address
from .claim import RedisClaim
from .connector import RedisConnector, check_version
from .health import RedisDamage, RedisHealth
from .limits import RedisLimits
from .link import RedisLink
from .lists import RedisLists
from .moving import MovingNamespace, RedisMoves, check_unmarked, explained, wait_until_thawed
from .operate import RedisOperate, RedisRequeue, RedisUpdates
from .orders import RedisOrders
from .partitions import Partition, check_partitions, partitions_of
from .records import RedisRecords
from .schedules import RedisSchedules
from .schema import check_rights, check_schema
from .settle import RedisSettle
from .stage import UNFOLD_STAGE
from .steps import RedisSteps
from .submit import RedisSubmit
from .tenant_moves import RedisTenantMoves
from .wakeups import RedisListener, redis_publisher
from .watch import RedisWatch

log = logging.getLogger("treadle.redis")


class RedisBackend(
    RedisSubmit,
    RedisUpdates,
    RedisClaim,
    RedisSettle,
    RedisSteps,  # and with it RedisWorkers
    RedisLists,
    RedisWatch,
    RedisOperate,
    RedisOrders,
    RedisRequeue,
    RedisLimits,
    RedisSchedules,
    RedisRecords,
    RedisMoves,
):
    """Items in a namespace of Redis (7.0 or newer) or Valkey, shared by any number of processes.

    - `url`: a server, a Sentinel set-up or a cluster: see `treadle.backends.redis.address`.
    - `prefix`: the namespace, if the URL names none (`?prefix=shop`). Its keys are `{prefix}:...`; several
      apps share a server by using several.
    - `apply_schema`: make the store when opening. False: it must be there, and is only read.
    - `notify`: wake other processes by PUBLISH. Without it everything works, a poll later.
    - `connect_timeout`: seconds that connecting may take.
    - `partition`: which of the partitions of the URL it is. Its prefix holds.
    - `test_clock`: the key `{prefix}:shift` moves the clock. For tests only.
    """

    capabilities = CAPABILITIES | {"tenant_moves"}

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "treadle",
        apply_schema: bool = True,
        notify: bool = True,
        connect_timeout: float = 3.0,
        partition: Partition | None = None,
        test_clock: bool = False,
    ) -> None:
        self._redis_address = address = parse_address(url)
        if not 0 < connect_timeout < float("inf"):
            raise InputError.of("connect_timeout", connect_timeout, "must be a number of seconds above 0")
        prefix = check_prefix(partition.prefix if partition else address.prefix or prefix)
        nodes = None if partition is None else partition.nodes
        connector = RedisConnector(address, prefix, timeout=connect_timeout, nodes=nodes)
        self._partition = partition
        super().__init__(RedisLink(connector, prefix, replicas=address.replicas, test_clock=test_clock))
        self._link.unfold = UNFOLD_STAGE
        self._again = partial(
            RedisBackend,
            connect_timeout=connect_timeout,
            test_clock=test_clock,
            apply_schema=apply_schema,
        )
        self.apply_schema = apply_schema
        self._test_clock = test_clock
        self._is_heartbeat = False
        """It has one connection, and takes a newer schema: a worker that has the store open during a
        migration must still get its heartbeats through."""
        self._notify = notify
        self._opening = asyncio.Lock()
        # Channels are shared by all numbered databases of a server.
        channel = self._link.key(f"wake:{address.db}" if address.db else "wake")
        self._publisher = redis_publisher(partial(self._link.publish, channel))
        self._listener = RedisListener(connector.listen, channel, sharded=connector.is_cluster)
        damage = RedisDamage(self._link)
        self._link.why_failed = partial(self._why_failed, damage)
        self._moving = MovingNamespace(
            lambda folder: RedisLink(
                connector,
                prefix,
                replicas=address.replicas,
                test_clock=test_clock,
                single=True,
                folder=folder,
            ),
            self._check_store,
            self._now,
            UNFOLD_STAGE,
            self.address,
        )
        self._tenant_moves = RedisTenantMoves(self._link, self._moving)
        self._link.until_here = self._tenant_moves.until_here
        self._health = RedisHealth(self._link, address.replicas, damage.missing_keys)
        self._was_opened = False

    def partitions(self) -> Mapping[str, RedisBackend]:
        """A backend for each partition that the URL asks for, by its name. None, if it asks for none."""
        url, count = self._redis_address.url.url, self._redis_address.partitions
        found = partitions_of(self._link.prefix, count) if count else ()
        return {each.name: self._again(url, partition=each, notify=self._notify) for each in found}

    @property
    def prefix(self) -> str:
        """The namespace."""
        return self._link.prefix

    @property
    def address(self) -> str:
        return masked(self._redis_address.url.url)

    def __repr__(self) -> str:
        return f"RedisBackend({self._redis_address.url!r}, prefix={self._link.prefix!r})"

    # -- life ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._redis_address.partitions and self._partition is None:
            raise InputError(
                "a URL with partitions= is several stores: give it to Treadle itself",
                parameters=("backend",),
            )
        async with self._opening:
            if self._link.is_started:
                return
            self._store_id = b""
            connection = await self._link.start()
            try:
                await check_version(connection)
                await self._check_store(self._link, waits=True)
                if not self._is_heartbeat:
                    said = await self._key_owner("store", STORES_TENANT, "work")
                    check_partitions(self._link.prefix, self._partition, said)
                if not (self._is_heartbeat or self._was_opened):
                    await self._log_risks()
                self._was_opened = True
            except BaseException:
                await self._link.stop()
                raise

    async def _check_store(self, link: RedisLink, make: bool = False, *, waits: bool = False) -> None:
        """waits: until a store that is frozen has thawed."""
        if not self._is_heartbeat:
            await check_rights(link)
            if waits:
                await self._tenant_moves.until_here(False)
                await wait_until_thawed(link)
        await check_unmarked(link)
        if not self._is_heartbeat:
            await check_schema(link, make=make or self.apply_schema)

    async def _why_failed(self, damage: RedisDamage) -> BackendError | None:
        """Why a script has failed that should not: the store is marked, or keys are missing."""
        return await explained(self._link) or await damage.error()

    async def _log_risks(self) -> None:
        said = set[str]() if self._partition is None else self._partition.nodes.warned
        for risk in await self._health.risks():
            if risk.advice not in said:
                said.add(risk.advice)
                log.warning("%s", risk.advice)

    async def close(self) -> None:
        async with self._opening:
            await self._listener.close()
            await self._link.stop()

    def abandon(self) -> None:
        self._opening = asyncio.Lock()
        self._listener.abandon()
        self._link.abandon()

    def heartbeat_connection(self) -> HeartbeatConnection:
        """A second backend, with one connection."""
        url = self._redis_address.url.url
        backend = self._again(url, prefix=self._link.prefix, partition=self._partition, notify=False)
        backend._is_heartbeat = backend._link.single = True
        return backend

    @property
    def tenant_moves(self) -> RedisTenantMoves:
        return self._tenant_moves

    async def now(self) -> float:
        return await self._now(self._link)

    async def _now(self, link: RedisLink) -> float:
        seconds, micros = await link.command(b"TIME")
        shift = await link.command(b"GET", link.key("shift")) if self._test_clock else None
        if shift is not None and shift.startswith(b"="):
            return float(shift[1:])
        return int(seconds) + int(micros) / 1e6 + float(shift or 0)

    async def inspect(self) -> Sequence[BackendError]:
        return await self._health.inspect()

    # -- transactions ----------------------------------------------------------------------------------

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        raise UnsupportedError("transactions", "RedisBackend")

    # -- wake-ups --------------------------------------------------------------------------------------

    @property
    def wakeup_carrier(self) -> str | None:
        return self.address if self._notify else None

    async def publish(self, wake: Wake) -> None:
        if not self._notify:
            self._listener.deliver(wake)
        elif self._link.is_started:
            await self._publisher.publish(wake)

    async def subscribe(self, receive: Callable[[Wake], None]) -> Callable[[], None]:
        return await self._listener.subscribe(receive, listen=self._notify)
