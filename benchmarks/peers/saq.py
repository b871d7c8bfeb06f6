"""SAQ 0.26, on Valkey and on PostgreSQL.

Tuned: `concurrency` of 50 instead of 10 (Worker in saq/worker.py); on Valkey hiredis, an extra of its own to
install, and `max_concurrent_ops` of 50 instead of 20; on PostgreSQL a pool of 10 to 20; no-ops are deleted
when they end (`ttl=-1`); results are asked for every 20 ms instead of every 500 (`poll_interval` of Queue.map
and Queue.apply). For many it has no call of its own: they are enqueued at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from saq import Queue, Worker

from benchmarks.peers.shared import URL, batches, tick

POSTGRES = URL.startswith("postgres")
TUNED = "concurrency=50, ttl=-1 for no-ops, poll_interval=0.02"
PACE = 400 if POSTGRES else 1_200
if POSTGRES:
    LEFT = "select count(*) from saq_jobs where status not in ('complete', 'failed', 'aborted')"


async def noop(ctx: Any) -> None:
    tick()


async def add(ctx: Any, *, i: int) -> int:
    return i + 1


async def parent(ctx: Any, *, n: int) -> int:
    """SAQ's way to fan in: a job that waits for other jobs."""
    queue: Queue = ctx["worker"].queue
    return sum(await queue.map("add", [{"i": i} for i in range(n)], timeout=40, poll_interval=0.02))


@asynccontextmanager
async def client() -> AsyncGenerator[Queue]:
    queue = Queue.from_url(
        URL, **({"min_size": 10, "max_size": 20} if POSTGRES else {"max_concurrent_ops": 50})
    )
    await queue.connect()
    yield queue
    await queue.disconnect()


async def one(queue: Queue, _: int) -> None:
    await queue.enqueue("noop", ttl=-1)


async def many(queue: Queue, numbers: range) -> None:
    for part in batches(numbers, 50):
        await asyncio.gather(*(queue.enqueue("noop", ttl=-1) for _ in part))


async def awaited(queue: Queue, n: int) -> None:
    found = await queue.map("add", [{"i": i} for i in range(n)], timeout=40, poll_interval=0.02)
    assert sum(found) == n * (n + 1) // 2


async def fan_in(queue: Queue, n: int) -> None:
    assert await queue.apply("parent", n=n, timeout=40, poll_interval=0.01) == n * (n + 1) // 2


async def worker() -> None:
    async with client() as queue:
        await Worker(queue, functions=[noop, add, parent], concurrency=50).start()
