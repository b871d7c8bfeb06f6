"""PgQueuer 1.6: jobs are deleted when they end, no result is kept; `awaited` is of the status alone.

Tuned: its asyncpg driver; uvloop, which its command line runs on (pgqueuer/adapters/cli/cli.py); `batch_size`
of 200 instead of 10, which also sizes its buffer of completions (QueueManager.run in pgqueuer/core/qm.py);
many at once with `enqueue` of lists (Queries.enqueue); completions with `CompletionWatcher`, whose debounce
(pgqueuer/core/completion.py) is lowered from its default to 1 ms.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from benchmarks.measure import Stopwatch

TUNED = "asyncpg, uvloop, batch_size=200, debounce 1 ms"
UVLOOP = True
BATCH = 200


async def _queries(url: str) -> Queries:
    return Queries(AsyncpgDriver(await asyncpg.connect(url)))


async def _installed(url: str) -> Queries:
    queries = await _queries(url)
    await queries.install()
    return queries


async def one_by_one(url: str, n: int) -> float:
    queries = await _installed(url)
    with Stopwatch() as watch:
        for i in range(n):
            await queries.enqueue("noop", b"%d" % i)
    return n / watch.seconds


async def bulk(url: str, n: int) -> float:
    return await _fill(await _installed(url), n)


async def _fill(queries: Queries, n: int) -> float:
    with Stopwatch() as watch:
        for start in range(0, n, 1000):
            part = range(start, min(start + 1000, n))
            await queries.enqueue(["noop"] * len(part), [b"%d" % i for i in part], [0] * len(part))
    return n / watch.seconds


async def _worker(url: str) -> tuple[PgQueuer, asyncio.Task[Any]]:
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))

    @queue.entrypoint("noop")
    async def noop(_job: object) -> None:
        pass

    return queue, asyncio.create_task(
        queue.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=10)), name="pgqueuer"
    )


async def drain(url: str, n: int) -> float:
    await _fill(await _installed(url), n)
    looks = await asyncpg.connect(url)
    with Stopwatch() as watch:
        queue, running = await _worker(url)
        # The store is asked: its answer is what counts.
        while await looks.fetchval("select exists (select from pgqueuer)"):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await _stop(queue, running)
    return n / watch.seconds


async def awaited(url: str, n: int) -> float:
    queries = await _installed(url)
    queue, running = await _worker(url)
    driver = AsyncpgDriver(await asyncpg.connect(url))
    async with CompletionWatcher(
        driver, queries=Queries(driver), debounce=timedelta(milliseconds=1)
    ) as watcher:
        await asyncio.sleep(0.5)
        with Stopwatch() as watch:
            ids = await queries.enqueue(["noop"] * n, [b"%d" % i for i in range(n)], [0] * n)
            await asyncio.gather(*(watcher.wait_for(id) for id in ids))
    await _stop(queue, running)
    return n / watch.seconds


async def _stop(queue: PgQueuer, running: asyncio.Task[Any]) -> None:
    queue.shutdown.set()
    await asyncio.wait({running}, timeout=5)
    running.cancel()
