"""taskiq 0.13 on Valkey, by streams, which acknowledge. It has no fan-in of its own, and needs a newer client
than the others here: an environment of its own.

Tuned: its program, which runs on uvloop, with `--max-async-tasks` of 200, `--max-prefetch` of 500 and
`--no-parse` (of 100, 0 and off: taskiq/cli/worker/args.py); 500 messages read at once instead of 100
(`xread_count` of RedisStreamBroker); no results kept of no-ops, which have a broker without; results asked
for every 50 ms (`check_interval`). For many it has no call of its own: they are enqueued 50 at once.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.peers.shared import URL, batches, tick

TUNED = "RedisStreamBroker, xread_count=500, uvloop, max-async-tasks=200, max-prefetch=500, no-parse"
PACE = 2_000
UVLOOP = True

broker = RedisStreamBroker(URL, queue_name="noops", consumer_id="0", xread_count=500)
keeping = RedisStreamBroker(URL, queue_name="adds", consumer_id="0", xread_count=500).with_result_backend(
    RedisAsyncResultBackend(URL, result_ex_time=600)
)


@broker.task
async def noop() -> None:
    tick()


@keeping.task
async def add(i: int) -> int:
    return i + 1


@asynccontextmanager
async def client() -> AsyncGenerator[None]:
    for each in (broker, keeping):
        await each.startup()
    yield
    for each in (broker, keeping):
        await each.shutdown()


async def one(_: None, i: int) -> None:
    await noop.kiq()


async def many(_: None, numbers: range) -> None:
    for part in batches(numbers, 50):
        await asyncio.gather(*(noop.kiq() for _ in part))


async def awaited(_: None, n: int) -> None:
    assert sum(await asyncio.gather(*map(_added, range(n)))) == n * (n + 1) // 2


async def _added(i: int) -> int:
    return (await (await add.kiq(i)).wait_result(check_interval=0.05, timeout=40)).return_value


def commands(processes: int) -> list[list[str]]:
    program = [sys.executable, "-m", "taskiq", "worker", "--workers", str(processes), "--no-parse"]
    options = ["--max-async-tasks", "200", "--max-prefetch", "500", "--log-level", "ERROR"]
    return [[*program, f"{__name__}:{each}", *options] for each in ("broker", "keeping")]
