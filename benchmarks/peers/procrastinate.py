"""Procrastinate 3: it keeps no results, so nothing can be awaited.

Tuned: the async psycopg connector with a pool as large as its concurrency; `concurrency` of 20 instead of 1,
and successful jobs deleted instead of kept (both are options of App.run_worker_async, explained there);
`batch_defer_async` for many at once.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import procrastinate

from benchmarks.peers.shared import URL, tick

TUNED = "concurrency=20, delete_jobs=successful, pool of 4 to 20"
PACE = 450
LEFT = "select count(*) from procrastinate_jobs where status in ('todo', 'doing')"

logging.disable(logging.CRITICAL)
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL, min_size=4, max_size=20))


@app.task(name="noop")
async def noop(i: int) -> None:
    tick()


@asynccontextmanager
async def client() -> AsyncGenerator[None]:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        yield


async def one(_: None, i: int) -> None:
    await noop.defer_async(i=i)


async def many(_: None, numbers: range) -> None:
    await noop.batch_defer_async(*({"i": i} for i in numbers))


async def worker() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=20, delete_jobs="successful")
