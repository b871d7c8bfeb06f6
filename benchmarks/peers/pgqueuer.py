"""PgQueuer 1.6: jobs are deleted when they end, no result is kept; what is awaited is the status alone.

Tuned: its asyncpg driver; uvloop, which its command line runs on (pgqueuer/adapters/cli/cli.py); `batch_size`
of 200 instead of 10, which also sizes its buffer of completions (QueueManager.run in pgqueuer/core/qm.py);
many at once with `enqueue` of lists (Queries.enqueue); completions with `CompletionWatcher`, whose debounce
(pgqueuer/core/completion.py) is lowered from its default to 1 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from benchmarks.peers.shared import URL, tick

TUNED = "asyncpg, uvloop, batch_size=200, debounce 1 ms; status only"
PACE = 12_000
UVLOOP = True
LEFT = "select count(*) from pgqueuer"


async def _driver() -> AsyncpgDriver:
    return AsyncpgDriver(await asyncpg.connect(URL))


async def setup() -> None:
    await Queries(await _driver()).install()


@asynccontextmanager
async def client() -> AsyncGenerator[Queries]:
    yield Queries(await _driver())


async def one(queries: Queries, i: int) -> None:
    await queries.enqueue("noop", b"%d" % i)


async def many(queries: Queries, numbers: range) -> None:
    await queries.enqueue(["noop"] * len(numbers), [b"%d" % i for i in numbers], [0] * len(numbers))


async def awaited(queries: Queries, n: int) -> None:
    driver = await _driver()
    debounce = timedelta(milliseconds=1)
    async with CompletionWatcher(driver, queries=Queries(driver), debounce=debounce) as watcher:
        ids = await queries.enqueue(["add"] * n, [b"%d" % i for i in range(n)], [0] * n)
        assert set(await asyncio.gather(*(watcher.wait_for(id) for id in ids))) == {"successful"}


async def _queue() -> PgQueuer:
    queue = PgQueuer(await _driver())

    @queue.entrypoint("noop")
    async def noop(_: Any) -> None:
        tick()

    @queue.entrypoint("add")
    async def add(_: Any) -> None:
        pass

    return queue


async def _run(queue: PgQueuer) -> None:
    await queue.run(batch_size=200, dequeue_timeout=timedelta(seconds=10))


async def worker() -> None:
    await _run(await _queue())


@asynccontextmanager
async def inside(_: Queries) -> AsyncGenerator[None]:
    queue = await _queue()
    running = asyncio.create_task(_run(queue))
    await asyncio.sleep(0.5)
    yield
    queue.shutdown.set()
    await asyncio.wait({running}, timeout=5)
    running.cancel()
