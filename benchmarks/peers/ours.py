"""treadle, at its defaults: results and history kept, every commit durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from benchmarks.peers.shared import URL, tick
from treadle import Context, Result, Treadle, work

TUNED = "defaults: every result and all history kept, every commit durable"
PACKAGE = "treadle"
PACE = 30_000 if URL == "memory://" else 20_000
LEFT = {
    "sqlite": "select count(*) from treadle_open",
    "postgresql": "select count(*) from treadle.open_item",
    # The hash of leases has a filler beside them.
    "redis": (
        "EVAL return(redis.call('EXISTS',KEYS[1])+math.max(0,redis.call('HLEN',KEYS[2])-1))"
        " 2 {treadle}:ready {treadle}:held"
    ),
}.get(URL.partition(":")[0], "")


@work(name="noop")
async def noop() -> None:
    tick()


@work(name="add")
async def add(i: int) -> int:
    return i + 1


@work(name="total")
async def total(ctx: Context) -> int:
    return sum(await ctx.results(ctx.dependencies))


@work(name="fan")
async def fan(ctx: Context, n: int) -> Result[None, int]:
    return ctx.queue([add(i) for i in range(n)]).next(total())


WORK = (noop, add, total, fan)


@asynccontextmanager
async def client() -> AsyncGenerator[Treadle]:
    app = Treadle(URL, work=WORK)
    await app.connect()
    yield app
    await app.stop()


async def one(app: Treadle, _: int) -> None:
    await app.enqueue(noop())


async def many(app: Treadle, numbers: range) -> None:
    await app.enqueue_many([noop() for _ in numbers])


async def awaited(app: Treadle, n: int) -> None:
    found = await asyncio.gather(*[app.enqueue(add(i)).result() for i in range(n)])
    assert sum(found) == n * (n + 1) // 2


async def fan_in(app: Treadle, n: int) -> None:
    assert await app.enqueue(fan(n)).group() == n * (n + 1) // 2


async def worker() -> None:
    async with Treadle(URL, work=WORK):
        await asyncio.Event().wait()


@asynccontextmanager
async def inside(app: Treadle) -> AsyncGenerator[None]:
    await app.start()
    yield
    await app.worker.stop()
