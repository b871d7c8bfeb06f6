"""arq 0.28 on Valkey. It needs an older client than the others here: an environment of its own.

Tuned: `poll_delay` of 10 ms instead of 500, `max_jobs` of 100 instead of 10, `queue_read_limit` of 1,000
(parameters of Worker, explained in arq/worker.py), no result kept of no-ops (`keep_result=0`), hiredis;
results asked for every 50 ms instead of 500, but for those that a worker awaits itself, which it slows down.
For many it has no call of its own: they are enqueued 50 at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from arq import create_pool
from arq.connections import ArqRedis, RedisSettings
from arq.jobs import Job
from arq.worker import Worker, func

from benchmarks.peers.shared import URL, batches, tick

TUNED = "poll_delay=0.01, max_jobs=100, queue_read_limit=1000, keep_result=0 for no-ops"
PACE = 1_000


async def noop(ctx: Any) -> None:
    tick()


async def add(ctx: Any, i: int) -> int:
    return i + 1


async def parent(ctx: Any, n: int) -> int:
    """arq's way to fan in: a job that waits for other jobs."""
    return sum(await _results(ctx["redis"], n, 0.5))


async def _results(pool: ArqRedis, n: int, poll_delay: float) -> list[int]:
    jobs: list[Job] = []
    for part in batches(range(n), 50):
        jobs += [job for job in await asyncio.gather(*(pool.enqueue_job("add", i) for i in part)) if job]
    return await asyncio.gather(*(job.result(timeout=40, poll_delay=poll_delay) for job in jobs))


@asynccontextmanager
async def client() -> AsyncGenerator[ArqRedis]:
    pool = await create_pool(RedisSettings.from_dsn(URL))
    yield pool
    await pool.aclose()


async def one(pool: ArqRedis, _: int) -> None:
    await pool.enqueue_job("noop")


async def many(pool: ArqRedis, numbers: range) -> None:
    for part in batches(numbers, 50):
        await asyncio.gather(*(pool.enqueue_job("noop") for _ in part))


async def awaited(pool: ArqRedis, n: int) -> None:
    assert sum(await _results(pool, n, 0.05)) == n * (n + 1) // 2


async def fan_in(pool: ArqRedis, n: int) -> None:
    job = await pool.enqueue_job("parent", n)
    assert job is not None
    assert await job.result(timeout=20, poll_delay=0.01) == n * (n + 1) // 2


def worker() -> None:
    Worker(
        functions=[func(noop, keep_result=0), func(add, keep_result=60), func(parent, keep_result=60)],
        redis_settings=RedisSettings.from_dsn(URL),
        poll_delay=0.01,
        max_jobs=100,
        queue_read_limit=1000,
    ).run()
