"""docket (pydocket 0.27) on Valkey, by streams. It has no fan-in of its own.

Tuned: `concurrency` and `message_batch` of 200, and a `minimum_check_interval` of 10 ms instead of 250: at
its default a worker runs at most four times its concurrency in a second (all of docket.Worker:
docket/worker.py); `add_many` for many.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from docket import Docket, Worker

from benchmarks.peers.shared import URL, batches, tick

TUNED = "concurrency=200, message_batch=200, minimum_check_interval of 10 ms"
PACE = 1_400
TIMEOUT = timedelta(seconds=40)


async def noop() -> None:
    tick()


async def add(i: int) -> int:
    return i + 1


@asynccontextmanager
async def client() -> AsyncGenerator[Docket]:
    async with Docket(name="peers", url=URL) as docket:
        docket.register(noop)
        docket.register(add)
        yield docket


async def one(docket: Docket, _: int) -> None:
    await docket.add(noop)()


async def many(docket: Docket, numbers: range) -> None:
    await docket.add_many([docket.call(noop)() for _ in numbers])


async def awaited(docket: Docket, n: int) -> None:
    added = await docket.add_many([docket.call(add)(i) for i in range(n)])
    found = 0
    for part in batches(range(n), 100):
        found += sum(await asyncio.gather(*(added[i].get_result(timeout=TIMEOUT) for i in part)))
    assert found == n * (n + 1) // 2


async def worker() -> None:
    logging.disable(logging.CRITICAL)
    often = timedelta(milliseconds=10)
    async with (
        client() as docket,
        Worker(docket, concurrency=200, message_batch=200, minimum_check_interval=often) as working,
    ):
        await working.run_forever()
