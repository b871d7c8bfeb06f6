"""Observer: the methods of a client that say how things stand, and why."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from treadle.doers.limit_rules import is_limit_of_all, is_limit_of_tenant
from treadle.engine.core import Core
from treadle.engine.why import why_item, why_queue
from treadle.errors import UnsupportedError
from treadle.ids import check_name, ids_of
from treadle.item import WorkerState
from treadle.item_facts import LimitUse, Overview
from treadle.options import HasId
from treadle.why import Why
from treadle.worker_info import WorkerInfo, decode_worker_info


class Observer:
    """Reads how the store stands: for one tenant, or for all if it has no tenant."""

    _core: Core
    _tenant: str | None

    def connect(self) -> Coroutine[Any, Any, None]:
        """Open the backend. All methods do it when they need it. Idempotent."""
        return self._core.connect()

    async def why(self, id: str | HasId) -> Why:
        """Say why an item is where it is: the most binding reason first, and what to do about it. If it waits
        for other items, the reasons of the first one that is not blocked follow. For the root of a group that
        has ended: which members keep the group open."""
        (id,) = ids_of(id)
        await self._begin_read()
        return await why_item(self._core, id, self._tenant)

    async def why_queue(self, name: str) -> Why:
        """Say why the items of a queue wait: whether it is paused, whether a worker serves it, and the
        reasons of the item that has waited for the longest time."""
        check_name(name, field="queue")
        await self._begin_read()
        return await why_queue(self._core, name, self._tenant)

    async def workers(self) -> list[WorkerState]:
        """Return the workers that have a lease in the store, lapsed or not, by id. `info` is what each says
        about itself: a `WorkerInfo`, or None. A client of one tenant gets those that serve the tenant."""
        await self._core.connect()
        return self._decoded(await self._core.backend.workers())

    async def limits(self, names: Sequence[str] | None = None, *, count: int = 500) -> list[LimitUse]:
        """Return how far the fleet-wide limits are used that are in use now, by name: those named, or the
        first `count`. A client of one tenant gets no limits of other tenants, and no ids of their items."""
        await self._begin_read()
        uses = await self._core.backend.limits(names, count=count)
        if self._tenant is not None:
            uses = [seen for use in uses if (seen := _seen_by(self._tenant, use)) is not None]
        return sorted(uses, key=lambda use: use.name)

    async def overview(self, *, cap: int = 10_000) -> Overview:
        """Return how the store stands: what waits, since when, who works. It looks at no more than `cap`
        items of each queue and status, so it does not take longer when more items are kept."""
        await self._begin_read()
        overview = await self._core.backend.overview(tenant=self._tenant, cap=cap)
        return msgspec.structs.replace(overview, workers=tuple(self._decoded(overview.workers)))

    async def _begin_read(self) -> None:
        await begin_read(self._core)

    def _decoded(self, workers: Sequence[WorkerState]) -> list[WorkerState]:
        decoded = [
            msgspec.structs.replace(worker, info=decode_worker_info(worker.info)) for worker in workers
        ]
        return sorted(
            [worker for worker in decoded if self._tenant is None or _serves(worker, self._tenant)],
            key=lambda worker: worker.id,
        )


def _serves(worker: WorkerState, tenant: str) -> bool:
    """Whether a worker serves a tenant, as far as it says."""
    info = worker.info
    return not isinstance(info, WorkerInfo) or info.tenants is None or tenant in info.tenants


def _seen_by(tenant: str, use: LimitUse) -> LimitUse | None:
    """A limit as a client of this tenant may see it. None: it belongs to another tenant."""
    if is_limit_of_tenant(use.name, tenant):
        return use
    if not is_limit_of_all(use.name):
        return None
    holders = tuple(msgspec.structs.replace(holder, items=()) for holder in use.holders)
    return msgspec.structs.replace(use, holders=holders)


async def begin_read(core: Core) -> None:
    """Open the backend, for a read that not all backends have."""
    if "watching" not in core.backend.capabilities:
        raise UnsupportedError("watching", type(core.backend).__name__)
    await core.connect()
