"""Permit ledger: what the tasks of this worker hold of `slots` limits, beside what the store counts.

A store that went back in time counts permits that were returned, or has forgotten some that it gave. Each
heartbeat says how many it counts. If that differs a few times in a row, the store is told what the worker
holds. (Calls that are under way make a difference too: then the store learns nothing new.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from treadle.backend import Backend
from treadle.item import Lease, Limit, PermitReply, PermitRequest

WRONG: Final = 3
"""After how many heartbeats in a row that counted something else the store is told."""


class PermitLedger:
    """Calls the store for the doers of one worker, and keeps count. on_wrong: called when the store counts
    other permits than the worker has: then `correct` is to be called."""

    def __init__(self, backend: Backend, worker: str, on_wrong: Callable[[], None]) -> None:
        self._backend = backend
        self._worker = worker
        self._on_wrong = on_wrong
        self._held: dict[tuple[Limit, int], PermitRequest] = {}
        """By limit and token. The token is 0 for permits that belong to no lease."""
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
        if self._wrong >= WRONG:
            self._on_wrong()

    async def correct(self) -> None:
        """Tell the store what the worker holds, if it has counted something else. Calls of doers wait.
        Public: a mutant replaces it."""
        if self._wrong < WRONG:
            return
        self._wrong = 0
        self._open.clear()
        try:
            await self._quiet.wait()
            held, total, worker = tuple(self._held.values()), self.total, self._worker
            counted = await self._backend.keep_permits(held, total, worker=worker)
            if counted != total:
                await self._backend.keep_permits(held, counted, worker=worker)
        finally:
            self._open.set()

    def _add(self, request: PermitRequest, count: int) -> None:
        for limit in _slots(request.limits):
            key = limit, _token(request.lease)
            held = 0 if (found := self._held.get(key)) is None else found.count
            if request.lease is None or not held:  # a lease that has its permit gets no second one
                self._held[key] = PermitRequest((limit,), held + count, request.lease)
                self.total += count

    def remove(self, request: PermitRequest) -> None:
        """Its tasks have ended. Public: a mutant replaces it."""
        for limit in _slots(request.limits):
            key = limit, _token(request.lease)
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
