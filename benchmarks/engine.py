"""The whole engine: typed calls in, values out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from benchmarks.measure import Case, Figure, Stopwatch, percentile, rounds
from benchmarks.stores import Stores
from treadle import Context, Result, Treadle, work


@work(name="noop")
async def noop(i: int) -> int:
    return i


@work(name="gather")
async def gather(ctx: Context) -> int:
    return sum(await ctx.results(ctx.dependencies))


@work(name="fan")
async def fan(ctx: Context, n: int) -> Result[None, int]:
    return ctx.queue([noop(i) for i in range(n)]).next(gather())


async def one_task_each(count: int) -> float:
    """The floor of any asyncio worker: a task per job, and nothing else."""

    async def job(i: int) -> int:
        return i

    with Stopwatch() as watch:
        for task in [asyncio.create_task(job(i)) for i in range(count)]:
            await task
    return count / watch.seconds


class Engine:
    """The cases for one kind of store."""

    def __init__(self, stores: Stores, kind: str, count: int) -> None:
        self._stores = stores
        self._kind = kind
        self._count = count

    def cases(self) -> list[tuple[str, str, Case]]:
        cases: list[tuple[str, str, Case]] = [
            ("drain of no-ops", "/s", self.drain),
            ("enqueue and await each", "/s", self.awaited),
            ("fan-out 1,000, fan-in", "s", self.fan_in),
            ("latency, idle, p50", "ms", self.latency_p50),
            ("latency, idle, p99", "ms", self.latency_p99),
        ]
        if self._kind == "memory":
            cases += [("floor: a task each", "/s", lambda: one_task_each(self._count))]
        return cases

    async def drain(self) -> float:
        async with self._stores.fresh(self._kind) as url:
            app = Treadle(url, work=[noop])
            await app.enqueue_many([noop(i) for i in range(self._count)])
            with Stopwatch() as watch:
                await app.start()
                await app.worker.drain()
            await app.stop()
            return self._count / watch.seconds

    async def awaited(self) -> float:
        count = min(self._count, 2000)
        async with self._stores.fresh(self._kind) as url, Treadle(url, work=[noop]) as app:
            with Stopwatch() as watch:
                await asyncio.gather(*[app.enqueue(noop(i)).result() for i in range(count)])
            return count / watch.seconds

    async def fan_in(self) -> float:
        async with self._stores.fresh(self._kind) as url, Treadle(url, work=[noop, gather, fan]) as app:
            with Stopwatch() as watch:
                assert await app.enqueue(fan(1000)).group() == sum(range(1000))
            return watch.seconds

    async def latency_p50(self) -> float:
        return percentile(await self._latencies(), 0.5)

    async def latency_p99(self) -> float:
        return percentile(await self._latencies(), 0.99)

    async def _latencies(self, times: int = 100) -> list[float]:
        """Milliseconds from enqueue to result, one at a time. With poll_interval=5: woken, not polled."""
        taken: list[float] = []
        async with (
            self._stores.fresh(self._kind) as url,
            Treadle(url, work=[noop], poll_interval=5.0) as app,
        ):
            for i in range(times):
                start = time.perf_counter()
                await app.enqueue(noop(i)).result()
                taken.append((time.perf_counter() - start) * 1000)
        return taken


async def engine(stores: Stores, kinds: Sequence[str], count: int, times: int) -> dict[str, list[Figure]]:
    return {
        kind: await rounds(Engine(stores, kind, count).cases(), times, f"engine on {kind}") for kind in kinds
    }
