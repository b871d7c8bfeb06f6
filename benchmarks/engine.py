"""The whole engine, from typed calls to values."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from benchmarks.measure import Case, Figure, Stopwatch, percentile, rounds
from benchmarks.shared_floors import SHARED
from benchmarks.stores import Stores
from treadle import Client, Context, Result, Treadle, work

WARM = 50


@work(name="noop")
async def noop(i: int) -> int:
    return i


@work(name="step")
async def step(ctx: Context, left: int) -> Result[int, int]:
    return ctx.queue(step(left - 1)) if left else ctx.result(0)


@work(name="gather")
async def gather(ctx: Context) -> int:
    return sum(await ctx.results(ctx.dependencies))


@work(name="fan")
async def fan(ctx: Context, n: int) -> Result[None, int]:
    return ctx.queue([noop(i) for i in range(n)]).next(gather())


async def one_task_each(count: int) -> float:
    """The floor of any asyncio worker: one task per item and nothing else."""

    async def noop(i: int) -> int:
        return i

    with Stopwatch() as watch:
        for task in [asyncio.create_task(noop(i)) for i in range(count)]:
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
            ("1,000 at once, enqueue and await", "/s", lambda: self.awaited(1000)),
            ("fan-out 1,000, fan-in", "s", self.fan_in),
            ("chain of 100", "s", self.chain),
            ("enqueue, one by one", "/s", lambda: self.enqueue(1)),
            ("enqueue, 100 callers", "/s", lambda: self.enqueue(100)),
            ("enqueue_many", "/s", self.enqueue_many),
            ("latency, idle, p50", "ms", self.latency_p50),
            ("latency, idle, p99", "ms", self.latency_p99),
        ]
        if self._kind in SHARED:
            cases += [
                ("floor: enqueue_many", "/s", self.floor_many),
                ("floor: enqueue, one by one", "/s", self.floor_one_by_one),
            ]
        if self._kind == "memory":
            cases += [
                ("enqueue and await each of 2,000", "/s", lambda: self.awaited(2_000)),
                ("enqueue and await each of 20,000", "/s", lambda: self.awaited(20_000)),
                ("floor: a task each", "/s", lambda: one_task_each(20_000)),
            ]
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

    async def awaited(self, count: int) -> float:
        async with self._stores.fresh(self._kind) as url, Treadle(url, work=[noop]) as app:
            with Stopwatch() as watch:
                await asyncio.gather(*[app.enqueue(noop(i)).result() for i in range(count)])
            return count / watch.seconds

    async def fan_in(self) -> float:
        async with self._stores.fresh(self._kind) as url, Treadle(url, work=[noop, gather, fan]) as app:
            with Stopwatch() as watch:
                assert await app.enqueue(fan(1000)).group() == sum(range(1000))
            return watch.seconds

    async def chain(self) -> float:
        """Each item queues the next."""
        async with self._stores.fresh(self._kind) as url, Treadle(url, work=[step]) as app:
            with Stopwatch() as watch:
                await app.enqueue(step(99)).group()
            return watch.seconds

    async def enqueue(self, callers: int) -> float:
        """No worker runs. Each caller waits for one submit before the next."""
        count = max(200, self._count // 20)
        async with self._stores.fresh(self._kind) as url, Client(url, work=[noop]) as client:

            async def caller(number: int) -> None:
                for i in range(number, count, callers):
                    await client.enqueue(noop(i))

            for i in range(20):  # connections are open, as for the floor
                await client.enqueue(noop(i))
            with Stopwatch() as watch:
                await asyncio.gather(*(caller(number) for number in range(callers)))
            return count / watch.seconds

    async def enqueue_many(self) -> float:
        async with self._stores.fresh(self._kind) as url, Client(url, work=[noop]) as client:
            with Stopwatch() as watch:
                for start in range(0, self._count, 1000):
                    until = min(start + 1000, self._count)
                    await client.enqueue_many([noop(i) for i in range(start, until)])
            return self._count / watch.seconds

    async def floor_many(self) -> float:
        async with self._tables() as url:
            return await SHARED[self._kind].submit(url, self._count)

    async def floor_one_by_one(self) -> float:
        async with self._tables() as url:
            return await SHARED[self._kind].submit_singly(url, max(200, self._count // 20))

    @asynccontextmanager
    async def _tables(self) -> AsyncGenerator[str]:
        """A store with treadle's tables and no open connection."""
        async with self._stores.fresh(self._kind) as url:
            async with Client(url, work=[noop]):
                pass
            yield url

    async def latency_p50(self) -> float:
        return percentile(await self._latencies(), 0.5)

    async def latency_p99(self) -> float:
        return percentile(await self._latencies(), 0.99)

    async def _latencies(self, times: int = 300) -> list[float]:
        """Milliseconds from enqueue to result, one item at a time. With poll_interval=5, so wake-ups start
        the items. The first few items do not count, because they open connections and plan statements."""
        taken: list[float] = []
        async with (
            self._stores.fresh(self._kind) as url,
            Treadle(url, work=[noop], poll_interval=5.0) as app,
        ):
            for i in range(WARM + times):
                start = time.perf_counter()
                await app.enqueue(noop(i)).result()
                taken.append((time.perf_counter() - start) * 1000)
        return taken[WARM:]


async def engine(stores: Stores, kinds: Sequence[str], count: int, times: int) -> dict[str, list[Figure]]:
    return {
        kind: await rounds(Engine(stores, kind, count).cases(), times, f"engine on {kind}") for kind in kinds
    }
