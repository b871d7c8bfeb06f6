"""What operators read, of a backend around a backend: see `treadle.testing.wrap`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from treadle.backend import Backend, carries_results, store_name
from treadle.item import (
    AuditNote,
)
from treadle.item_facts import DeadMark, Explanation, LimitUse, Overview
from treadle.records import MINUTE, AuditPage, Line, Related, ScheduleRun, Stat, StatsBy

T = TypeVar("T")


class WrappedReads(Backend):
    """Calls `inner` for what operators read."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.capabilities = inner.capabilities
        self.carries_results = carries_results(inner)

    @property
    def address(self) -> str:
        return store_name(self.inner)

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        """Called for every call of every verb. `call` carries it out. `args` are its positional arguments.

        Besides the verbs of `Backend`: `begin`, `settle_within` and `commit` are the three steps of a
        transaction; `heartbeat_connection` is a heartbeat of a blocked worker, from another thread.
        """
        return await call()

    async def explain(self, id: str, *, tenant: str | None = None) -> Explanation | None:
        return await self.around("explain", (id,), lambda: self.inner.explain(id, tenant=tenant))

    async def overview(self, *, tenant: str | None = None, quick: bool = False) -> Overview:
        return await self.around("overview", (), lambda: self.inner.overview(tenant=tenant, quick=quick))

    async def limits(self, names: Sequence[str] | None = None, *, count: int = 500) -> Sequence[LimitUse]:
        return await self.around("limits", (names,), lambda: self.inner.limits(names, count=count))

    async def marks(
        self, *, tenant: str | None = None, count: int = 100, cap: int = 10_000
    ) -> Sequence[DeadMark]:
        return await self.around("marks", (), lambda: self.inner.marks(tenant=tenant, count=count, cap=cap))

    async def lines(
        self, queue: str, *, tenant: str | None = None, count: int = 200, cap: int = 1000
    ) -> Sequence[Line]:
        return await self.around(
            "lines", (queue,), lambda: self.inner.lines(queue, tenant=tenant, count=count, cap=cap)
        )

    async def related(self, id: str, *, tenant: str | None = None, count: int = 100) -> Related | None:
        return await self.around("related", (id,), lambda: self.inner.related(id, tenant=tenant, count=count))

    async def add_stats(self, stats: Sequence[Stat]) -> None:
        await self.around("add_stats", (stats,), lambda: self.inner.add_stats(stats))

    async def stats(
        self,
        since: float,
        *,
        until: float | None = None,
        step: int = MINUTE,
        by: StatsBy = "time",
        type: str | None = None,
        queue: str | None = None,
    ) -> Sequence[Stat]:
        return await self.around(
            "stats",
            (since,),
            lambda: self.inner.stats(since, until=until, step=step, by=by, type=type, queue=queue),
        )

    async def schedule_runs(self, *, count: int = 30) -> Sequence[ScheduleRun]:
        return await self.around("schedule_runs", (), lambda: self.inner.schedule_runs(count=count))

    async def audits(
        self,
        *,
        tenant: str | None = None,
        bulk: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AuditPage:
        return await self.around(
            "audits",
            (),
            lambda: self.inner.audits(tenant=tenant, bulk=bulk, limit=limit, cursor=cursor),
        )

    async def drain_worker(self, worker: str, *, note: AuditNote | None = None) -> bool:
        return await self.around(
            "drain_worker", (worker,), lambda: self.inner.drain_worker(worker, note=note)
        )
