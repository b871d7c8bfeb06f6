"""Chancy 0.26: it keeps no results; what is awaited is the status alone.

Tuned: its AsyncExecutor, for coroutines, instead of processes (chancy/executors); `concurrency` of 200, and
`eager_polling`, which asks for more as soon as a slot is free (both: chancy.Queue); updates written every 50
ms instead of every second (Worker.send_outgoing_interval), as what is awaited waits for that; `push_many` for
many at once; wait_for_jobs asks every 20 ms instead of every second.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from chancy import Chancy, Queue, Worker, job

from benchmarks.peers.shared import URL, tick

TUNED = "AsyncExecutor, concurrency=200, eager_polling, send_outgoing_interval=0.05; status only"
PACE = 1_500
LEFT = "select count(*) from chancy_jobs where state not in ('succeeded', 'failed')"

QUEUE = Queue(
    "default",
    concurrency=200,
    eager_polling=True,
    polling_interval=1,
    executor="chancy.executors.asyncex.AsyncExecutor",
)


@job()
async def noop(*, i: int) -> None:
    tick()


@job()
async def add(*, i: int) -> int:
    return i + 1


def _app() -> Chancy:
    quiet = logging.getLogger("quiet")
    quiet.setLevel(logging.CRITICAL)
    return Chancy(URL, log=quiet)


@asynccontextmanager
async def client() -> AsyncGenerator[Chancy]:
    async with _app() as app:
        await app.migrate()
        await app.declare(QUEUE)
        yield app


async def one(app: Chancy, i: int) -> None:
    await app.push(noop.job.with_kwargs(i=i))


async def many(app: Chancy, numbers: range) -> None:
    async for _ in app.push_many([noop.job.with_kwargs(i=i) for i in numbers], batch_size=1000):
        pass


async def awaited(app: Chancy, n: int) -> None:
    pushed = [each async for each in app.push_many([add.job.with_kwargs(i=i) for i in range(n)])]
    await app.wait_for_jobs([each for some in pushed for each in some], interval=0.02, timeout=40)


async def worker() -> None:
    async with _app() as app, Worker(app) as working:
        working.send_outgoing_interval = 0.05
        await working.wait_for_shutdown()
