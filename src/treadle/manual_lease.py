"""Manual lease: claim one item without a worker, do it, and say how it went.

    lease = await client.claim_one(queues=["mail"], lease=30)
    if lease is not None:
        try:
            await lease.complete(send(**lease.input))
        except SmtpError as error:
            await lease.fail(error)

The guarantees are those of a `Worker`: the store counts attempts, a lapsed lease frees the item for others,
and an outcome that comes too late is refused with `LeaseLost` and changes nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from treadle.base import VERSION
from treadle.base.headers import headers_of
from treadle.base.timing import Duration, seconds
from treadle.bulk_action import BULK_TYPE
from treadle.define.dependency import DEPENDENCY
from treadle.doers.limited import has_strict_lanes
from treadle.engine.core import Core, PortionRunner
from treadle.engine.run.after_commit import AfterCommit
from treadle.engine.run.built_in import (
    SETTLED_AT_ONCE,
    bulk_settlement,
    closed_group,
    met_dependency,
    read_closed,
)
from treadle.engine.run.decide import (
    Decision,
    FailureDecider,
    GiveBack,
    PendingSettlement,
    Succeed,
    judged,
    lost_too_often,
    raised,
    unbegun,
)
from treadle.engine.run.held import HeldLeases
from treadle.engine.run.settle import SettlementBuilder, Settler
from treadle.engine.run.undecodable import UndecodableItems
from treadle.engine.run.worker_report import host_name
from treadle.engine.submit.build_item import read_stored, retry_of
from treadle.errors import DecodeError, LeaseLost
from treadle.handler.result_plan import plan
from treadle.item import GROUP_TYPE, TELL_TYPE, Demand, Heartbeat, Lease, Outcome
from treadle.logs.lines import WARNING, error_text, log_line
from treadle.retry import Retry, merge_retry
from treadle.store.rules.orders import paused_types
from treadle.worker_info import WorkerInfo, encode_worker_info

LEFT_DELAY: Final = 15.0
"""Seconds after which an item that is for others is handed out again."""
MOST_CLAIMS: Final = 100
"""How often `claim_one` asks the store, if what it gets needs no handler."""


class ClaimedLease:
    """One attempt of one item. The caller owns it until it says how it ended, or until the lease lapses."""

    def __init__(self, core: Core, lease: Lease, worker: str, duration: float, input: dict[str, Any]) -> None:
        self._core = core
        self._lease = lease
        self._worker = worker
        self._duration = duration
        self._over = False
        self._claimed = core.settings.clock.monotonic()
        self.input = input
        """The arguments, by name."""

    @property
    def id(self) -> str:
        return self._lease.id

    @property
    def type(self) -> str:
        return self._lease.type

    @property
    def attempt(self) -> int:
        return self._lease.attempt

    @property
    def tenant(self) -> str:
        return self._lease.tenant

    @property
    def headers(self) -> Mapping[str, str]:
        """What its submitter gave it to carry, read-only."""
        return MappingProxyType(headers_of(self._lease.options))

    async def complete(self, value: Any = None) -> None:
        """The item succeeded, with this value."""
        planned = plan(value, self._lease.id)
        pending = self._pending(Succeed(planned))
        if not read_stored(self._lease.options).compensates:
            pending.contributions = planned.contributions
        if value is not None:
            core = self._core
            limit = core.settings.max_payload
            pending.result = core.registry.write_result(self._lease.type, value, limit)
        await self._settle(pending)

    async def fail(self, error: BaseException | str, *, retry: Retry | None = None) -> None:
        """The attempt failed. The retry policy decides whether the item is tried again or dead. `Abort`,
        `Defer` and `RetryAfter` work as in a handler."""
        failure = error if isinstance(error, BaseException) else RuntimeError(error)
        now, draw = await self._core.backend.now(), self._core.settings.random.random
        policy = merge_retry(_policy_of(self._core, self._lease), retry)
        decision = raised(self._lease, failure, lambda _: None, policy, now, draw)
        await self._settle(self._pending(decision))

    async def release(self, delay: Duration = 0) -> None:
        """Give it back for others. The attempt does not count."""
        await self._settle(self._pending(GiveBack(seconds(delay, field="delay"))))

    async def renew(self, lease: Duration | None = None) -> None:
        """Keep it for the same duration again, or for `lease` seconds, from now."""
        self._check()
        duration = self._duration if lease is None else seconds(lease, field="lease")
        reply = await self._core.backend.beat(
            Heartbeat(worker=self._worker, lease=duration, held=(self._lease,), types=())
        )
        if why := reply.lost.get(self._lease.token):
            raise LeaseLost(self.id, why)

    def _pending(self, decision: Decision) -> PendingSettlement:
        return PendingSettlement(self._lease, decision, held_since=self._claimed)

    async def _settle(self, pending: PendingSettlement) -> None:
        self._check()
        outcome = await _settle(self._core, pending)
        self._over = outcome.verb != "stale"
        await _remove_worker(self._core, self._worker)
        if outcome.verb == "stale":
            raise LeaseLost(self.id, outcome.loss or "taken")

    def _check(self) -> None:
        # The store would take a second settlement for the first one repeated, and answer `applied`.
        if self._over:
            raise LeaseLost(self.id, "completed")


async def claim_one(
    core: Core,
    *,
    tenant: str | None,
    types: tuple[str, ...] | None,
    queues: tuple[str, ...] | None,
    lease: float,
) -> ClaimedLease | None:
    """Lease one item. Each lease has its own worker in the store, so that leases lapse one by one.

    Built-in items are never handed out. One that takes the place of an item is settled here, and then the
    store is asked again.
    """
    worker = core.settings.generate_id()
    rooms = None if types is None else dict.fromkeys((*types, *SETTLED_AT_ONCE), 1)
    demand = await _obeying(
        core,
        Demand(
            worker=worker,
            limit=1,
            types=rooms,
            queues=queues,
            tenants=None if tenant is None else (tenant,),
            thorough=True,  # no other claim of this worker brings what comes late
        ),
    )
    if "strict" in core.backend.capabilities:
        demand = replace(demand, strict=_strict_types(core))
    info = encode_worker_info(
        WorkerInfo(
            host=host_name(),
            pid=os.getpid(),
            version=VERSION,
            release=core.settings.release,
            lease=lease,
            queues=queues,
            tenants=demand.tenants,
            room=1,
            manual=True,
        )
    )
    beat = Heartbeat(
        worker=worker,
        lease=lease,
        types=None if rooms is None else tuple(rooms),
        info=info,
        release=core.settings.release,
    )
    for _ in range(MOST_CLAIMS):
        await core.backend.beat(beat)
        claim = await core.backend.claim(demand)
        if claim.orders is not None:
            demand = await _obeying(core, replace(demand, types=rooms))
            continue
        found: ClaimedLease | None = None
        for each in claim.leases:
            found = await _claimed(core, each, worker, lease, types or ()) or found
        if found is not None:
            return found
        if all(each.verdict is not None for each in claim.leases):
            break
        demand = replace(demand, fairness=claim.fairness)
    await _remove_worker(core, worker)
    return None


async def _obeying(core: Core, demand: Demand) -> Demand:
    """The demand, without what operators have paused by type. If it is for every type, the store is asked
    which there are: this takes time in proportion to the open items, and only while a type is paused."""
    if "operating" not in core.backend.capabilities:
        return demand
    known = await core.backend.orders()
    paused, avoided = paused_types(known.orders, lambda name: _names_of(core, name))
    rooms = demand.types
    if paused and rooms is None:
        rooms = {count.type: 1 for count in await core.backend.counts()}
    if rooms is not None:
        rooms = {name: 0 if name in paused else room for name, room in rooms.items()}
    avoid = {name: frozenset(lanes) for name, lanes in avoided.items()}
    return replace(demand, types=rooms, avoid=avoid, orders=known.version)


def _names_of(core: Core, name: str) -> Sequence[str]:
    type = core.registry.get(name)
    return (name,) if type is None else (type.name, *type.aliases)


def _strict_types(core: Core) -> frozenset[str]:
    """The types whose lanes are strict, as far as it is known here, by all their names."""
    for type in core.registry.types.values():
        if has_strict_lanes(type.options.get("doer")):
            core.strict_types.update((type.name, *type.aliases))
    return frozenset(core.strict_types)


async def _remove_worker(core: Core, worker: str) -> None:
    try:
        await core.backend.remove_worker(worker)
    except Exception as error:  # noqa: BLE001  nothing depends on it
        failed = "could not remove the worker of a manual lease; it will lapse"
        log_line(WARNING, f"{failed}: {error_text(error)}")


async def _claimed(
    core: Core, lease: Lease, worker: str, duration: float, types: tuple[str, ...]
) -> ClaimedLease | None:
    """The lease, for the caller to run. None if the item needs no handler: then it is settled here. A message
    about a problem is for those who name its type."""
    if lease.verdict is not None:
        await _settle(core, PendingSettlement(lease, judged(lease, lease.verdict)))
        return None
    if lease.type == GROUP_TYPE:
        await _settle(core, await _closed(core, lease))
        return None
    if lease.type == TELL_TYPE and TELL_TYPE not in types:
        await _settle(core, PendingSettlement(lease, GiveBack(LEFT_DELAY)))
        return None
    if lease.type == BULK_TYPE and core.run_portion is not None:
        await _settle(core, await _run_portion(core, core.run_portion, lease, worker, duration))
        return None
    try:
        met = met_dependency(lease) if lease.type == DEPENDENCY.name else None
        policy, input = _policy_of(core, lease), {} if met else _decode_input(core, lease)
    except Exception as error:  # noqa: BLE001  a user's codec may raise anything
        await _settle(core, PendingSettlement(lease, await UndecodableItems(core).decide(lease, error)))
        return None
    if met is not None:
        await _settle(core, met)
        return None
    if lost_too_often(lease, policy):
        await _settle(core, PendingSettlement(unbegun(lease), judged(lease, "lease_lost")))
        return None
    if not lease.begun and await core.backend.begin([lease]):
        return None
    return ClaimedLease(core, lease, worker, duration, input)


async def _run_portion(
    core: Core, run: PortionRunner, lease: Lease, worker: str, duration: float
) -> PendingSettlement:
    """Change a portion of the items of a bulk action, and keep the lease meanwhile."""
    running = asyncio.ensure_future(bulk_settlement(core, run, lease))
    try:
        while not (await asyncio.wait({running}, timeout=duration / 3))[0]:
            await core.backend.beat(Heartbeat(worker=worker, lease=duration, held=(lease,), types=()))
        return running.result()
    except DecodeError as error:
        return PendingSettlement(lease, await UndecodableItems(core).decide(lease, error))
    finally:
        running.cancel()


async def _closed(core: Core, lease: Lease) -> PendingSettlement:
    """The settlement of an item that closes a nested group."""
    groups = await read_closed(core.backend, [lease])
    return closed_group(lease, groups.get((lease.tenant, lease.id)), core.registry, core.hooks)


def _policy_of(core: Core, lease: Lease) -> Retry:
    """Its own policy, or that of its type if the type is known here; else the app's."""
    type = core.registry.get(lease.type)
    base = core.settings.retry if type is None else core.item_builder.base(type).retry
    return retry_of(read_stored(lease.options), base)


async def _settle(core: Core, pending: PendingSettlement) -> Outcome:
    held = HeldLeases()
    builder = SettlementBuilder(core, held, FailureDecider(core))
    after_commit = AfterCommit(core, held, lambda: None)  # a manual lease takes no worker's room
    return await Settler(core, held, builder, after_commit).at_once(pending)


def _decode_input(core: Core, lease: Lease) -> dict[str, Any]:
    if lease.type == TELL_TYPE:
        return msgspec.json.decode(lease.input, type=dict[str, Any])
    type = core.registry.get(lease.type)
    if type is not None:
        return type.decode_input(lease.input, core.settings.codec)
    decoded = core.settings.codec.decode(lease.input)
    return cast("dict[str, Any]", decoded) if isinstance(decoded, dict) else {"input": decoded}
