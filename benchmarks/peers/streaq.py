"""streaQ 7 on Valkey.

Tuned: `concurrency` of 64 instead of 16 and `prefetch` of 128 (of its Worker, explained in streaq/worker.py);
no results of no-ops (`ttl=0`), no log line for each task (`silent`); `enqueue_many` for many. Each result
that is awaited takes a connection of its own, so it is 25 at once: with 100 it came to a halt.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from streaq import Worker

from benchmarks.peers.shared import URL, batches, tick

TUNED = "concurrency=64, prefetch=128, ttl=0 for no-ops, silent; results awaited 25 at once"
PACE = 600

worker_ = Worker(redis_url=URL, concurrency=64, prefetch=128)


@worker_.task(ttl=0, silent=True)
async def noop() -> None:
    tick()


@worker_.task(silent=True)
async def add(i: int) -> int:
    return i + 1


@worker_.task(silent=True)
async def after() -> int:
    return 1


@asynccontextmanager
async def client() -> AsyncGenerator[None]:
    async with worker_:
        yield


async def one(_: None, i: int) -> None:
    await noop.enqueue()


async def many(_: None, numbers: range) -> None:
    await worker_.enqueue_many([noop.enqueue() for _ in numbers])


async def awaited(_: None, n: int) -> None:
    tasks = [add.enqueue(i) for i in range(n)]
    await worker_.enqueue_many(tasks)
    found = 0
    for part in batches(range(n), 25):
        found += sum(each.result for each in await asyncio.gather(*(tasks[i].result(40) for i in part)))
    assert found == n * (n + 1) // 2


async def fan_in(_: None, n: int) -> None:
    """A task after others learns that they ended, but gets no values."""
    tasks = [add.enqueue(i) for i in range(n)]
    last = await after.enqueue().start(after=[task.id for task in tasks])
    await worker_.enqueue_many(tasks)
    assert (await last.result(40)).result == 1


def commands(processes: int) -> list[list[str]]:
    return [[sys.executable, "-m", "streaq", "run", f"{__name__}:worker_"]] * processes
