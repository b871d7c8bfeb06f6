"""treadle, at its defaults: results and history kept, every commit durable."""

from __future__ import annotations

import asyncio

from benchmarks.engine import noop
from benchmarks.measure import Stopwatch
from treadle import Client, Treadle

TUNED = "defaults"


async def one_by_one(url: str, n: int) -> float:
    async with Client(url, work=[noop]) as client:
        with Stopwatch() as watch:
            for i in range(n):
                await client.enqueue(noop(i))
    return n / watch.seconds


async def bulk(url: str, n: int) -> float:
    async with Client(url, work=[noop]) as client:
        return await _fill(client, n)


async def _fill(client: Client, n: int) -> float:
    with Stopwatch() as watch:
        for start in range(0, n, 1000):
            await client.enqueue_many([noop(i) for i in range(start, min(start + 1000, n))])
    return n / watch.seconds


async def drain(url: str, n: int) -> float:
    app = Treadle(url, work=[noop])
    await _fill(app, n)
    with Stopwatch() as watch:
        await app.start()
        await app.worker.drain()
    await app.stop()
    return n / watch.seconds


async def awaited(url: str, n: int) -> float:
    async with Treadle(url, work=[noop]) as app:
        with Stopwatch() as watch:
            await asyncio.gather(*[app.enqueue(noop(i)).result() for i in range(n)])
    return n / watch.seconds
