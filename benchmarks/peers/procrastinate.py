"""Procrastinate 3: it keeps no results, so nothing can be awaited.

Tuned: the async psycopg connector with a pool as large as its concurrency; `concurrency` of 20 instead of 1,
and successful jobs deleted instead of kept (both are options of App.run_worker_async, explained there);
`batch_defer_async` for many at once.
"""

from __future__ import annotations

import asyncio
import logging

import procrastinate
import psycopg

from benchmarks.measure import Stopwatch

TUNED = "concurrency=20, delete_jobs=successful, pool of 4 to 20"
SMALL = 10
"""It takes so much longer: so many times fewer jobs tell as much."""

OPEN = "select exists (select from procrastinate_jobs where status in ('todo', 'doing'))"


def _app(url: str) -> procrastinate.App:
    logging.disable(logging.CRITICAL)
    return procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=4, max_size=20))


def _noop(app: procrastinate.App) -> procrastinate.tasks.Task:
    @app.task(name="noop")
    async def noop(i: int) -> None:
        pass

    return noop


async def one_by_one(url: str, n: int) -> float:
    app = _app(url)
    noop = _noop(app)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        with Stopwatch() as watch:
            for i in range(n):
                await noop.defer_async(i=i)
    return n / watch.seconds


async def bulk(url: str, n: int) -> float:
    app = _app(url)
    noop = _noop(app)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        return await _fill(noop, n)


async def _fill(noop: procrastinate.tasks.Task, n: int) -> float:
    with Stopwatch() as watch:
        for start in range(0, n, 1000):
            await noop.batch_defer_async(*({"i": i} for i in range(start, min(start + 1000, n))))
    return n / watch.seconds


async def drain(url: str, n: int) -> float:
    app = _app(url)
    noop = _noop(app)
    async with app.open_async(), await psycopg.AsyncConnection.connect(url, autocommit=True) as looks:
        await app.schema_manager.apply_schema_async()
        await _fill(noop, n)
        with Stopwatch() as watch:
            running = asyncio.create_task(
                app.run_worker_async(concurrency=20, delete_jobs="successful", install_signal_handlers=False)
            )
            # The store is asked: its answer is what counts.
            while (await (await looks.execute(OPEN)).fetchone() or (False,))[0]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running}, timeout=5)
    return n / watch.seconds
