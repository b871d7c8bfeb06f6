"""Permits: what the engine does for doers with limits, and what the tasks of a worker hold of them.

A store that went back in time counts permits that were returned, or has forgotten some that it gave. Each
heartbeat says how many it counts. If that differs a few times in a row, `PermitLedger` tells the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from treadle.backend import Backend
from treadle.doers import Task
from treadle.doers.base import BaseDoer
from treadle.doers.limited import LimitedDoer
from treadle.doers.on_full import OnFullCalls, OnFullDoer
from treadle.engine.core import Core, announce_ended, event_time
from treadle.engine.registry import AnyType
from treadle.errors import InputError, UnsupportedError
from treadle.item import LIMIT_REACHED, ErrorInfo, Lease, Limit, PermitHolder, PermitReply, PermitRequest

from .decide import Drop
from .held import attempts_of
from .settle import Settler


def add_strict_type(core: Core, names: Sequence[str]) -> None:
    """The lanes of the type with these names are strict. `UnsupportedError` if the store cannot do that."""
    if "strict" not in core.backend.capabilities:
        what = f"strict lanes, which concurrency(strict=True) of {names[0]!r} needs"
        raise UnsupportedError("strict", type(core.backend).__name__, what)
    core.strict_types.update(names)


def check_batch(type: AnyType, doer: BaseDoer) -> None:
    """Refuse a limit that drops or replaces single items for a type that runs in batches."""
    if isinstance(doer, OnFullDoer) and type.batch is not None:
        problem = f"cannot run {type.name!r}, which runs in batches: a permit would belong to several items"
        raise InputError.of("on_full", doer.on_full, problem)


def prepare_limits(core: Core, doer: BaseDoer, on_full: OnFullCalls) -> None:
    """Make a doer with limits ready to be bound. `UnsupportedError` if the store does not have what it
    needs."""
    capabilities, store = core.backend.capabilities, type(core.backend).__name__
    if isinstance(doer, LimitedDoer | OnFullDoer) and "limits" not in capabilities:
        raise UnsupportedError("limits", store)
    if isinstance(doer, OnFullDoer):
        if "strict" not in capabilities:
            raise UnsupportedError("strict", store, f"concurrency(on_full={doer.on_full!r})")
        doer.attach(on_full)


def on_full_calls(core: Core, settler: Settler) -> OnFullCalls:
    """What a doer that drops or replaces items needs."""

    def lease_of(task: Task) -> Lease:
        return attempts_of(task)[0].lease

    def drop(task: Task, text: str) -> None:
        for held in attempts_of(task):
            if not held.over:
                held.over = True
                settler.decided(held, Drop(ErrorInfo(LIMIT_REACHED, text)))

    async def cancel(holders: Sequence[PermitHolder]) -> None:
        for tenant in {holder.tenant for holder in holders}:
            ids = [holder.id for holder in holders if holder.tenant == tenant]
            changed = await core.backend.cancel(ids, tenant=tenant, only_open=True)
            core.announcer.cancelled(changed.items, event_time(core, changed))
            announce_ended(core, changed)

    return OnFullCalls(lease_of, drop, cancel)


WRONG: Final = 3
"""Heartbeats in a row that counted something else, after which the store is told."""


class PermitLedger:
    """Calls the store for the doers of one worker, and keeps count. on_wrong: called when the store counts
    other permits than the worker has: then `correct` is to be called."""

    def __init__(self, backend: Backend, worker: str, on_wrong: Callable[[], None]) -> None:
        self._backend = backend
        self._worker = worker
        self._on_wrong = on_wrong
        self._held: dict[tuple[str, int], PermitRequest] = {}
        """By the name of a limit and token. The token is 0 for permits that belong to no lease."""
        self.total = 0
        """How many permits its tasks hold."""
        self._calls = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._open = asyncio.Event()
        """Not set while the store is told what the worker holds."""
        self._open.set()
        self._wrong = 0
        """How many heartbeats in a row have counted something else."""
        self.differs = False
        """Whether that was so often enough: `correct` is to be called."""

    # -- the calls of doers ----------------------------------------------------------------------------

    async def take_permits(
        self, requests: Sequence[PermitRequest], *, worker: str = ""
    ) -> Sequence[PermitReply]:
        await self._begin_call()
        try:
            replies = await self._backend.take_permits(requests, worker=worker)
        finally:
            self._end_call()
        for request, reply in zip(requests, replies, strict=True):
            if reply.count:
                self._add(request, reply.count)
        return replies

    async def return_permits(self, requests: Sequence[PermitRequest], *, worker: str) -> None:
        """Their tasks have ended: it does not hold them any more, whether the store answers or not."""
        await self._begin_call()
        for request in requests:
            self.remove(request)
        try:
            await self._backend.return_permits(requests, worker=worker)
        finally:
            self._end_call()

    async def _begin_call(self) -> None:
        while not self._open.is_set():
            await self._open.wait()
        self._calls += 1
        self._quiet.clear()

    def _end_call(self) -> None:
        self._calls -= 1
        if not self._calls:
            self._quiet.set()

    # -- the count -------------------------------------------------------------------------------------

    def compare(self, counted: int, before: int) -> None:
        """Compare what a heartbeat has counted with `total`. before: `total` when it was sent."""
        self._wrong = 0 if counted in (before, self.total) else self._wrong + 1
        self.differs = self._wrong >= WRONG
        if self.differs:
            self._on_wrong()

    async def correct(self) -> None:
        """Tell the store what the worker holds, if it has counted something else. Calls of doers wait."""
        self._wrong, self.differs = 0, False
        self._open.clear()
        try:
            await self._quiet.wait()
            held, total, worker = tuple(self._held.values()), self.total, self._worker
            counted = await self._backend.keep_permits(held, total, worker=worker)
            if counted != total:
                await self._backend.keep_permits(held, counted, worker=worker)
        finally:
            self._open.set()

    def adopt(self, limit: Limit, count: int) -> None:
        """Tasks that run hold permits of this limit that were not asked for. The store is to be told."""
        self._add(PermitRequest((limit,), count), count)
        self.differs = True

    def _add(self, request: PermitRequest, count: int) -> None:
        for limit in _slots(request.limits):
            key = limit.name, _token(request.lease)
            held = 0 if (found := self._held.get(key)) is None else found.count
            if request.lease is None or not held:  # a lease that has its permit gets no second one
                self._held[key] = PermitRequest((limit,), held + count, request.lease)
                self.total += count

    def remove(self, request: PermitRequest) -> None:
        """Its tasks have ended."""
        for limit in _slots(request.limits):
            key = limit.name, _token(request.lease)
            if (found := self._held.pop(key, None)) is None:
                continue
            count = min(found.count, request.count)
            self.total -= count
            if found.count > count:
                self._held[key] = PermitRequest((limit,), found.count - count, request.lease)


def _slots(limits: Iterable[Limit]) -> list[Limit]:
    return [limit for limit in limits if limit.algorithm == "slots"]


def _token(lease: Lease | None) -> int:
    return 0 if lease is None else lease.token
