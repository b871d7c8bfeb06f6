"""Tenant view: what a client of one tenant may see of workers and limits, which all tenants share.

It learns which workers could run its items, and whether they have room. It does not learn who the other
tenants are, what is theirs, or where the workers run.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from treadle.backend import Backend
from treadle.doers.limit_rules import is_limit_of_all, is_limit_of_tenant
from treadle.item import TELL_NAMES, TELL_TYPE, Order, WorkerState
from treadle.item_facts import LimitUse, Overview
from treadle.store.fleet import serves
from treadle.worker_info import BlockingItem, UndecodableType, WorkerTrial


def seen_workers(workers: Iterable[WorkerState], tenant: str | None) -> tuple[WorkerState, ...]:
    """Those that serve the tenant, as it may see them. None: all workers, as they are."""
    if tenant is None:
        return tuple(workers)
    return tuple(_seen_worker(worker, tenant) for worker in workers if serves(worker, tenant=tenant))


def _seen_worker(worker: WorkerState, tenant: str) -> WorkerState:
    info = worker.info
    if info is not None:
        tenants = None if info.tenants is None else (tenant,)
        undecodable = {type: UndecodableType(0, "", each.until) for type, each in info.undecodable.items()}
        info = replace(
            info,
            host="",
            pid=0,
            tenants=tenants,
            declined={},
            undecodable=undecodable,
            waiting=0,
            trial=_seen_trial(info.trial, tenant),
            blocked_by=_seen_items(info.blocked_by, tenant),
            blockages=tuple(replace(each, items=_seen_items(each.items, tenant)) for each in info.blockages),
            schedules=None,
        )
    return replace(worker, running=None, info=info)


def _seen_trial(trial: WorkerTrial | None, tenant: str) -> WorkerTrial | None:
    if trial is None or trial.tenant == tenant:
        return trial
    return replace(trial, id="", tenant="", losses=0)


def _seen_items(items: Iterable[BlockingItem], tenant: str) -> tuple[BlockingItem, ...]:
    return tuple(each for each in items if each.tenant == tenant)


async def read_orders(backend: Backend, tenant: str | None) -> tuple[Order, ...]:
    """The orders that a tenant may see: its own, and those for all tenants, without who has given them. None:
    all orders."""
    orders = (await backend.orders()).orders
    if tenant is None:
        return orders
    own = (each for each in orders if each.tenant in (None, tenant))
    return tuple(each if each.tenant else replace(each, actor="", reason="") for each in own)


async def read_overview(
    backend: Backend, tenant: str | None = None, *, quick: bool = False, brief: bool = False
) -> Overview:
    """How the store stands, with the orders, and with all workers. Messages about problems are left out: one
    that cannot be told is no problem to tell, and its queue is of no use to people."""
    overview = await backend.overview(tenant=tenant, quick=quick, brief=brief)
    orders = await read_orders(backend, tenant)
    return replace(
        overview,
        counts=tuple(each for each in overview.counts if each.type != TELL_TYPE),
        unserved=tuple(each for each in overview.unserved if each.type != TELL_TYPE),
        ages=tuple(each for each in overview.ages if not each.queue.startswith(TELL_NAMES)),
        paused=tuple(each for each in orders if each.kind == "pause"),
        limits=tuple(each for each in orders if each.kind == "limit"),
    )


def paused_queues(pauses: Iterable[Order]) -> set[str]:
    """The queues that are paused, for all tenants or for one."""
    return {each.queue for each in pauses if each.queue is not None}


def has_others(workers: Iterable[WorkerState], tenant: str | None, now: float) -> bool:
    """Whether workers are alive that do not serve the tenant. All that it learns of them."""
    return any(worker.until > now and not serves(worker, tenant=tenant) for worker in workers)


def seen_limits(uses: Iterable[LimitUse], tenant: str | None) -> list[LimitUse]:
    """The limits of the tenant, and those that all tenants share without their holders. None: all limits."""
    if tenant is None:
        return list(uses)
    seen: list[LimitUse] = []
    for use in uses:
        if is_limit_of_tenant(use.name, tenant):
            seen.append(use)
        elif is_limit_of_all(use.name):
            seen.append(replace(use, holders=()))
    return seen
